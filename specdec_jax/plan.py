"""What a pair needs of its devices: memory, and what a round moves; before any is bought.

Counts what partitioning.py and sharding.py do: the target split over `model_parallel` devices
by heads, feed-forward and vocabulary, the draft whole on each, rows over the groups.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specdec_jax.checkpoints import expected_params
from specdec_jax.sharding import MODEL, RULES, logical_axes
from specdec_jax.stored import flat
from specdec_jax.t5 import T5Config

_FLOAT32 = 4  # bytes; logits and distributions


class Hardware(NamedTuple):
    """Devices of one kind."""

    devices: int
    memory: float  # bytes of each
    bandwidth: float  # bytes/s of its memory
    link: float  # bytes/s from one device to the others


# By the makers' data sheets; GB are 10^9.
HARDWARE = {
    "v4-8": Hardware(4, 32 * 2**30, 1228e9, 270e9),
    "v5e-8": Hardware(8, 16 * 2**30, 819e9, 180e9),
    "H100": Hardware(1, 80e9, 3350e9, 0.0),
    "H200": Hardware(1, 141e9, 4800e9, 0.0),
    "2xA100-40": Hardware(2, 40e9, 1555e9, 300e9),
}


class Plan(NamedTuple):
    """Bytes of each device, and of a round."""

    hardware: str
    model_parallel: int
    target_params: int
    draft_params: int
    target_cache: int
    draft_cache: int
    activations: int  # the largest step's, about
    read: int  # of a round from the device's memory: weights and caches
    exchanged: int  # of a round between the devices, by each
    fits: bool
    milliseconds: float  # of a round, at the least: what is read and exchanged, at full speed

    @property
    def memory(self) -> int:
        """All of it, of each device."""
        return sum(self[2:7])


def make_plan(
    target: T5Config,
    draft: T5Config,
    hardware: str,
    *,
    model_parallel: int | None = None,
    dtype: str = "bfloat16",
    batch_size: int = 1,
    input_length: int = 512,
    max_new_tokens: int = 128,
    gamma: int = 7,
) -> Plan:
    """Plans a decode.

    Args:
      target: its hyperparameters.
      draft: its hyperparameters.
      hardware: a name in `HARDWARE`.
      model_parallel: devices that hold one target together; None: the fewest that do.
      dtype: of weights and activations.
      batch_size: rows decoded together, over all devices.
      input_length: T.
      max_new_tokens: N.
      gamma: guesses a round.

    Raises:
      ValueError: no such hardware, or it can't be divided so.
    """
    if hardware not in HARDWARE:
        raise ValueError(f"There is no plan for {hardware!r}; there is for {', '.join(HARDWARE)}.")
    machine = HARDWARE[hardware]
    ways = [m for m in range(1, machine.devices + 1) if machine.devices % m == 0]
    if model_parallel is None:
        plans = [
            make_plan(
                target,
                draft,
                hardware,
                model_parallel=m,
                dtype=dtype,
                batch_size=batch_size,
                input_length=input_length,
                max_new_tokens=max_new_tokens,
                gamma=gamma,
            )
            for m in ways
            if target.num_heads % m == 0 and target.mlp_dim % m == 0
        ]
        return next((plan for plan in plans if plan.fits), plans[-1])
    if model_parallel not in ways:
        raise ValueError(
            f"model_parallel must divide the {machine.devices} devices of {hardware}, not be "
            f"{model_parallel}."
        )
    m, size = model_parallel, jnp.dtype(dtype).itemsize
    rows = -(-batch_size // (machine.devices // m))  # of each group
    slots, k = max_new_tokens + gamma + 1, gamma + 1
    target_params = param_bytes(target, m, size)
    draft_params = param_bytes(draft, 1, size)
    target_cache = cache_bytes(target, m, size, rows, input_length, slots)
    draft_cache = cache_bytes(draft, 1, size, rows, input_length, slots)
    read = (
        param_bytes(target, m, size, decoder=True)
        + target_cache
        + gamma * (param_bytes(draft, 1, size, decoder=True) + draft_cache)
    )
    exchanged = exchanged_bytes(target, m, size, rows * k)
    seconds = read / machine.bandwidth + (exchanged / machine.link if exchanged else 0.0)
    activations = max(
        _reading_bytes(target, m, size, rows, input_length),
        # logits, p, q and the residual of every position
        4 * rows * k * target.vocab_size * _FLOAT32,
    )
    total = target_params + draft_params + target_cache + draft_cache + activations
    return Plan(
        hardware=hardware,
        model_parallel=m,
        target_params=target_params,
        draft_params=draft_params,
        target_cache=target_cache,
        draft_cache=draft_cache,
        activations=activations,
        read=read,
        exchanged=exchanged,
        fits=total <= 0.9 * machine.memory,  # the rest is XLA's
        milliseconds=1e3 * seconds,
    )


def param_bytes(config: T5Config, model_parallel: int, size: int, *, decoder: bool = False) -> int:
    """Bytes of a model's parameters on each of `model_parallel` devices, `size` each.

    With `decoder`, only what a call of `extend` reads: not the encoder, nor the whole
    embedding where that is not the head too, nor the source's keys and values.
    """
    total = 0
    for name, shape in _shapes(config).items():
        unread = (
            name.startswith("encoder/")
            or "encoder_decoder_attention/key/" in name
            or "encoder_decoder_attention/value/" in name
            or (name == "token_embedder/embedding" and not config.logits_via_embedding)
        )
        if decoder and unread:
            continue
        total += size * _share(name, shape, model_parallel)
    return total


@functools.cache  # of XXL it takes a second
def _shapes(config: T5Config) -> dict[str, jax.ShapeDtypeStruct]:
    return flat(expected_params(config))


def _share(name: str, leaf: jax.ShapeDtypeStruct, model_parallel: int) -> int:
    """How many of a parameter's numbers each device holds (sharding.py)."""
    for axis, length in zip(logical_axes(name), leaf.shape, strict=True):
        if RULES[axis] == MODEL and length % model_parallel == 0:
            return int(leaf.size) // model_parallel
    return int(leaf.size)


def cache_bytes(
    config: T5Config, model_parallel: int, size: int, rows: int, input_length: int, slots: int
) -> int:
    """Bytes of a decoder's keys and values on each device, of the prefix and of the source."""
    of_a_token = 2 * config.num_decoder_layers * config.num_heads * config.head_dim * size
    source_bias = rows * input_length * _FLOAT32
    return rows * (slots + input_length) * of_a_token // model_parallel + source_bias


def exchanged_bytes(config: T5Config, model_parallel: int, size: int, tokens: int) -> int:
    """Bytes that each device sends in a verification of `tokens` tokens.

    An all-reduce after each of a layer's three sublayers and after the embedding, in a ring,
    and the logits, which every device gets whole.
    """
    m = model_parallel
    reduced = (3 * config.num_decoder_layers + 1) * tokens * config.emb_dim * size
    logits = tokens * config.vocab_size * _FLOAT32
    return (2 * (m - 1) * reduced + (m - 1) * logits) // m


def _reading_bytes(
    config: T5Config, model_parallel: int, size: int, rows: int, input_length: int
) -> int:
    """Bytes of an encoder layer at its widest: scores, or the feed-forward layer."""
    tokens = rows * input_length
    scores = 2 * rows * config.num_heads * input_length**2 * _FLOAT32 // model_parallel
    hidden = len(config.mlp_activations) * tokens * config.mlp_dim * size // model_parallel
    return max(scores, hidden) + 2 * tokens * config.emb_dim * size


def table(plans: list[Plan]) -> str:
    """Plans as a Markdown table, a line for each hardware; memory is of each device."""
    lines = [
        "| hardware | model parallel | target | draft | caches | activations | together | fits "
        "| read a round | exchanged a round | a round, at least |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for plan in plans:
        caches = plan.target_cache + plan.draft_cache
        cells = [
            plan.hardware,
            f"{plan.model_parallel} of {HARDWARE[plan.hardware].devices}",
            *map(_gigabytes, (plan.target_params, plan.draft_params, caches)),
            *map(_gigabytes, (plan.activations, plan.memory)),
            "yes" if plan.fits else f"no, of {HARDWARE[plan.hardware].memory / 1e9:.0f} GB",
            _gigabytes(plan.read),
            f"{plan.exchanged / 1e6:.1f} MB",
            f"{plan.milliseconds:.1f} ms",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
