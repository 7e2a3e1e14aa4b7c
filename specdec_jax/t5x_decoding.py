"""T5X's own decoding, plain and with beams: the baseline that speculation is measured against.

Everything that decides tokens and scores is T5X's: its model, its loop, its cache.

Shapes: B batch, T source length, w beams, N new tokens at most.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax.errors import FlaxError
from jax import Array

from specdec_jax.arguments import check_beams, check_plain
from specdec_jax.beam import NOTHING
from specdec_jax.model import T5Model
from specdec_jax.sampling import GREEDY, Sampling
from specdec_jax.t5x_adapter import T5XModel, config_from_t5x, require_t5x
from specdec_jax.types import Params
from specdec_jax.vocabulary import EOS_ID


class T5XResult(NamedTuple):
    """What T5X decoded: a row for each source, or w of them, the best first."""

    tokens: Array  # int32[B, N] or [B, w, N], 0 after the end; holds the EOS where one was emitted
    lengths: Array  # int32[B] or [B, w], tokens, the EOS among them
    scores: Array
    """float32[B] or [B, w]: log p under the unadjusted model; of beams over the brevity
    penalty, and `beam.NOTHING` where there are fewer than w hypotheses."""


def t5x_decode(
    model: T5XModel,
    params: Params,
    inputs: Array,
    key: Array | None = None,
    *,
    max_new_tokens: int = 64,
    sampling: Sampling = GREEDY,
    eos_id: int = EOS_ID,
) -> T5XResult:
    """T5X's own plain decode: `predict_batch_with_aux` with `decoding.temperature_sample`.

    Compiled as a whole, once for a model (the object), a shape and a setting. Greedy tokens
    are those of `decoding.autoregressive_decode`; sampled ones have its distribution, not
    its noise.

    Args:
      model: a T5X model, as `config_from_t5x` takes it.
      params: its parameters, as T5X holds them (kernels `[in, out]`).
      inputs: int32[B, T], sources, ending in EOS and padded with 0.
      key: one key for the batch; only needed when sampling.
      max_new_tokens: N.
      sampling: T5X does not combine top-k and top-p.
      eos_id: the token that ends a row; -1 for none.

    Raises:
      ValueError: for wrong arguments, or parameters that are not the model's, before
        anything is compiled.
    """
    if key is not None and key.ndim:
        raise ValueError("T5X draws a whole batch with one key: pass one, not one for each row.")
    if sampling.top_k and sampling.top_p < 1:
        raise ValueError("T5X samples with top_k or with top_p, not with both: leave one out.")
    checked = T5Model(config_from_t5x(model))
    inputs, _ = check_plain(checked, inputs, key, max_new_tokens, sampling, eos_id)
    key = jax.random.key(0) if key is None else key
    settings = (max_new_tokens, sampling, eos_id)
    with _own_parameters():
        return _decode(model, params, inputs, key, settings)


@functools.partial(jax.jit, static_argnames=("model", "settings"))
def _decode(
    model: T5XModel,
    params: Params,
    inputs: Array,
    key: Array,
    settings: tuple[int, Sampling, int],
) -> T5XResult:
    max_new_tokens, sampling, eos_id = settings
    tokens, aux = _with_decoder(model, "temperature_sample").predict_batch_with_aux(
        params,
        _batch(inputs, max_new_tokens),
        rng=key,
        decoder_params={
            "temperature": sampling.temperature,
            "topk": sampling.top_k,  # T5X's default, 1, is greedy at any temperature
            "topp": sampling.top_p if sampling.top_p < 1 else 0.0,
            "rescale_log_probs": False,  # or the score would be of the adjusted distribution
            "eos_id": eos_id,
        },
        num_decodes=1,
        return_all_decodes=False,
    )
    return T5XResult(tokens, _lengths(tokens, eos_id), aux["scores"])


def t5x_beam_decode(
    model: T5XModel,
    params: Params,
    inputs: Array,
    *,
    num_beams: int = 4,
    alpha: float = 0.6,
    max_new_tokens: int = 64,
    eos_id: int = EOS_ID,
) -> T5XResult:
    """T5X's own beam search, the best hypothesis first; arguments are `beam.beam_decode`'s.

    Compiled as a whole, once for a model (the object), a shape and a setting.

    Raises:
      ValueError: for wrong arguments, or parameters that are not the model's, before
        anything is compiled.
    """
    checked = T5Model(config_from_t5x(model))
    check_beams(checked, num_beams, alpha, eos_id)
    inputs, _ = check_plain(checked, inputs, None, max_new_tokens, GREEDY, eos_id)
    settings = (num_beams, float(alpha), max_new_tokens, eos_id)
    with _own_parameters():
        return _beam_decode(model, params, inputs, settings)


@functools.partial(jax.jit, static_argnames=("model", "settings"))
def _beam_decode(
    model: T5XModel, params: Params, inputs: Array, settings: tuple[int, float, int, int]
) -> T5XResult:
    num_beams, alpha, max_new_tokens, eos_id = settings
    tokens, aux = _with_decoder(model, "beam_search").predict_batch_with_aux(
        params,
        _batch(inputs, max_new_tokens),
        decoder_params={"alpha": alpha, "eos_id": eos_id},
        num_decodes=num_beams,
        return_all_decodes=True,
    )
    tokens, scores = tokens[:, ::-1], aux["scores"][:, ::-1]  # T5X has the best last
    lengths = jnp.where(scores > NOTHING / 2, _lengths(tokens, eos_id), 0)
    return T5XResult(tokens, lengths, scores)


@contextlib.contextmanager
def _own_parameters() -> Iterator[None]:
    try:
        yield
    except FlaxError as error:
        raise ValueError(
            "These are not the T5X model's parameters; pass them as T5X holds them and as "
            "t5x_adapter.to_t5x returns them, not laid out for our T5."
        ) from error


def _with_decoder(model: T5XModel, name: str) -> T5XModel:
    t5x = require_t5x()
    return t5x.models.EncoderDecoderModel(
        module=model.module,
        input_vocabulary=model.input_vocabulary,
        output_vocabulary=model.output_vocabulary,
        optimizer_def=model.optimizer_def,
        decode_fn=getattr(t5x.decoding, name),
    )


def _batch(inputs: Array, max_new_tokens: int) -> dict[str, Array]:
    """T5X takes N from the shape of the targets."""
    room = jnp.zeros((inputs.shape[0], max_new_tokens), jnp.int32)
    return {"encoder_input_tokens": inputs, "decoder_input_tokens": room}


def _lengths(tokens: Array, eos_id: int) -> Array:
    ends = tokens == eos_id
    return jnp.where(ends.any(axis=-1), jnp.argmax(ends, axis=-1) + 1, tokens.shape[-1])
