"""Section 3 of the paper: tokens a round, walltime, operations, and the best gamma.

alpha is the expected acceptance rate, gamma the guesses a round, c the time of a guess in
calls of the target on one token. The paper takes verifying gamma + 1 tokens to cost one
such call; here it costs v = T(gamma + 1) / T(1), of which v = 1 is the paper's case. All
functions broadcast arrays, like NumPy's.

The formulas take acceptances to be independent, with probability alpha each, so that the
tokens of a round are a capped geometric variable: P(n) = (1 - alpha) alpha^(n - 1) for
n <= gamma, and alpha^gamma for n = gamma + 1.
"""

from typing import Any

import numpy as np

Values = Any  # a number, or anything that NumPy makes an array of; results are of float64

_MOST_GUESSES = 64  # where nothing else bounds the search for the best gamma


def expected_tokens(alpha: Values, gamma: Values) -> Values:
    """Tokens a round, Eq. 1: (1 - alpha^(gamma + 1)) / (1 - alpha); gamma + 1 at alpha = 1.

    Args:
      alpha: in [0, 1].
      gamma: 0 or above.

    Raises:
      ValueError: an argument is out of its range.
    """
    alpha, gamma = _rate(alpha), _count(gamma)
    missed = 1 - alpha
    with np.errstate(divide="ignore", invalid="ignore"):
        # By expm1 and log1p, for alpha near 1.
        tokens = -np.expm1((gamma + 1) * np.log1p(-missed)) / missed
    return np.where(missed == 0, gamma + 1.0, tokens)[()]


def walltime_improvement(
    alpha: Values, gamma: Values, c: Values, verification_cost: Values = 1.0
) -> Values:
    """Theorem 3.8: how many times faster than the target alone.

        (1 - alpha^(gamma + 1)) / ((1 - alpha) (gamma c + v))

    A round takes gamma guesses and one verification, (gamma c + v) T(1), and gives Eq. 1's
    tokens, for which the target alone would take T(1) each (the proof of Theorem 3.8, with v
    for its 1).

    Args:
      alpha: in [0, 1].
      gamma: 0 or above.
      c: 0 or above, Definition 3.7.
      verification_cost: v, above 0.

    Raises:
      ValueError: an argument is out of its range.
    """
    c, v = _cost(c, "c"), _positive(verification_cost, "verification_cost")
    return expected_tokens(alpha, gamma) / (np.asarray(gamma) * c + v)


def operations_factor(alpha: Values, gamma: Values, c_hat: Values) -> Values:
    """Theorem 3.11: how many times the target's own arithmetic operations are done.

        (1 - alpha) (gamma c_hat + gamma + 1) / (1 - alpha^(gamma + 1))

    Args:
      alpha: in [0, 1].
      gamma: 0 or above.
      c_hat: operations a token of the draft, over the target's; 0 or above.

    Raises:
      ValueError: an argument is out of its range.
    """
    c_hat, gamma = _cost(c_hat, "c_hat"), _count(gamma)
    return (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)


def pays(alpha: Values, c: Values, verification_cost: Values = 1.0) -> Values:
    """Whether some gamma is faster than the target alone -> bool. Corollary 3.9: alpha > c.

    With verification_cost an array of v by gamma = 1, 2, ... along its last axis, whether any
    of these gammas is; a scalar is v of gamma = 1, 2, ..., all alike.
    """
    return optimal_gamma(alpha, c, verification_cost) > 0


def guaranteed_improvement(alpha: Values, c: Values, verification_cost: Values = 1.0) -> Values:
    """What gamma = 1 gives, (1 + alpha) / (c + v): Corollary 3.9's least improvement for v = 1."""
    return walltime_improvement(alpha, 1, c, verification_cost)


def optimal_gamma(
    alpha: Values,
    c: Values,
    verification_cost: Values = 1.0,
    *,
    max_gamma: int | None = None,
) -> Values:
    """The gamma of the largest `walltime_improvement` (section 3.5) -> int64; 0: none pays.

    Args:
      alpha: in [0, 1], of any shape.
      c: broadcasts with alpha.
      verification_cost: v for all gammas; or an array whose last axis is gamma = 1, 2, ...,
        while its others broadcast with alpha and c.
      max_gamma: the largest to consider; default: all that `verification_cost` holds, or 64.
        Where guesses are free and verification too, the largest is the best.

    Raises:
      ValueError: an argument is out of its range, or `verification_cost` holds too few.
    """
    v = np.asarray(verification_cost, np.float64)
    by_gamma = v if v.ndim else v[None]
    most = max_gamma or (v.shape[-1] if v.ndim else _MOST_GUESSES)
    if v.ndim and v.shape[-1] < most:
        raise ValueError(f"verification_cost holds {v.shape[-1]} gammas, max_gamma is {most}.")
    gammas = np.arange(1, most + 1)
    speed = walltime_improvement(
        np.asarray(alpha)[..., None], gammas, np.asarray(c)[..., None], by_gamma[..., :most]
    )
    best = np.argmax(speed, axis=-1)
    # The smallest of those that are equal up to rounding: fewer guesses for the same speed.
    top = np.take_along_axis(speed, best[..., None], -1)
    best = np.argmax(speed >= top * (1 - 1e-12), axis=-1)
    return np.where(top[..., 0] > 1 + 1e-12, best + 1, 0)[()]


def break_even_alpha(gamma: Values, c: Values, verification_cost: Values = 1.0) -> Values:
    """The alpha at which a gamma is as fast as the target alone; NaN where no alpha is enough.

    `walltime_improvement` grows with alpha, so that the root is unique; it is bisected.
    """
    gamma, c, v = np.broadcast_arrays(_count(gamma), _cost(c, "c"), verification_cost)
    low, high = np.zeros(gamma.shape), np.ones(gamma.shape)
    for _ in range(60):
        middle = (low + high) / 2
        slow = walltime_improvement(middle, gamma, c, v) < 1
        low, high = np.where(slow, middle, low), np.where(slow, high, middle)
    return np.where(walltime_improvement(1.0, gamma, c, v) < 1, np.nan, high)[()]


def expected_rounds(alpha: float, gamma: int, tokens: Values) -> float:
    """Rounds until every row of a batch has its tokens; a row's last round may be cut short.

    Eq. 1 is of an endless decode; of a short one the last round's guesses lead past the end.
    With S_r the tokens of r independent rounds, the rows n_1, n_2, ... need

        sum_{r >= 0} (1 - prod_i P(S_r >= n_i)).

    Args:
      alpha: in [0, 1].
      gamma: 0 or above.
      tokens: int[B] or a number, 0 or above: what each row writes.
    """
    alpha, gamma = float(_rate(alpha)), int(_count(gamma))
    lengths = np.atleast_1d(_count(tokens)).astype(int)
    chances = (1 - alpha) * alpha ** np.arange(gamma)
    chances = np.append(chances, alpha**gamma)  # of 1 .. gamma + 1 tokens
    written = np.zeros(lengths.max() + 1)  # P(S_r = n); what is at the longest or past it, 0
    written[0] = 1.0
    rounds = 0.0
    for _ in range(lengths.max()):
        unfinished = np.cumsum(written)  # P(S_r <= n)
        still = np.where(lengths > 0, unfinished[np.maximum(lengths, 1) - 1], 0.0)
        rounds += 1 - np.prod(1 - still)
        written = np.convolve(written, np.append(0.0, chances))[: len(written)]
    return float(rounds)


def decode_improvement(
    alpha: float,
    gamma: int,
    c: float,
    verification_cost: float = 1.0,
    *,
    tokens: Values,
    prefill: float = 0.0,
    draft_prefill: float = 0.0,
) -> float:
    """Theorem 3.8 of whole decodes: sources are read, by target and draft, and ends are cut.

        (prefill + max n) / (prefill + draft_prefill + R(n) (gamma c + v)), R of `expected_rounds`

    It goes to `walltime_improvement` as one row's `tokens` grow. Everything is in calls of the
    target on one token of each row.

    Args:
      alpha: in [0, 1].
      gamma: 0 or above.
      c: of a guess.
      verification_cost: v, of gamma + 1 tokens.
      tokens: n, int[B] or a number: what each row of the batch writes.
      prefill: the target's reading of the sources.
      draft_prefill: the draft's.
    """
    alone = prefill + float(np.max(tokens))
    return alone / (
        draft_prefill
        + decode_cost(alpha, gamma, c, verification_cost, tokens=tokens, prefill=prefill)
    )


def decode_cost(
    alpha: float,
    gamma: int,
    c: float,
    verification_cost: float = 1.0,
    *,
    tokens: Values,
    prefill: float = 0.0,
) -> float:
    """What a speculative decode takes, in calls of the target on one token of each row."""
    v = float(_positive(verification_cost, "verification_cost"))
    return prefill + expected_rounds(alpha, gamma, tokens) * (gamma * c + v)


def _rate(alpha: Values) -> Any:
    alpha = np.asarray(alpha, np.float64)
    if not np.all((alpha >= 0) & (alpha <= 1) | np.isnan(alpha)):
        raise ValueError(f"alpha must be in [0, 1], not {alpha}.")
    return alpha


def _count(gamma: Values) -> Any:
    gamma = np.asarray(gamma)
    if not np.all(gamma >= 0):
        raise ValueError(f"gamma must be 0 or above, not {gamma}.")
    return gamma


def _cost(c: Values, name: str) -> Any:
    c = np.asarray(c, np.float64)
    if not np.all(c >= 0):
        raise ValueError(f"{name} must be 0 or above, not {c}.")
    return c


def _positive(v: Values, name: str) -> Any:
    v = np.asarray(v, np.float64)
    if not np.all(v > 0):
        raise ValueError(f"{name} must be above 0, not {v}.")
    return v
