"""Refuses wrong arguments of a decode, before anything is compiled, in one sentence."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from specdec_jax.gamma import FixedGamma, GammaPolicy
from specdec_jax.sampling import Sampling
from specdec_jax.types import DecodeResult, Drafter, Model, VerifyRule

# Checkpoints of one vocabulary are padded to different multiples (32100, 32128);
# a larger difference means different vocabularies.
MAX_VOCABULARY_PADDING = 127

# Far beyond what T5 was trained for; a typing error should not ask for terabytes.
MAX_LENGTH = 2**20


def _whole(name: str, value: Any, hint: str = "") -> None:
    try:
        fits = 1 <= operator.index(value) <= MAX_LENGTH
    except TypeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} must be a whole number from 1 to {MAX_LENGTH}, not {value}{hint}."
        )


def check_speculative(
    target: Model,
    drafter: Drafter,
    inputs: Array,
    key: Array | None,
    max_new_tokens: int,
    sampling: Sampling,
    eos_id: int,
) -> tuple[Array, Array]:
    """Refuses wrong arguments of a speculative decode; as `check_plain` otherwise."""
    check_vocabularies(target.vocab_size, drafter.vocab_size)
    return check_plain(target, inputs, key, max_new_tokens, sampling, eos_id)


def check_gamma(gamma: int | GammaPolicy) -> GammaPolicy:
    """Takes a number of guesses for the policy that always makes as many."""
    if isinstance(gamma, GammaPolicy):
        return gamma
    _whole("gamma", gamma, "; for no guesses use autoregressive_decode")
    return FixedGamma(operator.index(gamma))


def check_single(rule: VerifyRule) -> None:
    """Refuses a rule for several drafts where none guesses."""
    if rule.num_drafts > 1:
        raise ValueError(f"{rule} judges several drafts; to decode plainly use ExactRule().")


def check_beams(
    target: Model,
    num_beams: int,
    alpha: float,
    eos_id: int,
    num_draft_beams: int | None = None,
    gamma: int = 1,
) -> None:
    """Refuses wrong arguments of beam search, beside those that `check_plain` refuses."""
    if not hasattr(target, "extend_tree"):
        raise ValueError("Beam search needs a model with extend_tree and move (types.TreeModel).")
    _whole("num_beams", num_beams)
    _whole("gamma", gamma, "; for no guesses use beam_decode")
    draft_beams = 2 * num_beams if num_draft_beams is None else num_draft_beams
    _whole("num_draft_beams", draft_beams)
    if draft_beams < num_beams:
        raise ValueError(
            f"num_draft_beams must be at least num_beams, not {draft_beams} with {num_beams} beams."
        )
    if max(2 * num_beams, draft_beams) > target.vocab_size:
        raise ValueError(
            f"A vocabulary of {target.vocab_size} is too small for {num_beams} beams, which look "
            f"at {2 * num_beams} tokens at once, and {draft_beams} of the draft."
        )
    if not 0.0 <= alpha < float("inf"):
        raise ValueError(f"alpha must be 0 or above, not {alpha}; 0 is no brevity penalty.")
    if eos_id == -1:
        raise ValueError("Beam search needs an eos_id: hypotheses are compared where they end.")


def check_vocabularies(target: int, draft: int) -> None:
    """Refuses a draft whose vocabulary can't be the target's, padded otherwise."""
    if abs(target - draft) > MAX_VOCABULARY_PADDING:
        raise ValueError(
            f"The draft's vocabulary has {draft} ids and the target's {target}: they can't be "
            "the same vocabulary, padded; use a draft that was trained on the target's."
        )


def check_plain(
    target: Model,
    inputs: Array,
    key: Array | None,
    max_new_tokens: int,
    sampling: Sampling,
    eos_id: int,
) -> tuple[Array, Array]:
    """Refuses wrong arguments of any decode.

    Args:
      target: p.
      inputs: what should be int32[B, T].
      key: one key, or key[B], or None where nothing is sampled.
      max_new_tokens: at least 1.
      sampling: how tokens are chosen.
      eos_id: an id, or -1.

    Returns:
      The sources, int32[B, T], and key[B], a key for each row.

    Raises:
      ValueError: one sentence that says what is wrong.
    """
    inputs = jnp.asarray(inputs)
    if inputs.ndim != 2 or not jnp.issubdtype(inputs.dtype, jnp.integer) or 0 in inputs.shape:
        raise ValueError(
            f"inputs must be token ids of shape [batch, source length], not {inputs.dtype}"
            f"{list(inputs.shape)}."
        )
    if not isinstance(inputs, jax.core.Tracer):
        ids = np.asarray(inputs)  # on the host: two small programs fewer before the large one
        largest, smallest = int(ids.max()), int(ids.min())
        if smallest < 0 or largest >= target.vocab_size:
            raise ValueError(
                f"inputs hold the id {smallest if smallest < 0 else largest}, outside the "
                f"target's vocabulary of {target.vocab_size}."
            )
    _whole("max_new_tokens", max_new_tokens)
    if not isinstance(eos_id, int) or not -1 <= eos_id < target.vocab_size:
        raise ValueError(
            f"eos_id must be an id of the target's vocabulary, below {target.vocab_size}, "
            f"or -1 for none, not {eos_id}."
        )
    if key is None:
        if sampling.temperature > 0:
            raise ValueError("Sampling needs a key: pass key=jax.random.key(seed).")
        key = jax.random.key(0)
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise ValueError("key must be a typed key, as jax.random.key(seed) makes it.")
    if key.ndim == 0:
        rows = jnp.arange(inputs.shape[0])
        return inputs, jax.vmap(lambda row: jax.random.fold_in(key, row))(rows)
    if key.shape != inputs.shape[:1]:
        raise ValueError(
            f"key must be one key or one for each of the {inputs.shape[0]} rows, "
            f"not of shape {list(key.shape)}."
        )
    return inputs, key


def checked(result: DecodeResult) -> DecodeResult:
    """Raises where the target gave a NaN; inside a jit the caller reads `finite`."""
    if isinstance(result.finite, jax.core.Tracer):
        return result
    rows = np.flatnonzero(~np.asarray(result.finite))
    if not len(rows):
        return result
    raise FloatingPointError(
        f"The target's logits held a NaN in row {', '.join(map(str, rows))}: check its "
        "parameters, or run it in float32."
    )
