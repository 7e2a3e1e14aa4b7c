"""How cost grows: with a token's position, with rows decoded together, and at the start."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.compilation_cache import compilation_cache

from specdec_jax.costs import REPEATS, Decoders
from specdec_jax.decoding import autoregressive_decode, speculative_decode
from specdec_jax.profiling import CALLS, extends, medians
from specdec_jax.sampling import Sampling

POSITIONS = (16, 512)
ROWS = (1, 8)


class Scaling(NamedTuple):
    """What was measured.

    Attributes:
      positions: seconds of a call of the target on one token, by where the token stands.
      rows: tokens a second of the target alone, by rows decoded together.
      compiling: seconds until a first speculative decode, beyond those of a later one.
      again: the same in a process that finds its programs in the compilation cache.
    """

    positions: dict[int, float]
    rows: dict[int, float]
    compiling: float
    again: float


def scaling(
    models: Decoders, inputs: Array, key: Array, *, gamma: int, max_new_tokens: int,
    sampling: Sampling,
) -> Scaling:  # fmt: skip
    """Times tokens early and late, few rows and many, a first decode and a second.

    All that this process compiled before is forgotten.

    Args:
      models: what decodes.
      inputs: int32[1, T], a source.
      key: of the sampling.
      gamma: guesses a round.
      max_new_tokens: N, of the decodes.
      sampling: temperature, top-k, top-p.
    """
    rest: dict[str, Any] = {"max_new_tokens": max_new_tokens, "sampling": sampling, "eos_id": -1}
    inputs = inputs[:1]

    def together(rows: int) -> Callable[[], Any]:
        tiled, keys = jnp.tile(inputs, (rows, 1)), jax.random.split(key, rows)
        target, params = models.target, models.target_params
        return lambda: autoregressive_decode(target, params, tiled, keys, **rest)

    def speculate() -> Any:
        keys = jax.random.split(key, 1)
        return speculative_decode(*models, inputs, keys, gamma=gamma, **rest)

    decodes = medians({rows: together(rows) for rows in ROWS}, repeats=REPEATS)
    return Scaling(
        positions=_by_position(models, inputs),
        rows={rows: rows * max_new_tokens / seconds for rows, seconds in decodes.items()},
        **_start(speculate),
    )


def _by_position(models: Decoders, inputs: Array) -> dict[int, float]:
    """All in one buffer, which has room for the last of them."""
    target, params = models.target, models.target_params
    length = max(POSITIONS) + CALLS + 1
    cache = jax.jit(target.prefill, static_argnums=2)(params, inputs, length)
    runs = {at: extends(target, params, cache, inputs, length, 1, first=at) for at in POSITIONS}
    return {at: seconds / CALLS for at, seconds in medians(runs).items()}


def _start(run: Callable[[], Any]) -> dict[str, float]:
    """What a decode costs before it is a later one, without and with a filled cache."""

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(run())
        return time.perf_counter() - start

    with _empty_compilation_cache():
        jax.clear_caches()
        first = seconds()
        jax.clear_caches()
        second = seconds()
        later = statistics.median(seconds() for _ in range(REPEATS))
    return {"compiling": first - later, "again": second - later}


@contextmanager
def _empty_compilation_cache() -> Iterator[None]:
    """A compilation cache of its own, in place of the user's."""
    with tempfile.TemporaryDirectory() as directory:
        ours: dict[str, Any] = {
            "jax_compilation_cache_dir": directory,
            "jax_enable_compilation_cache": True,
            "jax_persistent_cache_min_compile_time_secs": 0.0,
        }
        kept = {name: getattr(jax.config, name) for name in ours}
        try:
            for name, value in ours.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
            yield
        finally:
            for name, value in kept.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()


def table(found: Scaling) -> str:
    """The lines that the command prints."""
    (early, late), (few, many) = found.positions.items(), found.rows.items()
    change = 100 * (late[1] / early[1] - 1)
    return "\n".join(
        [
            f"a token at position {early[0]}: {1e3 * early[1]:.3f} ms, at {late[0]}: "
            f"{1e3 * late[1]:.3f} ms ({change:+.1f} %)",
            f"the target alone, {few[0]} row: {few[1]:.0f} tokens/s; {many[0]} rows: "
            f"{many[1]:.0f} tokens/s, {many[1] / few[1]:.1f} times",
            f"a first speculative decode compiles for {found.compiling:.1f} s; with the programs "
            f"that an earlier run left, {found.again:.1f} s",
        ]
    )
