"""The trace tells what speculative_decode did, round by round."""

import dataclasses

import numpy as np
import pytest
from rich.console import Console

from specdec_jax import (
    GREEDY,
    EarlyExitDrafter,
    Sampling,
    pretrained,
    speculative_decode,
)
from specdec_jax.gamma import ConfidentGamma
from specdec_jax.terminal import render_trace
from specdec_jax.trace import Round, trace_decode
from specdec_jax.vocabulary import encode_sources
from tests.conftest import TINY, sources, tiny_t5
from tests.tiny_pair import tiny_pair

LINES = ("tools", "a dog", "The fox", "open", "lazy", "b", "Datei", "und", "jumps", "package")


@pytest.fixture(scope="module")
def pair():
    return pretrained.load(tiny_pair())


def arguments(pair, line):
    inputs = encode_sources(pair.vocabulary, [line], 32)
    return pair.target, pair.target_params, pair.drafter, pair.draft_params, inputs


@pytest.fixture(scope="module", params=[GREEDY, Sampling(1.0)], ids=["greedy", "sampled"])
def both(request, pair):
    import jax

    key = jax.random.key(3)
    settings = {"gamma": 3, "max_new_tokens": 14, "sampling": request.param}
    for line in LINES:
        rounds, traced = trace_decode(*arguments(pair, line), key, **settings)
        accepted = [one.accepted for one in rounds]
        if min(accepted) < 3 == max(accepted):  # without both kinds a test shows little
            return speculative_decode(*arguments(pair, line), key, **settings), rounds, traced
    raise AssertionError("no line has fully accepted rounds and others")


def test_it_is_the_same_decode(both):
    result, _, traced = both
    for name in ("tokens", "lengths", "rounds", "examined", "accepted", "drafted"):
        np.testing.assert_array_equal(getattr(result, name), getattr(traced, name), err_msg=name)


def test_the_rounds_add_up_to_it(both):
    result, rounds, _ = both
    emitted = [token for one in rounds for token in one.emitted]
    assert emitted == result.tokens[0, : int(result.lengths[0])].tolist()
    assert len(rounds) == int(result.rounds[0])
    assert sum(one.accepted for one in rounds) == int(result.accepted.sum())


def test_every_round_is_guesses_and_one_token_of_the_target(both):
    _, rounds, _ = both
    made = 0
    for one in rounds:
        assert one.kept == one.guesses[: one.accepted]
        assert len(one.guesses) == min(3, 13 - made)  # as many as can stand
        made += len(one.emitted)
        if one.from_target is not None:
            assert one.emitted == (*one.kept, one.from_target)
        if one.rejected is not None:
            assert one.rejected == one.guesses[one.accepted]
    assert all(one.from_target is not None for one in rounds[:-1])


def test_a_row_that_ends_in_a_guess_has_no_token_of_the_target(pair):
    settings = {"gamma": 3, "max_new_tokens": 14}
    for line in LINES:
        rounds, _ = trace_decode(*arguments(pair, line), **settings)
        # A guess that was accepted with another behind it, and was never emitted before.
        emitted = [token for one in rounds for token in one.emitted]
        kept = [token for one in rounds for token in one.kept[:-1]]
        eos = next((token for token in kept if emitted.count(token) == 1), None)
        if eos is not None:
            break
    assert eos is not None
    rounds, result = trace_decode(*arguments(pair, line), **settings, eos_id=eos)
    last = rounds[-1]
    assert last.emitted[-1] == eos
    assert last.kept == last.emitted
    assert last.from_target is None
    assert last.rejected is None
    assert int(result.lengths[0]) == sum(len(one.emitted) for one in rounds)


def test_every_token_has_its_chances(both):
    _, rounds, _ = both
    for one in rounds:
        own = () if one.from_target is None else (one.from_target,)
        assert tuple(chances.token for chances in one.chances) == (*one.guesses, *own)
        for chances in one.chances[: one.accepted]:
            assert chances.p > 0 and chances.q > 0
        if one.rejected is not None:
            rejected, own_token = one.chances[one.accepted], one.chances[-1]
            assert rejected.p < rejected.q  # or it would have stood for sure
            assert own_token.p > own_token.q  # or nothing of it would have been left
            assert rejected.likely == own_token.likely
        elif own:
            assert one.chances[-1].q is None


def test_a_draft_within_the_target_whose_gamma_varies():
    target, params = tiny_t5(0, dataclasses.replace(TINY, num_decoder_layers=2))
    models = (target, params, EarlyExitDrafter(target, 1), params, sources(1, 8, TINY.vocab_size))
    settings = {"gamma": ConfidentGamma((1, 3), 0.5), "max_new_tokens": 14, "eos_id": -1}
    rounds, traced = trace_decode(*models, **settings)
    np.testing.assert_array_equal(speculative_decode(*models, **settings).tokens, traced.tokens)
    assert len({len(one.guesses) for one in rounds}) > 1
    for one in rounds:
        # Greedily, the likeliest is the only one, and what is written.
        stands = [*one.chances[: one.accepted], one.chances[-1]]
        assert [c.likely[0][:2] for c in stands] == [(c.token, 1) for c in stands]


def test_wrong_arguments_are_refused(pair):
    *models, inputs = arguments(pair, "tools")
    with pytest.raises(ValueError, match="gamma"):
        trace_decode(*models, inputs, gamma=0)
    with pytest.raises(ValueError, match="one source, not of 2"):
        trace_decode(*models, np.concatenate([inputs, inputs]))


ROUNDS = [
    Round((5, 6, 7), 2, (5, 6, 8)),
    Round((5, 6, 7), 3, (5, 6, 7, 9)),
    Round((5, 1, 7), 2, (5, 1)),
]


class Letters:
    """A vocabulary of a letter an id."""

    def pieces(self, ids):
        return [f"\u2581{chr(96 + i)}" for i in ids]


def test_a_trace_in_colour():
    console = Console(force_terminal=True, color_system="standard", no_color=False, width=80)
    with console.capture() as capture:
        for line in render_trace(ROUNDS, Letters(), colour=True):
            console.print(line)
    first, second, third = capture.get().splitlines()
    assert "\x1b[32m e f" in first
    assert "\x1b[9;31m g" in first
    assert "\x1b[1;34m h" in first
    assert "31m" not in second
    assert "\x1b[32m e f g" in second
    assert "31m" not in third
    assert "34m" not in third


def test_a_trace_without_colour():
    lines = [line.plain for line in render_trace(ROUNDS, Letters(), colour=False)]
    assert lines == ["   1  e f [-g-] {+h+}", "   2  e f g {+i+}", "   3  e a"]
