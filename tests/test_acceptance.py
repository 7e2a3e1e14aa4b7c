"""alpha and beta: against decodes, against each other, and their intervals' coverage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import GREEDY, LookupDrafter, ModelDrafter, Sampling, speculative_decode
from specdec_jax.acceptance import by_position, estimate, of_betas, of_decodes, teacher_forced

from .conftest import TableModel, table_params

V = 6
# Token 0 is never drawn: within an output it would be padding.
P, Q = (table_params(seed, V, scale=1.0).at[..., 0].set(-1e9) for seed in (0, 1))
TARGET, DRAFTER = TableModel(V), ModelDrafter(TableModel(V))
SOURCES = jnp.arange(400)[:, None] % 5
SAMPLED = Sampling(1.0)


def test_the_interval_covers_as_often_as_it_says():
    rng, covered = np.random.default_rng(0), 0
    for seed in range(200):
        examined = rng.integers(1, 20, 60)
        chance = np.clip(rng.normal(0.6, 0.15, 60), 0, 1)  # rows differ: alpha is .6
        found = estimate(rng.binomial(examined, chance), examined, seed=seed)
        covered += found.low <= 0.6 <= found.high
        assert found.total == examined.sum()
    assert 178 <= covered <= 199  # 95 % of 200, less what a bootstrap of 60 rows misses


def test_counting_is_the_decode_s_own():
    result = speculative_decode(
        TARGET, P, DRAFTER, Q, SOURCES[:40], jax.random.key(0), gamma=3, max_new_tokens=12,
        sampling=SAMPLED,
    )  # fmt: skip
    found = of_decodes([result])
    assert found.alpha.value == pytest.approx(float(result.acceptance_rate))
    by_place = [place.value for place in found.by_position]
    np.testing.assert_allclose(by_place, result.acceptance_by_position, rtol=1e-6)
    assert found.alpha.low < found.alpha.value < found.alpha.high
    twice = of_decodes([result, result])
    assert twice.alpha.total == 2 * found.alpha.total


def test_beta_is_what_p_and_q_share():
    outputs = np.random.default_rng(0).integers(1, V, (len(SOURCES), 10))
    betas = teacher_forced(TARGET, P, DRAFTER, Q, SOURCES, outputs, sampling=SAMPLED)
    assert betas.shape == outputs.shape
    before = np.pad(outputs, [(0, 0), (2, 0)])[:, :-1]
    row, at = 7, 4
    place = (int(SOURCES[row, 0]) + at) % P.shape[0]
    p, q = (jax.nn.softmax(table[place, before[row, at], before[row, at + 1]]) for table in (P, Q))
    assert betas[row, at] == pytest.approx(float(jnp.minimum(p, q).sum()), rel=1e-5)


def test_counting_and_teacher_forcing_agree():
    # At gamma = 1 a guess is judged at about every second prefix of what the target writes.
    settings = {"max_new_tokens": 40, "sampling": SAMPLED, "eos_id": -1}
    key = jax.random.key(0)
    decoded = speculative_decode(TARGET, P, DRAFTER, Q, SOURCES, key, gamma=1, **settings)
    betas = teacher_forced(TARGET, P, DRAFTER, Q, SOURCES, decoded.tokens, sampling=SAMPLED)
    assert of_decodes([decoded]).alpha.value == pytest.approx(of_betas(betas).value, abs=0.02)
    assert of_betas(betas).total == decoded.tokens.size


def test_greedy_beta_is_agreement_and_padding_is_left_out():
    outputs = np.full((3, 5), 2)
    outputs[1, 3:] = 0
    betas = np.asarray(teacher_forced(TARGET, P, DRAFTER, Q, SOURCES[:3], outputs, sampling=GREEDY))
    assert set(np.unique(betas[np.isfinite(betas)])) <= {0.0, 1.0}
    np.testing.assert_array_equal(np.isnan(betas), outputs == 0)
    same = teacher_forced(TARGET, P, DRAFTER, P, SOURCES[:3], outputs, sampling=SAMPLED)
    assert of_betas(same).value == pytest.approx(1.0)
    places = by_position(betas)
    assert [place.total for place in places] == [3, 3, 3, 2, 2]


def test_what_has_no_distribution_is_told():
    with pytest.raises(TypeError, match="LookupDrafter has not: count"):
        teacher_forced(TARGET, P, LookupDrafter(V), (), SOURCES, SOURCES, sampling=GREEDY)
    assert np.isnan(estimate([0], [0]).value)
