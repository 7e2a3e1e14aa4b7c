"""Schedules, and optimizers on a tiny T5."""

import jax
import numpy as np
import pytest

from specdec_jax.optimization import Optimizer, Schedule, make_optimizer
from specdec_jax.t5 import T5Config
from specdec_jax.train_step import init_state

CONFIG = T5Config(
    vocab_size=48, emb_dim=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
    head_dim=8, mlp_dim=32,
)  # fmt: skip


def test_schedules():
    wsd = Schedule(total_steps=100, warmup_steps=10, decay_steps=20)
    values = np.array([float(wsd(s)) for s in range(101)])
    np.testing.assert_allclose(values[:10], np.arange(1, 11) / 10, rtol=1e-6)
    assert (values[10:81] == 1).all() and values[90] == 0.5 and values[100] == 0
    cosine = Schedule(100, warmup_steps=1, decay_steps=100, shape="cosine", final=0.1)
    assert float(cosine(50)) == pytest.approx(0.55) and float(cosine(100)) == pytest.approx(0.1)
    root = Schedule(10000, warmup_steps=100, shape="inverse_sqrt")
    assert float(root(399)) == pytest.approx(0.5) and float(root(49)) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="shape"):
        Schedule(10, shape="cosin")
    with pytest.raises(ValueError, match="muon"):
        Optimizer(name="sgd")


def test_decay_can_be_triggered_late_without_changing_the_past():
    long = Schedule(total_steps=1000, decay_steps=0)
    short = Schedule(total_steps=300, decay_steps=100)
    assert all(float(long(s)) == float(short(s)) for s in range(0, 200, 7))
    assert float(short(250)) == 0.5


def test_muon_orthogonalizes_matrices_only():
    config = CONFIG
    transform = make_optimizer(Optimizer(), Schedule(10, warmup_steps=1))
    params = init_state(config, transform).params
    grads = jax.tree.map(
        lambda x: jax.random.normal(jax.random.key(x.size), x.shape) * 1e-3, params
    )
    updates, _ = jax.jit(transform.update)(grads, transform.init(params), params)
    attention = updates["encoder"]["layers_0"]["attention"]
    sizes = {}
    for name in ("query", "key"):
        singular = np.linalg.svd(attention[name]["kernel"])[1]
        assert singular.max() / singular.min() < 3  # a random matrix has far more
        sizes[name] = singular.mean()
    # T5's queries are 1/sqrt(head_dim) of the usual size, and so are their updates.
    assert sizes["query"] / sizes["key"] == pytest.approx(0.125, rel=0.1)
    embedding = updates["token_embedder"]["embedding"]
    np.testing.assert_allclose(np.abs(embedding), 1e-2, rtol=1e-2)  # Adam's first step
    head = updates["decoder"]["logits_dense"]["kernel"]
    np.testing.assert_allclose(np.abs(head), 3e-3, rtol=1e-2)
