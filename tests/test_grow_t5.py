"""scripts/grow_t5.py: the wider T5 computes what the narrow one does, and trains apart."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from specdec_jax.checkpoints import load_params
from specdec_jax.t5 import T5, T5Config
from tests.tiny_pair import tiny_pair

SCRIPT = Path(__file__).parents[1] / "scripts" / "grow_t5.py"
spec = importlib.util.spec_from_file_location("grow_t5", SCRIPT)
grow_t5 = importlib.util.module_from_spec(spec)
spec.loader.exec_module(grow_t5)


def logits(config, params):
    inputs = np.array([[5, 9, 3, 1], [7, 1, 0, 0]])
    decoder_inputs = np.array([[0, 4, 8], [0, 9, 2]])
    return T5(config).apply({"params": params}, inputs, decoder_inputs)


def test_the_function_is_kept_and_the_copies_differ():
    config, params = load_params(tiny_pair() / "target")
    c = config
    sizes = {
        "emb_dim": 2 * c.emb_dim,
        "num_heads": c.num_heads + 1,
        "mlp_dim": c.mlp_dim + 3,
    }
    grown, wider = grow_t5.grow(config, params, **sizes)
    assert (grown.emb_dim, grown.num_heads, grown.mlp_dim) == tuple(sizes.values())
    want = logits(config, params)
    np.testing.assert_allclose(logits(grown, wider), want, atol=2e-5 * np.abs(want).max())

    # What flows back to a unit and to its copy differs, so that training tells them apart.
    def loss(params):
        return jax.nn.log_softmax(logits(grown, params))[..., 3].sum()

    kernel = jax.grad(loss)(wider)["decoder"]["layers_0"]["mlp"]["wi_0"]["kernel"]
    pair = kernel[:, 0], kernel[:, c.mlp_dim]
    assert np.abs(pair[0] - pair[1]).max() > 1e-3 * np.abs(kernel).max()


def test_what_cannot_grow_is_refused(tmp_path):
    tied = T5Config(vocab_size=8, emb_dim=4, logits_via_embedding=True)
    with pytest.raises(ValueError, match="tied"):
        grow_t5.grow(tied, {}, emb_dim=8, num_heads=8, mlp_dim=2048)
    command = [sys.executable, SCRIPT, f"--weights={tiny_pair() / 'target'}", "--emb_dim=33"]
    command += [f"--output={tmp_path / 'x'}", "--num_heads=9", "--mlp_dim=999"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=SCRIPT.parents[1])
    assert run.returncode == 1
    assert "must be a multiple" in run.stderr
    assert len(run.stderr.splitlines()) == 1
