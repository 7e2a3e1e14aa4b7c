"""Decoding by equivalence, and the cases that users of other systems reported.

"Plain" is `autoregressive_decode` of the target.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from specdec_jax import (
    DecodeResult,
    Draft,
    ModelDrafter,
    Sampling,
    T5Config,
    T5Model,
    autoregressive_decode,
    speculative_decode,
)
from specdec_jax.sampling import distribution, draw_noise

from .conftest import TINY, TableModel, sources, table_params, tiny_t5

V = 16
TARGET = TableModel(V)
TARGET_PARAMS = table_params(0, V)
DRAFT_PARAMS = TARGET_PARAMS + 0.7 * table_params(1, V, scale=1.0)
INPUTS = jnp.array([[2], [3], [4], [5]])
NO_EOS = -1


def plain(inputs: Array = INPUTS, key: Array | None = None, **settings: Any) -> DecodeResult:
    return autoregressive_decode(TARGET, TARGET_PARAMS, inputs, key, **settings)


def speculative(
    inputs: Array = INPUTS, key: Array | None = None, draft: Any = DRAFT_PARAMS, **settings: Any
) -> DecodeResult:
    return speculative_decode(
        TARGET, TARGET_PARAMS, ModelDrafter(TARGET), draft, inputs, key, **settings
    )


def assert_same(one: DecodeResult, other: DecodeResult) -> None:
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.lengths, other.lengths)
    np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)


# Equivalence -----------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("batch", [1, 4])
def test_greedy_is_plain_token_for_token(gamma: int, batch: int) -> None:
    result = speculative(INPUTS[:batch], gamma=gamma, max_new_tokens=40, eos_id=NO_EOS)
    assert_same(result, plain(INPUTS[:batch], max_new_tokens=40, eos_id=NO_EOS))
    assert 0 < result.acceptance_rate < 1  # both branches were taken
    assert result.target_calls < 40


def _check_random_t5s(seeds: range, gammas: range) -> None:
    inputs, varied = sources(2, 8, TINY.vocab_size), 0
    for seed in seeds:
        model, params = tiny_t5(seed)
        # The target itself, disturbed: a draft that is often right.
        _, other = tiny_t5(seed + 1)
        draft = jax.tree.map(lambda x, y: x + 0.1 * y, params, other)
        settings = {"max_new_tokens": 20, "eos_id": NO_EOS}
        expected = autoregressive_decode(model, params, inputs, **settings)
        varied += len(np.unique(expected.tokens)) > 3
        for gamma in gammas:
            result = speculative_decode(
                model, params, ModelDrafter(model), draft, inputs, gamma=gamma, **settings
            )
            assert_same(result, expected)
    assert varied > 0.5 * len(seeds)


def test_greedy_is_plain_on_random_t5s() -> None:
    _check_random_t5s(range(6), range(1, 9, 3))


@pytest.mark.slow
def test_greedy_is_plain_on_a_hundred_random_t5s() -> None:  # case 2
    _check_random_t5s(range(100), range(1, 9))


def test_a_smaller_t5_drafts_for_a_larger_one() -> None:
    target, params = tiny_t5(0)
    config = dataclasses.replace(TINY, emb_dim=8, num_heads=1, num_decoder_layers=1)
    draft, draft_params = tiny_t5(1, config)
    inputs = sources(3, 8, TINY.vocab_size)
    expected = autoregressive_decode(target, params, inputs, max_new_tokens=20)
    result = speculative_decode(
        target, params, ModelDrafter(draft), draft_params, inputs, gamma=4, max_new_tokens=20
    )
    assert_same(result, expected)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_depends_on_its_input_and_its_key_alone(temperature: float) -> None:  # case 21
    settings = {"sampling": Sampling(temperature), "max_new_tokens": 30, "gamma": 3}
    keys = jax.random.split(jax.random.key(5), 4)
    together = speculative(key=keys, **settings)
    assert len({int(rounds) for rounds in together.rounds}) > 1  # mixed acceptance
    for row in range(4):
        alone = speculative(INPUTS[row : row + 1], keys[row : row + 1], **settings)
        for whole, part in zip(together, alone, strict=True):
            if whole.ndim:
                np.testing.assert_allclose(whole[row], part[0], atol=1e-4)


def test_rows_of_a_t5_with_padded_sources_are_those_rows_alone() -> None:  # case 21
    model, params = tiny_t5(2)
    _, draft = tiny_t5(4)
    inputs = sources(4, 9, TINY.vocab_size)
    settings = {"gamma": 3, "max_new_tokens": 16}
    together = speculative_decode(model, params, ModelDrafter(model), draft, inputs, **settings)
    sizes = (inputs != 0).sum(axis=1)
    for row, width in ((0, 9), (1, 9), (2, 9), (3, 9), (int(sizes.argmin()), int(sizes.min()))):
        alone = speculative_decode(
            model, params, ModelDrafter(model), draft, inputs[row : row + 1, :width], **settings
        )
        np.testing.assert_array_equal(together.tokens[row], alone.tokens[0])


def test_log_probs_are_the_teacher_forced_models() -> None:
    model, params = tiny_t5(0)
    inputs = sources(3, 8, TINY.vocab_size)
    result = speculative_decode(
        model,
        params,
        ModelDrafter(model),
        tiny_t5(1)[1],
        inputs,
        jax.random.key(0),
        gamma=3,
        max_new_tokens=12,
        sampling=Sampling(0.7, top_k=5),
    )
    shifted = jnp.pad(result.tokens, ((0, 0), (1, 0)))[:, :-1]
    logits = jax.jit(model.module.apply)({"params": params}, inputs, shifted)
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), result.tokens[..., None], -1)[..., 0]
    emitted = jnp.arange(12) < result.lengths[:, None]
    np.testing.assert_allclose(result.log_probs, jnp.where(emitted, log_p, 0), atol=1e-4)
    np.testing.assert_allclose(result.scores, result.log_probs.sum(-1))


# Cases -----------------------------------------------------------------------


def test_a_copy_of_the_target_needs_eleven_calls_for_64_tokens() -> None:  # case 1
    for temperature in (0.0, 1.0):
        result = speculative(
            INPUTS[:1],
            jax.random.key(0),
            draft=TARGET_PARAMS,
            gamma=5,
            max_new_tokens=64,
            eos_id=NO_EOS,
            sampling=Sampling(temperature),
        )
        assert result.target_calls == result.rounds[0] == 11
        assert result.acceptance_rate == 1.0
        assert result.lengths[0] == 64


def test_a_t5_that_drafts_for_itself_is_accepted_throughout() -> None:  # case 1
    model, params = tiny_t5(0)
    inputs = sources(2, 8, TINY.vocab_size)
    result = speculative_decode(
        model, params, ModelDrafter(model), params, inputs, gamma=5, max_new_tokens=64, eos_id=-1
    )
    assert result.target_calls == 11
    assert result.acceptance_rate == 1.0


@pytest.mark.parametrize("third", [0, 1, 2])
def test_an_eos_accepted_in_mid_round_ends_the_row_there(third: int) -> None:  # case 4
    free = plain(INPUTS[:1], max_new_tokens=12, eos_id=NO_EOS).tokens[0]
    eos = int(free[third])
    first = int(jnp.argmax(free == eos))
    result = speculative(INPUTS[:1], draft=TARGET_PARAMS, gamma=5, max_new_tokens=12, eos_id=eos)
    assert_same(result, plain(INPUTS[:1], max_new_tokens=12, eos_id=eos))
    assert result.lengths[0] == first + 1
    np.testing.assert_array_equal(result.tokens[0, : first + 1], free[: first + 1])
    assert (result.tokens[0, first + 1 :] == 0).all()
    assert (result.log_probs[0, first + 1 :] == 0).all()
    # Only what was emitted counts.
    assert result.accepted.sum() == result.examined.sum() == first + 1
    assert result.drafted.sum() == 5


@pytest.mark.slow
def test_a_round_never_exceeds_the_budget() -> None:  # cases 5 and 6
    free = plain(max_new_tokens=12, eos_id=NO_EOS)
    for gamma in (1, 4):
        for limit in range(1, gamma + 3):
            for draft in (TARGET_PARAMS, DRAFT_PARAMS):
                result = speculative(draft=draft, gamma=gamma, max_new_tokens=limit, eos_id=NO_EOS)
                np.testing.assert_array_equal(result.tokens, free.tokens[:, :limit])
                assert (result.lengths == limit).all()
                assert result.accepted.sum() <= 4 * limit


def test_a_nan_in_the_target_is_an_error_and_never_a_token() -> None:  # case 9
    free = plain(max_new_tokens=6, eos_id=NO_EOS).tokens[1]
    broken = TARGET_PARAMS.at[(INPUTS[1, 0] + 3) % 7, free[1], free[2], 3].set(jnp.nan)
    for decode in (
        lambda **k: autoregressive_decode(TARGET, broken, INPUTS, **k),
        lambda **k: speculative_decode(
            TARGET, broken, ModelDrafter(TARGET), DRAFT_PARAMS, INPUTS, gamma=4, **k
        ),
    ):
        with pytest.raises(FloatingPointError, match="row 1"):
            decode(max_new_tokens=6, eos_id=NO_EOS)
        result = jax.jit(lambda decode=decode: decode(max_new_tokens=6, eos_id=NO_EOS))()
        np.testing.assert_array_equal(result.finite, [True, False, True, True])
        np.testing.assert_array_equal(result.tokens[1], [*free[:3], 0, 0, 0])
        assert result.lengths[1] == 3 and jnp.isfinite(result.log_probs).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_nan_in_the_draft_costs_speed_only(temperature: float) -> None:  # case 9
    settings = {"gamma": 3, "max_new_tokens": 20, "eos_id": NO_EOS}
    result = speculative(
        key=jax.random.key(0),
        draft=jnp.full_like(TARGET_PARAMS, jnp.nan),
        sampling=Sampling(temperature),
        **settings,
    )
    assert (result.lengths == 20).all() and result.accepted.sum() == 0
    if temperature == 0:
        np.testing.assert_array_equal(result.tokens, plain(max_new_tokens=20, eos_id=-1).tokens)


@pytest.mark.parametrize("top", [{"top_k": 4}, {"top_p": 0.6}])
def test_nothing_outside_top_k_or_top_p_is_emitted(top: dict[str, Any]) -> None:  # case 15
    sampling = Sampling(1.0, **top)
    inputs = jnp.tile(INPUTS, (20, 1))
    result = speculative(
        inputs, jax.random.key(0), gamma=3, max_new_tokens=20, eos_id=-1, sampling=sampling
    )
    tokens = np.pad(np.asarray(result.tokens), ((0, 0), (2, 0)))
    place = (np.asarray(inputs) + np.arange(20)) % 7
    p = distribution(TARGET_PARAMS[place, tokens[:, :-2], tokens[:, 1:-1]], sampling)
    assert (jnp.take_along_axis(p, result.tokens[..., None], -1) > 0).all()


def test_an_unsupported_option_is_refused() -> None:  # case 17
    with pytest.raises(TypeError, match="repetition_penalty"):
        speculative(repetition_penalty=1.2)


def test_seeds_are_used_and_repeat_exactly() -> None:  # case 20
    def run(seed: int) -> tuple[int, ...]:
        result = speculative(
            INPUTS[:1], jax.random.key(seed), gamma=3, max_new_tokens=20, sampling=Sampling()
        )
        return tuple(result.tokens[0].tolist())

    assert len({run(seed) for seed in range(20)}) == 20
    assert run(3) == run(3)


def test_all_uniforms_of_a_decode_are_distinct() -> None:  # case 20
    noise = draw_noise(jax.random.split(jax.random.key(0), 4), 40)
    used = np.concatenate([np.ravel(u) for u in noise[:3]])
    assert len(set(used.tolist())) == 3 * 4 * 40
    assert used.min() >= 0 and used.max() < 1 and abs(used.mean() - 0.5) < 0.05
    # A position's noise is its own, wherever a round begins.
    later = noise.at(jnp.array([0, 3, 5, 36]), 4)
    np.testing.assert_array_equal(later.token[1], noise.token[1, 3:7])
    np.testing.assert_array_equal(later.guess[3], noise.guess[3, 36:])


def test_a_position_without_a_guess_takes_plain_samplings_token() -> None:
    nothing = jnp.full_like(TARGET_PARAMS, jnp.nan)
    settings = {"max_new_tokens": 30, "eos_id": NO_EOS, "sampling": Sampling(1.3, top_k=9)}
    result = speculative(key=jax.random.key(2), draft=nothing, gamma=2, **settings)
    np.testing.assert_array_equal(result.tokens, plain(key=jax.random.key(2), **settings).tokens)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_vocabularies_padded_to_different_sizes_work(temperature: float) -> None:  # case 26
    small, large = (TableModel(size) for size in (V, V + 28))
    rare = table_params(3, V + 28) - 2.0 * (jnp.arange(V + 28) >= V)
    settings = {
        "gamma": 3,
        "max_new_tokens": 30,
        "eos_id": NO_EOS,
        "sampling": Sampling(temperature),
    }
    for target, params, draft, draft_params in (
        (large, rare, small, rare[:, :V, :V, :V]),
        (small, rare[:, :V, :V, :V], large, rare),
    ):
        result = speculative_decode(
            target, params, ModelDrafter(draft), draft_params, INPUTS, jax.random.key(1), **settings
        )
        assert result.tokens.max() < target.vocab_size and result.accepted.sum() > 0
        if temperature == 0:
            expected = autoregressive_decode(
                target, params, INPUTS, max_new_tokens=30, eos_id=NO_EOS
            )
            np.testing.assert_array_equal(result.tokens, expected.tokens)


def test_bfloat16_differs_from_plain_only_at_near_ties() -> None:  # case 3
    config = dataclasses.replace(TINY, dtype="bfloat16")
    inputs = sources(4, 8, TINY.vocab_size)
    for seed in range(4):
        params = tiny_t5(seed)[1]
        model = T5Model(config, True)
        expected = autoregressive_decode(model, params, inputs, max_new_tokens=20)
        result = speculative_decode(
            model, params, ModelDrafter(model), params, inputs, gamma=5, max_new_tokens=20
        )
        for row in np.flatnonzero((result.tokens != expected.tokens).any(-1)):
            at = int(jnp.argmax(result.tokens[row] != expected.tokens[row]))
            prefix = jnp.pad(expected.tokens[row, :at], (1, 0))[None]
            logits = jax.jit(model.module.apply)({"params": params}, inputs[row : row + 1], prefix)[
                0, -1
            ]
            best, second = jax.lax.top_k(logits, 2)[0]
            ulp = 2.0 ** (np.floor(np.log2(abs(float(best)))) - 7)
            assert best - second <= 4 * ulp


# Counters --------------------------------------------------------------------


def test_counters_agree_with_each_other() -> None:
    result = speculative(gamma=4, max_new_tokens=30, eos_id=NO_EOS)
    assert result.target_calls == result.rounds.max()
    # A round emits its accepted guesses and, unless the budget ends it, one more token.
    emitted = result.accepted.sum(-1) + result.rounds
    assert ((result.lengths == emitted) | (result.lengths == emitted - 1)).all()
    assert (result.accepted <= result.examined).all()
    assert (result.examined <= result.drafted).all()
    # Near the budget's end fewer guesses can stand, and fewer are made.
    assert (result.drafted[:, 0] >= result.rounds - 1).all()
    assert (result.drafted <= result.rounds[:, None]).all()
    assert (jnp.diff(result.drafted, axis=1) <= 0).all()
    assert (jnp.diff(result.examined, axis=1) <= 0).all()
    np.testing.assert_allclose(
        result.acceptance_rate, result.accepted.sum() / result.examined.sum()
    )
    np.testing.assert_allclose(
        result.acceptance_by_position, result.accepted.sum(0) / result.examined.sum(0)
    )
    np.testing.assert_allclose(result.tokens_per_call, 120 / result.rounds.sum())


def test_plain_takes_a_call_a_token_and_makes_no_guess() -> None:
    result = plain(max_new_tokens=9, eos_id=NO_EOS)
    assert result.target_calls == 9 and (result.rounds == 9).all()
    assert result.drafted.shape == (4, 0) and result.tokens_per_call == 1


# Drafters and rules ----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Unsure:
    """A drafter that makes no guess on even positions: `valid` is honoured."""

    inner: ModelDrafter
    vocab_size: int = V
    may_pass: bool = True

    def init(self, params: Any, inputs: Array, length: int, **k: Any) -> Any:
        return self.inner.init(params, inputs, length, **k)

    def propose(self, params: Any, state: Any, tokens: Array, length: Array, *a: Any, **k: Any):
        draft, state = self.inner.propose(params, state, tokens, length, *a, **k)
        sure = (length[:, None] + jnp.arange(draft.tokens.shape[1])) % 2 == 1
        return Draft(draft.tokens, jnp.where(sure[..., None], draft.q, 0.0), sure), state


def test_a_guess_that_was_not_made_is_never_accepted() -> None:
    result = speculative_decode(
        TARGET,
        TARGET_PARAMS,
        Unsure(ModelDrafter(TARGET)),
        TARGET_PARAMS,
        INPUTS,
        gamma=3,
        max_new_tokens=20,
        eos_id=NO_EOS,
    )
    np.testing.assert_array_equal(result.tokens, plain(max_new_tokens=20, eos_id=-1).tokens)
    assert result.acceptance_rate == 1.0  # all that were made
    assert (result.rounds > 5).all()
    assert (result.drafted.sum(-1) < 3 * result.rounds).all()


# Errors ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 0}, "gamma must be"),
        ({"gamma": 2.5}, "gamma must be"),
        ({"gamma": 3.0}, "gamma must be"),
        ({"gamma": float("nan")}, "gamma must be"),
        ({"max_new_tokens": 10**12}, "from 1 to 1048576"),
        ({"eos_id": 1.5}, "eos_id must be"),
        ({"max_new_tokens": 0}, "max_new_tokens must be"),
        ({"eos_id": V}, "eos_id must be"),
        ({"sampling": Sampling(1.0)}, "needs a key"),
        ({"key": jnp.zeros(2, jnp.uint32)}, "typed key"),
        ({"key": jax.random.split(jax.random.key(0), 3)}, "for each of the 4 rows"),
        ({"inputs": jnp.array([1, 2])}, "inputs must be"),
        ({"inputs": jnp.ones((2, 3))}, "inputs must be"),
        ({"inputs": jnp.zeros((0, 3), jnp.int32)}, "inputs must be"),
        ({"inputs": jnp.array([[V]])}, "the id 16, outside"),
        ({"inputs": jnp.array([[3, -1]])}, "the id -1, outside"),
    ],
)
def test_wrong_arguments_are_refused_before_compilation(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        speculative(**settings)


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="144 ids and the target's 16"):
        speculative_decode(
            TARGET, TARGET_PARAMS, ModelDrafter(TableModel(V + 128)), DRAFT_PARAMS, INPUTS
        )


# Compilation -----------------------------------------------------------------


def test_one_program_a_shape_with_the_caches_in_place() -> None:
    from specdec_jax.decoding import _speculative_decode

    model, params = tiny_t5(0, T5Config(**dataclasses.asdict(TINY) | {"num_decoder_layers": 1}))
    inputs = sources(1, 8, TINY.vocab_size)
    settings = {"gamma": 3, "max_new_tokens": 17}
    speculative_decode(model, params, ModelDrafter(model), params, inputs, **settings)
    compiled = _speculative_decode._cache_size()
    again = T5Model(model.config, model.feature_major)  # an equal model, made anew
    speculative_decode(again, params, ModelDrafter(again), params, inputs[:, ::-1], **settings)
    assert _speculative_decode._cache_size() == compiled
