"""Beam search: T5X's numbers, a plain search written out, and the speculative one equal to it."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from specdec_jax import (
    BeamResult,
    T5Model,
    autoregressive_decode,
    beam_decode,
    speculative_beam_decode,
)

from .conftest import TINY, TableModel, sources, table_params, tiny_t5

V, EOS = 9, 1
TABLE = TableModel(V)


@pytest.mark.parametrize("feature_major", [False, True])
@pytest.mark.parametrize("beams", [1, 2, 4])
def test_hypotheses_and_scores_are_t5xs(golden: Any, beams: int, feature_major: bool) -> None:
    config, params, arrays = golden
    model = T5Model(config, feature_major)
    tokens, scores = arrays[f"beam{beams}_tokens"], arrays[f"beam{beams}_scores"]
    result = beam_decode(
        model,
        model.prepare(params),
        jnp.asarray(arrays["encoder_input_tokens"]),
        num_beams=beams,
        max_new_tokens=tokens.shape[-1],
    )
    # T5X puts the best last.
    np.testing.assert_array_equal(result.tokens, tokens[:, ::-1])
    np.testing.assert_allclose(result.scores, scores[:, ::-1], rtol=0, atol=1e-4)


def search(
    logits: np.ndarray, source: int, w: int, alpha: float, length: int
) -> list[tuple[float, tuple[int, ...]]]:
    """Beam search over a `TableModel`, hypothesis by hypothesis."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[tuple[float, tuple[int, ...]]] = []
    for step in range(length):
        found = []
        for log_p, prefix in live:
            previous, current = (0, 0, *prefix)[-2:]
            x = logits[(source + step) % len(logits), previous, current].astype(np.float64)
            for token, value in enumerate(x - np.log(np.exp(x).sum())):
                found.append((log_p + value, (*prefix, token)))
        found = sorted(found, reverse=True)[: 2 * w]
        live = [each for each in found if each[1][-1] != EOS][:w]
        penalty = ((5 + step + 1) / 6) ** alpha
        finished += [(log_p / penalty, text) for log_p, text in found if text[-1] == EOS]
        finished = sorted(finished, reverse=True)[:w]
        bound = live[0][0] / ((5 + length + 1) / 6) ** alpha
        if len(finished) == w and finished[-1][0] > bound:
            break
    return finished or live


def plain(params: Array, inputs: Array, **settings: Any) -> BeamResult:
    return beam_decode(TABLE, params, inputs, **settings)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("w", [1, 2, 4])
def test_it_is_the_search_written_out(w: int, alpha: float) -> None:
    inputs = jnp.arange(6)[:, None]
    for seed in range(3):
        params = table_params(seed, V)
        result = plain(params, inputs, num_beams=w, alpha=alpha, max_new_tokens=7)
        for source in range(6):
            expected = search(np.asarray(params), source, w, alpha, 7)
            for beam, (score, tokens) in enumerate(expected):
                length = int(result.lengths[source, beam])
                assert tuple(result.tokens[source, beam, :length].tolist()) == tokens
                assert not result.tokens[source, beam, length:].any()
                np.testing.assert_allclose(result.scores[source, beam], score, rtol=1e-5)
            assert (result.scores[source, len(expected) :] < -1e6).all()
            assert not result.lengths[source, len(expected) :].any()


def test_a_row_in_a_batch_is_the_row_alone() -> None:
    params, inputs = table_params(0, V), jnp.arange(5)[:, None]
    together = plain(params, inputs, num_beams=3, max_new_tokens=9)
    for row in range(5):
        alone = plain(params, inputs[row : row + 1], num_beams=3, max_new_tokens=9)
        np.testing.assert_array_equal(together.tokens[row], alone.tokens[0])
        assert together.steps[row] == alone.steps[0]


def check(target: Any, target_params: Any, draft: Any, draft_params: Any, inputs: Array, **k: Any):
    drafting = {name: k.pop(name) for name in ("num_draft_beams", "gamma") if name in k}
    expected = beam_decode(target, target_params, inputs, **k)
    result = speculative_beam_decode(
        target, target_params, draft, draft_params, inputs, **drafting, **k
    )
    np.testing.assert_array_equal(result.tokens, expected.tokens)
    np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(result.lengths, expected.lengths)
    np.testing.assert_array_equal(result.steps, expected.steps)
    assert (result.rounds <= result.steps).all()
    assert result.target_calls == result.rounds.max()
    return result


@pytest.mark.parametrize(
    ("w", "u", "gamma"),
    [
        pytest.param(w, u, gamma, marks=[] if gamma == 4 or (w, u) == (2, 4) else pytest.mark.slow)
        for w, u in [(1, 1), (1, 3), (2, 2), (2, 4), (4, 4), (4, 8)]
        for gamma in (1, 2, 4)
    ],
)
def test_with_a_draft_it_is_the_same(w: int, u: int, gamma: int) -> None:
    for seed, noise in itertools.product(range(3), (0.3, 3.0)):
        params = table_params(seed, V)
        draft = params + table_params(seed + 10, V, scale=noise)
        check(
            TABLE,
            params,
            TABLE,
            draft,
            jnp.arange(4)[:, None],
            num_beams=w,
            num_draft_beams=u,
            gamma=gamma,
            max_new_tokens=8,
        )


@pytest.mark.parametrize("length", [1, 2, 3])
def test_near_the_end_of_the_buffer(length: int) -> None:
    params = table_params(1, V)
    check(TABLE, params, TABLE, params, jnp.arange(3)[:, None], gamma=4, max_new_tokens=length)


def test_a_copy_of_the_target_is_always_followed() -> None:
    # No EOS within sight: every step is gamma + 1 steps a call.
    params = table_params(2, V).at[..., EOS].set(-50.0)
    result = check(
        TABLE,
        params,
        TABLE,
        params,
        jnp.arange(3)[:, None],
        num_beams=3,
        num_draft_beams=3,
        gamma=3,
        max_new_tokens=16,
    )
    assert result.target_calls == 4 and (result.rounds == 4).all()


@pytest.mark.parametrize("seed", range(2))
def test_of_a_t5_with_another_t5(seed: int) -> None:
    model, params = tiny_t5(seed)
    _, other = tiny_t5(seed + 5)
    near = jax.tree.map(lambda p, n: p + 0.1 * n, params, other)
    inputs = sources(3, 8, TINY.vocab_size, seed)
    result = check(model, params, model, near, inputs, num_beams=2, max_new_tokens=12, gamma=2)
    assert (result.rounds < result.steps).any()


def test_a_smaller_vocabulary_of_the_draft() -> None:
    params = table_params(3, V)
    near = params[:, :-1, :-1, :-1]
    check(TABLE, params, TableModel(V - 1), near, jnp.arange(3)[:, None], max_new_tokens=6)


def test_a_single_beam_without_penalty_is_greedy_until_the_first_end() -> None:
    params, inputs = table_params(4, V).at[..., EOS].set(-50.0), jnp.arange(4)[:, None]
    result = plain(params, inputs, num_beams=1, max_new_tokens=10)
    greedy = autoregressive_decode(TABLE, params, inputs, max_new_tokens=10, eos_id=-1)
    np.testing.assert_array_equal(result.tokens[:, 0], greedy.tokens)
    np.testing.assert_allclose(result.scores[:, 0], greedy.scores, rtol=1e-5)


def test_it_is_one_loop_on_the_device() -> None:
    model, params = tiny_t5(0)
    inputs = sources(1, 8, TINY.vocab_size)

    def run(params: Any) -> BeamResult:
        return speculative_beam_decode(model, params, model, params, inputs, max_new_tokens=6)

    program = jax.jit(run).lower(params).as_text()
    assert program.count("stablehlo.while") == 1
    assert "callback" not in program


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 0}, "num_beams must be"),
        ({"num_beams": 5}, "too small for 5 beams"),
        ({"num_draft_beams": 3}, "at least num_beams"),
        ({"num_draft_beams": 10}, "too small"),
        ({"gamma": 0}, "gamma must be"),
        ({"alpha": -1.0}, "alpha must be"),
        ({"eos_id": -1}, "needs an eos_id"),
        ({"max_new_tokens": 0}, "max_new_tokens must be"),
    ],
)
def test_wrong_arguments_are_refused(settings: dict[str, Any], message: str) -> None:
    params = table_params(0, V)
    with pytest.raises(ValueError, match=message):
        speculative_beam_decode(TABLE, params, TABLE, params, jnp.ones((1, 1), int), **settings)
