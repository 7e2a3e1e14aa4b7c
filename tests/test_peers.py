"""transformers and CTranslate2 on our parameters, where they are installed: the same tokens."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import peers
from specdec_jax.decoding import autoregressive_decode
from specdec_jax.generate import Batch
from specdec_jax.model import T5Model
from specdec_jax.sampling import GREEDY, Sampling
from specdec_jax.t5 import T5, T5Config

N = 12


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not peers.installed(module), reason=f"{module} (with torch and transformers) is needed"
    )


@pytest.fixture(scope="module", params=[("gelu", "linear"), ("relu",)], ids=["1.1", "1.0"])
def ours(request: pytest.FixtureRequest):
    config = T5Config(
        vocab_size=96, emb_dim=32, num_heads=2, num_encoder_layers=2, num_decoder_layers=3,
        head_dim=16, mlp_dim=48, mlp_activations=request.param,
        logits_via_embedding=request.param == ("relu",),
    )  # fmt: skip
    tokens = jnp.ones((1, 2), jnp.int32)
    shapes = jax.eval_shape(T5(config).init, jax.random.key(0), tokens, tokens)["params"]
    leaves, tree = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    drawn = [0.4 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    model = T5Model(config, feature_major=True)
    return model, model.prepare(jax.tree.unflatten(tree, drawn))


INPUTS = np.asarray([[5, 9, 33, 7, 1], [8, 1, 0, 0, 0], [90, 4, 17, 1, 0]], np.int32)


def batch(rows: int = 3) -> Batch:
    keys = jax.random.split(jax.random.key(0), rows)
    return Batch([""] * rows, [True] * rows, jnp.asarray(INPUTS[:rows]), keys)


@needs("transformers")
def test_transformers_gives_our_tokens(ours) -> None:
    expected = autoregressive_decode(*ours, INPUTS, max_new_tokens=N)
    network = peers.to_transformers(*ours)
    found = peers.Transformers(network, N, GREEDY, 1)(batch())
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    endless = peers.Transformers(network, N, GREEDY, -1)(batch())
    assert endless.lengths.tolist() == [N, N, N]


@needs("transformers")
def test_assisted_generation_runs(ours) -> None:
    network = peers.to_transformers(*ours)
    assisted = peers.Transformers(network, N, GREEDY, 1, peers.to_transformers(*ours), 3)
    expected = autoregressive_decode(*ours, INPUTS[:1], max_new_tokens=N)
    np.testing.assert_array_equal(assisted(batch(1)).tokens, expected.tokens)
    sampled = peers.Transformers(network, N, Sampling(1.0), 1)(batch())
    assert all(1 <= length <= N for length in sampled.lengths)


@needs("ctranslate2")
def test_ctranslate2_gives_our_tokens(ours) -> None:
    expected = autoregressive_decode(*ours, INPUTS, max_new_tokens=N)
    decode = peers.CTranslate2(peers.to_transformers(*ours), N, GREEDY, 1)
    np.testing.assert_array_equal(decode(batch()).tokens, expected.tokens)
    sampled = peers.CTranslate2(peers.to_transformers(*ours), N, Sampling(1.0), -1)(batch())
    assert sampled.lengths.tolist() == [N, N, N]


@needs("transformers")
def test_what_transformers_has_not_is_told(ours) -> None:
    model, params = ours
    other = dataclasses.replace(model.config, mlp_activations=("silu", "linear"))
    with pytest.raises(ValueError, match="has no T5 with activations"):
        peers.to_transformers(T5Model(other, feature_major=True), params)


def test_rows_end_behind_their_end() -> None:
    found = peers._result([[5, 1, 7], [4, 4, 4, 4]], 3, 1)
    np.testing.assert_array_equal(found.tokens, [[5, 1, 0], [4, 4, 4]])
    np.testing.assert_array_equal(found.lengths, [2, 3])
