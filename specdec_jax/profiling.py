"""Where a round's time goes: calls, sampling and verification, and the loop around them.

Every part is timed in a compiled loop of its own, many times over; a round, in whole decodes
(costs.py). What a round takes beyond its parts is the loop's own: committing tokens, finding
ends. A part alone in a loop may run faster than among the others, whose data share its cache.

The bytes that a call must read are its decoder's weights and caches; over the time that it
takes, beside what the machine reads at best, they say whether memory or arithmetic sets the pace.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from specdec_jax.costs import Decoders, measure_costs
from specdec_jax.drafters.model import ModelDrafter
from specdec_jax.sampling import Sampling, distribution, draw_noise
from specdec_jax.types import Draft, Model, Params
from specdec_jax.verification import ExactRule

CALLS = 32  # in a timed loop
_REPEATS = 9  # of it; the median counts
_BANDWIDTH_BYTES = 2**28  # what is read to measure the machine


class Profile(NamedTuple):
    """Seconds, of one call each.

    Attributes:
      target: T(k) by k = 1 .. gamma + 1.
      draft: of a model draft, a call on one token; None of others.
      target_prefill: reading the sources.
      draft_prefill: the same; 0 where it reads none.
      verification: sampling's p and the rule, over gamma + 1 positions.
      round: a whole one, of gamma guesses, in a decode.
      token: one of the target alone, in a decode.
      target_bytes: that a call of the target must read.
      bandwidth: bytes a second that this machine reads at best.
    """

    target: dict[int, float]
    draft: float | None
    target_prefill: float
    draft_prefill: float
    verification: float
    round: float
    token: float
    target_bytes: int
    bandwidth: float

    @property
    def gamma(self) -> int:
        """Guesses of the round."""
        return max(self.target) - 1

    @property
    def overhead(self) -> float:
        """What a round takes beyond its calls and its verification."""
        calls = self.target[self.gamma + 1] + self.gamma * (self.draft or 0.0)
        return self.round - calls - self.verification


def profile(
    models: Decoders, inputs: Array, key: Array, *, gamma: int, max_new_tokens: int,
    sampling: Sampling,
) -> Profile:  # fmt: skip
    """Times the parts of a round, and a round.

    Args:
      models: what decodes.
      inputs: int32[B, T], sources.
      key: of the sampling.
      gamma: guesses a round.
      max_new_tokens: N, of the decodes.
      sampling: temperature, top-k, top-p.
    """
    target, params = models.target, models.target_params
    length = max_new_tokens + gamma + 1
    read = jax.jit(target.prefill, static_argnums=2)
    cache = read(params, inputs, length)
    calls = {k: extends(target, params, cache, inputs, length, k) for k in range(1, gamma + 2)}
    loops: dict[Any, Callable[[], Any]] = dict(calls)
    loops["verify"] = _verification(len(inputs), gamma, target.vocab_size, sampling)
    reading = {"target": lambda: read(params, inputs, length)}
    if isinstance(models.drafter, ModelDrafter):
        small, small_params = models.drafter.model, models.draft_params
        read_small = jax.jit(small.prefill, static_argnums=2)
        small_cache = read_small(small_params, inputs, length)
        loops["draft"] = extends(small, small_params, small_cache, inputs, length, 1)
        reading["draft"] = lambda: read_small(small_params, inputs, length)
    timed = {name: seconds / CALLS for name, seconds in medians(loops).items()}
    prefill = medians(reading)
    costs = measure_costs(
        models, inputs, key, gammas=[gamma], max_new_tokens=max_new_tokens, sampling=sampling
    )
    token = costs.seconds
    return Profile(
        target={k: timed[k] for k in calls},
        draft=timed.get("draft"),
        target_prefill=prefill["target"],
        draft_prefill=prefill.get("draft", 0.0),
        verification=timed["verify"],
        round=(gamma * costs.draft + costs.verification[gamma]) * token,
        token=token,
        target_bytes=_decoder_bytes(params, cache),
        bandwidth=_bandwidth(),
    )


def extends(
    model: Model, params: Params, cache: Any, inputs: Array, length: int, k: int,
    *, first: int = 0,
) -> Callable[[], Any]:  # fmt: skip
    """A loop of `CALLS` calls on k tokens, each fed what the one before found likeliest.

    Args:
      model: what is called.
      params: its parameters.
      cache: as its prefill gives it.
      inputs: int32[B, T], sources.
      length: slots of the cache.
      k: tokens of a call.
      first: position of the first call's; after the last slot the next begins there again.
    """

    @jax.jit
    def run(params: Params, cache: Any, tokens: Array) -> Array:
        def call(i: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
            cache, tokens = carry
            start = first + (i * k) % (length - k - first)
            positions = jnp.broadcast_to(start + jnp.arange(k), tokens.shape)
            logits, cache = model.extend(params, cache, tokens, positions)
            return cache, jnp.argmax(logits, axis=-1).astype(jnp.int32)

        return jax.lax.fori_loop(0, CALLS, call, (cache, tokens))[1]

    tokens = jnp.zeros((len(inputs), k), jnp.int32)
    return lambda: run(params, cache, tokens)


def _verification(rows: int, gamma: int, vocab_size: int, sampling: Sampling) -> Callable[[], Any]:
    """A loop of what Algorithm 1 does with the target's logits."""
    keys = jax.random.split(jax.random.key(0), rows)
    noise = draw_noise(keys, gamma + 1)
    logits = jax.random.normal(jax.random.key(1), (rows, gamma + 1, vocab_size))

    @jax.jit
    def run(logits: Array) -> Array:
        q = distribution(logits[:, :gamma], sampling)

        def call(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            logits, tokens = carry
            draft = Draft(tokens, q, jnp.ones(tokens.shape, bool))
            p = distribution(logits, sampling)
            verdict = ExactRule()(p, draft, noise)
            # Each round depends on the one before, or XLA would do it once.
            return logits + verdict.next_token[:, None, None] * 1e-9, (
                tokens + verdict.num_accepted[:, None]
            ) % vocab_size

        tokens = jnp.zeros((rows, gamma), jnp.int32)
        return jax.lax.fori_loop(0, CALLS, call, (logits, tokens))[1]

    return lambda: run(logits)


def medians(runs: dict[Any, Callable[[], Any]], repeats: int = _REPEATS) -> dict[Any, float]:
    """Seconds of each, run in turn; what compiles does so before."""
    for run in runs.values():
        jax.block_until_ready(run())
    times: dict[Any, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def _decoder_bytes(params: Params, cache: Any) -> int:
    """Of the weights and caches that a call reads: all but the encoder's and untied embeddings."""
    unread = {"encoder"} | ({"token_embedder"} if "logits_dense" in params["decoder"] else set())
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    weights = sum(leaf.nbytes for path, leaf in paths if path[0].key not in unread)
    return weights + sum(leaf.nbytes for leaf in jax.tree.leaves(cache))


def _bandwidth() -> float:
    """Bytes a second, of a sum over more than any cache holds."""
    values = jnp.ones((_BANDWIDTH_BYTES // 4,), jnp.float32)
    total = jax.jit(jnp.sum)
    jax.block_until_ready(total(values))
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(total(values))
        times.append(time.perf_counter() - start)
    return _BANDWIDTH_BYTES / min(times)


def table(found: Profile) -> str:
    """The profile as Markdown, with the lines that section 3 asks for."""
    gamma, whole = found.gamma, found.round
    one = found.target[1]

    def row(name: str, seconds: float) -> str:
        return f"| {name} | {1e3 * seconds:.3f} | {100 * seconds / whole:.1f} % |"

    parts = [row(f"verifying call of the target, {gamma + 1} tokens", found.target[gamma + 1])]
    if found.draft is not None:
        parts.append(row(f"{gamma} calls of the draft", gamma * found.draft))
    parts += [
        row("sampling and verification", found.verification),
        row("the loop's own, and what the parts cost one another", found.overhead),
        row(f"a round of gamma {gamma}", whole),
    ]
    ratios = ", ".join(f"T({k})/T(1) = {t / one:.2f}" for k, t in found.target.items() if k > 1)
    read = found.target_bytes / one
    lines = [
        "| part | ms | of a round |",
        "|---|---|---|",
        *parts,
        "",
        f"the target alone: {1e3 * found.token:.3f} ms a token in a decode, T(1) = "
        f"{1e3 * one:.3f} ms by itself",
        ratios,
    ]
    if found.draft is not None:
        lines.append(f"c = {found.draft / one:.3f}")
    lines += [
        f"prefill: target {1e3 * found.target_prefill:.2f} ms, draft "
        f"{1e3 * found.draft_prefill:.2f} ms",
        f"T(1) reads {found.target_bytes / 1e6:.1f} MB, {read / 1e9:.1f} GB/s; the machine reads "
        f"{found.bandwidth / 1e9:.1f} GB/s at best",
    ]
    return "\n".join(lines)
