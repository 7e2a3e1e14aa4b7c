"""The objectives of distillation, against NumPy and against what they are bounds of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import distill_losses
from specdec_jax.distill_losses import OBJECTIVES, Teacher

V = 12


def random_logits(seed, *shape):
    return 2 * jax.random.normal(jax.random.key(seed), (*shape, V))


def softmax(x):
    e = np.exp(np.asarray(x, np.float64) - np.max(x, -1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def teacher_of(logits, k):
    """The k likeliest of a target, exactly; by NumPy's sort."""
    p = softmax(logits)
    if k == V:
        return Teacher(np.zeros((*p.shape[:-1], 0), np.int32), p, np.zeros(p.shape[:-1]))
    ids = np.argsort(-p, axis=-1, kind="stable")[..., :k]
    probs = np.take_along_axis(p, ids, -1)
    return Teacher(ids.astype(np.uint16), probs, 1 - probs.sum(-1))


REFERENCE = {
    "forward_kl": lambda p, q: (p * np.log(p / q)).sum(-1),
    "reverse_kl": lambda p, q: (q * np.log(q / p)).sum(-1),
    "total_variation": lambda p, q: 0.5 * np.abs(p - q).sum(-1),
    "jensen_shannon": lambda p, q: (
        0.5 * (p * np.log(2 * p / (p + q)) + q * np.log(2 * q / (p + q))).sum(-1)
    ),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objectives_are_numpys_and_vanish_where_q_is_p(name):
    a, b = random_logits(0, 3, 4), random_logits(1, 3, 4)
    p, q = softmax(a), softmax(b)
    found = OBJECTIVES[name](jnp.asarray(p, jnp.float32), jax.nn.log_softmax(b))
    np.testing.assert_allclose(found, REFERENCE[name](p, q), rtol=1e-4)
    same = OBJECTIVES[name](jnp.asarray(p, jnp.float32), jax.nn.log_softmax(a))
    np.testing.assert_allclose(same, 0, atol=1e-5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_probability_of_zero_gives_finite_losses_and_gradients(name):
    p = jnp.zeros((1, V)).at[0, 3].set(1.0)
    logits = jnp.zeros((1, V)).at[0, 5].set(60.0)  # q is 0 where p is 1, to float32

    def loss(logits):
        return OBJECTIVES[name](p, jax.nn.log_softmax(logits)).sum()

    value, gradient = jax.value_and_grad(loss)(logits)
    assert np.isfinite(value) and np.isfinite(gradient).all() and value > 0.5


def test_total_variation_is_what_is_rejected():
    """Theorem 3.5: beta is 1 - the total variation distance."""
    a, b = random_logits(2, 5), random_logits(3, 5)
    targets = jnp.array([[3, 4, 0, 2, 1]])
    beta, same, count = distill_losses.acceptance(b[None], targets, *teacher_of(a[None], V))
    real = np.array([0, 1, 3, 4])
    p, q = softmax(a)[real], softmax(b)[real]
    assert beta == pytest.approx(np.minimum(p, q).sum(), rel=1e-5)
    assert same == (p.argmax(-1) == q.argmax(-1)).sum() and count == 4


@pytest.mark.parametrize("name", OBJECTIVES)
def test_all_of_p_gives_the_full_objective_and_fewer_a_lower_bound(name):
    a, b = random_logits(4, 2, 6), random_logits(5, 2, 6)
    targets = jnp.full((2, 6), 3)
    full = REFERENCE[name](softmax(a), softmax(b))
    losses = distill_losses.mixed({name: 1.0})
    np.testing.assert_allclose(losses(b, targets, *teacher_of(a, V)), full, rtol=1e-4)
    before = np.zeros_like(full)
    for k in (1, 3, 6, V - 1):
        bound = np.asarray(losses(b, targets, *teacher_of(a, k)))
        slack = 1e-5 + 2e-4 * full  # of float32
        assert (bound <= full + slack).all() and (bound >= before - slack).all()
        before = bound
    np.testing.assert_allclose(before, full, rtol=1e-3)  # a rest of one token is that token


def test_merging_the_rest_raises_acceptance_by_at_most_the_smaller_rest():
    a, b = random_logits(6, 40), random_logits(7, 40)
    p, q = softmax(a), softmax(b)
    teacher = teacher_of(a, 4)
    merged, log_q = distill_losses.distributions(teacher, b)
    more = np.asarray(jnp.minimum(merged, jnp.exp(log_q)).sum(-1)) - np.minimum(p, q).sum(-1)
    q_rest = 1 - np.take_along_axis(q, teacher.ids.astype(int), -1).sum(-1)
    assert (more > -1e-5).all() and (more < np.minimum(teacher.rest, q_rest) + 1e-5).all()
    assert more.max() > 0.01  # it does raise it


@pytest.mark.parametrize("k", [3, V])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_descending_any_objective_brings_q_to_p(name, k):
    a, logits = random_logits(8, 1, 4), random_logits(9, 1, 4)
    targets, teacher = jnp.array([[3, 4, 5, 0]]), teacher_of(a, k)
    losses = distill_losses.mixed({name: 1.0})
    step = jax.jit(jax.value_and_grad(lambda x: losses(x, targets, *teacher).sum()))
    values = []
    for _ in range(300):
        value, gradient = step(logits)
        values.append(float(value))
        assert not np.asarray(gradient[0, 3]).any()  # padding
        logits -= 0.5 * gradient
    assert values[1] < values[0] and values[-1] < 0.2 * values[0]


def test_rounding_to_float16_hardly_matters():
    a, b = random_logits(10, 1, 50), random_logits(11, 1, 50)
    targets = jnp.full((1, 50), 3)
    exact = teacher_of(a, 5)
    rounded = Teacher(exact.ids, exact.probs.astype(np.float16), exact.rest.astype(np.float16))
    for name in OBJECTIVES:
        losses = distill_losses.mixed({name: 1.0})
        np.testing.assert_allclose(
            losses(b, targets, *exact), losses(b, targets, *rounded), rtol=2e-3, atol=5e-4
        )


def test_objectives_mix_by_weights():
    a, b = random_logits(12, 1, 3), random_logits(13, 1, 3)
    arguments = (b, jnp.full((1, 3), 3), *teacher_of(a, 4))
    mixed = distill_losses.mixed({"forward_kl": 0.5, "total_variation": 2.0, "reverse_kl": 0.0})
    parts = [distill_losses.mixed({n: 1.0}) for n in ("forward_kl", "total_variation")]
    expected = 0.5 * parts[0](*arguments) + 2.0 * parts[1](*arguments)
    np.testing.assert_allclose(mixed(*arguments), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"tvd": 1.0}, "no objective 'tvd'; there are forward_kl, reverse_kl"),
        ({"forward_kl": -1.0}, "needs weights, 0 or above"),
        ({"forward_kl": 0.0}, "not all 0"),
        ({}, "not all 0"),
    ],
)
def test_wrong_objectives_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        distill_losses.mixed(weights)
