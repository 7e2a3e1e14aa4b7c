"""What section 3 predicts: tokens per round, and the speed-up that follows.

alpha is the expected acceptance rate, gamma the guesses a round, c the time of one
draft call over one target call.
"""


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens per round, Eq. 1: (1 - alpha^(gamma + 1)) / (1 - alpha)."""
    return float(sum(alpha**i for i in range(gamma + 1)))


def walltime_improvement(
    alpha: float, gamma: int, c: float, verification_cost: float = 1.0
) -> float:
    """Theorem 3.8: how many times faster than the target alone.

    Args:
      alpha: expected acceptance rate.
      gamma: guesses a round.
      c: cost of a draft call, in target calls of one token.
      verification_cost: T(gamma + 1) / T(1), the target's call on gamma + 1 tokens
        in calls of one token; the theorem assumes the 1 of idle parallel hardware.
    """
    return expected_tokens(alpha, gamma) / (gamma * c + verification_cost)
