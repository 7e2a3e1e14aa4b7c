"""Standardized sampling (section 2.2): logits -> the distribution that is sampled.

Temperature, top-k and top-p change the logits first, of target and draft alike;
everything after samples plainly from what comes out. At temperature 0 the
distribution is one-hot at the argmax, so greedy decoding is no special case.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
      temperature: 0 is the argmax; 1 the model's own distribution.
      top_k: keep the k likeliest tokens (ties: the lower ids); 0 keeps all.
      top_p: of what is left, keep the smallest set with at least this mass.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= float(jnp.finfo(jnp.float32).max):
            raise ValueError(
                f"temperature must be a finite number, 0 or above, not {self.temperature}; "
                "0 takes the likeliest token."
            )
        if not isinstance(self.top_k, int) or self.top_k < 0:
            raise ValueError(
                f"top_k must be a whole number, 0 or above, not {self.top_k}; 0 keeps all tokens."
            )
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}.")


GREEDY = Sampling(temperature=0.0)


def distribution(logits: Array, sampling: Sampling) -> Array:
    """Applies standardized sampling (section 2.2).

    Args:
      logits: float32[..., V].
      sampling: static settings.

    Returns:
      float32[..., V] probabilities; NaN throughout a row whose logits hold a NaN
      (or nothing finite), at temperature 0 too, so that no NaN passes silently.
    """
    if sampling.temperature == 0.0:
        # A NaN wins every maximum, +inf minus itself is one, and so is -inf's.
        best = jnp.max(logits, axis=-1, keepdims=True)
        return jax.nn.one_hot(first(logits == best), logits.shape[-1]) + (best - best)
    # Shifted first, so that no temperature, however low, overflows; and none is a
    # subnormal number, which XLA takes for 0.
    temperature = max(sampling.temperature, float(jnp.finfo(jnp.float32).tiny))
    logits = (logits - jnp.max(logits, axis=-1, keepdims=True)) / temperature
    logits = jnp.where(logits == 0.0, 0.0, logits)  # -0 is equal to 0, but top_k ranks it below
    if 0 < sampling.top_k < logits.shape[-1]:
        logits = _keep_top_k(logits, sampling.top_k)
    if sampling.top_p < 1.0:
        logits = _keep_top_p(logits, sampling.top_p)
    return jax.nn.softmax(logits, axis=-1)


def _keep_top_k(logits: Array, k: int) -> Array:
    """Drops all but the k largest; of equal ones the lower ids stay."""
    values, ids = jax.lax.top_k(logits, k)
    return _keep_down_to(logits, values[..., -1:], ids[..., -1:])


def _keep_top_p(logits: Array, mass: float) -> Array:
    """Drops all but the smallest set of the likeliest with at least this mass."""
    values, ids = jax.lax.top_k(logits, logits.shape[-1])
    ranked = jax.nn.softmax(values, axis=-1)
    before = jnp.cumsum(ranked, axis=-1) - ranked
    last = jnp.maximum(jnp.sum(before < mass, axis=-1, keepdims=True) - 1, 0)
    least, last_id = (jnp.take_along_axis(x, last, axis=-1) for x in (values, ids))
    return _keep_down_to(logits, least, last_id)


def _keep_down_to(logits: Array, least: Array, last_id: Array) -> Array:
    """Drops what ranks below the token `last_id`, whose logit is `least`."""
    tied = (logits == least) & (jnp.arange(logits.shape[-1]) <= last_id)
    # A NaN compares false: it stays, so that the softmax shows it.
    return jnp.where((logits > least) | tied | jnp.isnan(logits), logits, -jnp.inf)


def sample(weights: Array, u: Array) -> Array:
    """Draws from unnormalized weights by inverting their cumulative sum.

    One uniform a draw instead of V, and two short cumulative sums instead of a
    long one: first a block of the vocabulary is drawn, then a token within it.
    A token of weight 0 is never drawn, whatever the rounding.

    Args:
      weights: float32[..., V], nonnegative, not all 0.
      u: float32[...], uniform in [0, 1).

    Returns:
      int32[...].
    """
    size = weights.shape[-1]
    width = 1 << (size.bit_length() + 1) // 2
    padding = [(0, 0)] * (weights.ndim - 1) + [(0, -size % width)]
    blocks = jnp.pad(weights, padding).reshape(*weights.shape[:-1], -1, width)
    mass = jnp.sum(blocks, axis=-1)
    block, rest = _invert(mass, u * jnp.sum(mass, axis=-1))
    chosen = jnp.take_along_axis(blocks, block[..., None, None], axis=-2)[..., 0, :]
    return block * width + _invert(chosen, rest)[0]


def _invert(weights: Array, at: Array) -> tuple[Array, Array]:
    """Finds the place whose weight covers `at` in the cumulative sum.

    Returns:
      int32[...], the place, of a weight above 0 in any case; and float32[...],
      how far `at` reaches into its weight.
    """
    possible = weights > 0
    cumulative = jnp.where(possible, jnp.cumsum(weights, axis=-1), 0.0)
    total = jnp.max(cumulative, axis=-1)
    at = jnp.minimum(at, total * (1 - jnp.finfo(weights.dtype).epsneg))
    place = first(possible & (cumulative > at[..., None]))
    through = jnp.take_along_axis(cumulative - weights, place[..., None], axis=-1)[..., 0]
    return place, at - through


def first(mask: Array) -> Array:
    """The first true place, bool[..., V] -> int32[...]; 0 where there is none.

    Written as a minimum because XLA's argmax is some ten times slower on a CPU.
    """
    size = mask.shape[-1]
    return jnp.min(jnp.where(mask, jnp.arange(size), size), axis=-1) % size


class UniformNoise(NamedTuple):
    """The randomness of some positions, drawn before the loop; B rows, k positions.

    It belongs to positions of the output, not to rounds: what a round makes of a
    position's noise is thrown away with its guess, or decides the token there, once.
    A token thus depends on its row's key and on what precedes it, and a loop that
    needs no randomness, at temperature 0, computes none.
    """

    guess: Array  # float32[B, k], uniform in [0, 1): draws the draft's guess
    test: Array  # float32[B, k], uniform: accepts or rejects it
    token: Array  # float32[B, k], uniform: draws what the target puts there

    def at(self, start: Array, num: int) -> "UniformNoise":
        """The noise of `num` positions from `start`, int32[B], on."""
        return UniformNoise(*(window(leaf, start, num) for leaf in self))

    def draw_guess(self, q: Array, place: Array | int) -> Array:
        """The draft's guess at a place of these k, from float32[B, V] -> int32[B]."""
        return sample(q, self.guess[:, place])


class GumbelNoise(NamedTuple):
    """As `UniformNoise`, but target and draft share the Gumbel noise of a position.

    Both take the largest log probability plus noise, so that they agree wherever they can:
    the token of a position depends on its key and the target alone.
    """

    keys: Array  # key[B, k]

    def at(self, start: Array, num: int) -> "GumbelNoise":
        """The noise of `num` positions from `start`, int32[B], on."""
        return GumbelNoise(window(self.keys, start, num))

    def draw_guess(self, q: Array, place: Array | int) -> Array:
        """The draft's guess at a place of these k, from float32[B, V] -> int32[B]."""
        return _gumbel_sample(q, self.keys[:, place])

    def draw_tokens(self, p: Array) -> Array:
        """The target's token at each of these k, from float32[B, k, V] -> int32[B, k]."""
        return _gumbel_sample(p, self.keys)


Noise = UniformNoise | GumbelNoise


def window(rows: Array, start: Array, num: int) -> Array:
    """Of each row, [B, L], the `num` places from `start`, int32[B], on -> [B, num]."""
    places = start[:, None] + jnp.arange(num)
    return rows.at[jnp.arange(rows.shape[0])[:, None], places].get(mode="clip")


def _gumbel_sample(weights: Array, keys: Array) -> Array:
    """Draws from unnormalized weights, float32[..., V], by the Gumbel noise of key[...]."""
    size = weights.shape[-1]
    draw = functools.partial(jax.random.gumbel, shape=(size,))
    noise = jax.vmap(draw)(keys.reshape(-1)).reshape(weights.shape)
    score = jnp.log(weights) + noise
    return first(score == jnp.max(score, axis=-1, keepdims=True))


def _position_keys(keys: Array, length: int) -> Array:
    """key[B] -> key[B, length]."""
    at_position = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return jax.vmap(at_position, in_axes=(0, None))(keys, jnp.arange(length))


def draw_noise(keys: Array, length: int) -> UniformNoise:
    """The noise of positions 0 to `length` - 1 of B rows, from key[B]."""
    keys = _position_keys(keys, length)
    u = jax.vmap(lambda key: jax.random.uniform(key, (3,)))(keys.reshape(-1))
    return UniformNoise(*jnp.moveaxis(u.reshape(*keys.shape, 3), -1, 0))


def draw_gumbel_noise(keys: Array, length: int) -> GumbelNoise:
    """The same, to be shared by target and draft."""
    return GumbelNoise(_position_keys(keys, length))
