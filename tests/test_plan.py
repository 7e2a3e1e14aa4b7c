"""The plan against what really lies in memory; eight_devices.py does it for a mesh."""

import jax
import pytest

from specdec_jax import main
from specdec_jax.plan import HARDWARE, cache_bytes, exchanged_bytes, make_plan, param_bytes
from specdec_jax.t5 import T5Config

from .conftest import TINY, sources, tiny_t5

XXL = T5Config(32128, 4096, 64, 24, 24, 64, 10240)
SMALL = T5Config(32128, 512, 6, 8, 8, 64, 1024)


def nbytes(tree: object) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def test_one_device_holds_what_the_plan_says() -> None:
    model, params = tiny_t5(0)
    assert param_bytes(TINY, 1, 4) == nbytes(params)
    cache = jax.eval_shape(lambda: model.prefill(params, sources(3, 9, 40), 20))
    total = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))
    assert cache_bytes(TINY, 1, 4, 3, 9, 20) == total


def test_a_call_reads_the_decoder_and_the_head() -> None:
    _, params = tiny_t5(0)
    decoder = dict(params["decoder"])
    for layer in (name for name in decoder if name.startswith("layers_")):
        attention = decoder[layer]["encoder_decoder_attention"]
        kept = {name: attention[name] for name in ("query", "out")}
        decoder[layer] = {**decoder[layer], "encoder_decoder_attention": kept}
    assert param_bytes(TINY, 1, 4, decoder=True) == nbytes(decoder)


def test_xxl_on_each_hardware() -> None:
    plans = {name: make_plan(XXL, SMALL, name) for name in HARDWARE}
    assert {name: plan.model_parallel for name, plan in plans.items()} == {
        "v4-8": 1, "v5e-8": 2, "H100": 1, "H200": 1, "2xA100-40": 1,
    }  # fmt: skip
    assert all(plan.fits for plan in plans.values())
    assert plans["H100"].target_params == pytest.approx(2 * 11.135e9, rel=1e-3)
    assert plans["v5e-8"].target_params == pytest.approx(11.135e9, rel=1e-3)
    assert plans["H100"].exchanged == 0 < plans["v5e-8"].exchanged
    # Half of the parameters are the decoder's: 11.9 GB at 3,350 GB/s and the draft's seven.
    assert 3.5 < plans["H100"].milliseconds < 5


def test_what_does_not_fit_is_said() -> None:
    plan = make_plan(XXL, SMALL, "2xA100-40", dtype="float32", batch_size=64)
    assert plan.model_parallel == 2 and not plan.fits


def test_exchanged_bytes_of_a_ring() -> None:
    assert exchanged_bytes(TINY, 1, 4, 8) == 0
    reduced, logits = (3 * 1 + 1) * 8 * 16 * 4, 8 * 40 * 4
    assert exchanged_bytes(TINY, 2, 4, 8) == reduced + logits // 2


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["plan", "--hardware", "H100", "v5e-8"]) == 0
    out = capsys.readouterr().out
    assert "| H100 | 1 of 1 | 22.27 GB |" in out and "| v5e-8 | 2 of 8 |" in out
    for flags, message in (
        (["--target", "t5_1_1_xxxl"], "no model 't5_1_1_xxxl'; there is t5_1_1_xxl"),
        (["--hardware", "H1000"], "no plan for 'H1000'"),
        (["--model_parallel", "3"], "must divide the 4 devices"),
        (["--gamma", "0"], "--gamma must be 1 or above"),
    ):
        assert main.run(["plan", *flags]) != 0
        assert message in capsys.readouterr().err
