"""The profile: its parts add up to the round, and it counts the bytes that a call reads."""

import jax
import pytest

from specdec_jax import GREEDY, LookupDrafter, ModelDrafter, main
from specdec_jax.costs import Decoders
from specdec_jax.profiling import Profile, _decoder_bytes, profile, table
from tests.tiny_pair import tiny_pair

from .conftest import sources, tiny_t5


def made_up(**changes) -> Profile:
    times = {1: 0.010, 2: 0.011, 3: 0.012}
    values = {
        "target": times, "draft": 0.001, "target_prefill": 0.02, "draft_prefill": 0.002,
        "verification": 0.0005, "round": 0.016, "token": 0.010, "target_bytes": 10**8,
        "bandwidth": 2e10,
    }  # fmt: skip
    return Profile(**values | changes)


def test_what_is_left_of_a_round_is_the_loop_s() -> None:
    found = made_up()
    assert found.gamma == 2
    assert found.overhead == pytest.approx(0.016 - 0.012 - 2 * 0.001 - 0.0005)
    assert made_up(draft=None).overhead == pytest.approx(0.016 - 0.012 - 0.0005)


def test_the_table_says_where_it_goes() -> None:
    text = table(made_up())
    assert "| verifying call of the target, 3 tokens | 12.000 | 75.0 % |" in text
    assert "| 2 calls of the draft | 2.000 | 12.5 % |" in text
    assert "| sampling and verification | 0.500 | 3.1 % |" in text
    assert "T(2)/T(1) = 1.10, T(3)/T(1) = 1.20" in text and "c = 0.100" in text
    assert "reads 100.0 MB, 10.0 GB/s; the machine reads 20.0 GB/s" in text
    assert "draft" not in table(made_up(draft=None)).split("prefill")[0]


@pytest.mark.slow
def test_a_model_is_profiled() -> None:
    target, draft = tiny_t5(0), tiny_t5(1)
    models = Decoders(*target, ModelDrafter(draft[0]), draft[1])
    settings = {"gamma": 2, "max_new_tokens": 8, "sampling": GREEDY}
    found = profile(models, sources(2, 6, 40), jax.random.key(0), **settings)
    assert set(found.target) == {1, 2, 3} and all(t > 0 for t in found.target.values())
    assert found.draft > 0 and found.verification > 0 and found.token > 0
    assert found.bandwidth > 1e8
    lookup = models._replace(drafter=LookupDrafter(40), draft_params=())
    assert profile(lookup, sources(2, 6, 40), jax.random.key(0), **settings).draft is None


def test_a_call_reads_its_decoder_and_its_caches() -> None:
    model, params = tiny_t5(0)
    cache = model.prefill(params, sources(1, 4, 40), 8)
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params["decoder"]))
    caches = sum(leaf.nbytes for leaf in jax.tree.leaves(cache))
    assert _decoder_bytes(params, cache) == weights + caches


def test_the_command(capsys: pytest.CaptureFixture) -> None:
    command = ["profile", f"--model={tiny_pair()}", "--gamma=2", "--max_new_tokens=6"]
    assert main.run([*command, "--input_length=32"]) == 0
    assert "T(3)/T(1) = " in capsys.readouterr().out
    assert main.run([*command[:2], "--gamma=0"]) == 2
    assert "gamma must be 1 or above" in capsys.readouterr().err
