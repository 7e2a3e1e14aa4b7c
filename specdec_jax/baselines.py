"""What speculation is compared with: the decoders of others, on the same parameters.

T5X's own loop, where T5X is installed (t5x_decoding.py); as it is, and with a gather in place
of its one-hot embedding lookup, so that nobody credits speculation with that.
"""

from typing import Any

from specdec_jax import t5x_adapter, t5x_decoding
from specdec_jax.benchmark_table import T5X
from specdec_jax.measuring import Way
from specdec_jax.model import T5Model
from specdec_jax.sampling import Sampling
from specdec_jax.types import Model, Params
from specdec_jax.vocabulary import EOS_ID


def ways(
    target: Model, params: Params, *, max_new_tokens: int, sampling: Sampling, eos_id: int = EOS_ID
) -> dict[str, Way]:
    """Every way that is installed, by name.

    Args:
      target: a T5 on one device; of others there are no other implementations here.
      params: its parameters, as it decodes with them.
      max_new_tokens: N.
      sampling: temperature, top-k, top-p.
      eos_id: the token that ends a row; -1 for none.
    """
    if not isinstance(target, T5Model) or target.partition is not None:
        return {}
    settings = {"max_new_tokens": max_new_tokens, "sampling": sampling, "eos_id": eos_id}
    return _t5x_ways(target, params, settings) if t5x_adapter.is_installed() else {}


def _t5x_ways(target: T5Model, params: Params, settings: dict[str, Any]) -> dict[str, Way]:
    model, params = t5x_adapter.to_t5x(target, params)

    def way(model: Any) -> Way:
        return lambda batch: t5x_decoding.t5x_decode(
            model, params, batch.inputs, batch.keys[0], **settings
        )

    return {T5X: way(model), f"{T5X} with a gather": way(t5x_adapter.with_gather(model))}
