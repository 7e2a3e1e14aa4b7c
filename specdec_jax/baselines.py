"""What speculation is compared with: the decoders of others, on the same parameters.

* T5X's own loop, where T5X is installed (t5x_decoding.py); as it is, and with a gather in place
  of its one-hot embedding lookup, so that nobody credits speculation with that;
* Hugging Face `transformers`, plain and assisted by the same draft, and CTranslate2, where they
  are installed (peers.py), on a CPU in float32, where all have the same hardware.
"""

from typing import Any

import jax

from specdec_jax import peers, t5x_adapter, t5x_decoding
from specdec_jax.benchmark_table import T5X
from specdec_jax.measuring import Way
from specdec_jax.model import T5Model
from specdec_jax.sampling import Sampling
from specdec_jax.types import Model, Params
from specdec_jax.vocabulary import EOS_ID

TRANSFORMERS, ASSISTED = "transformers", "transformers, assisted"
CTRANSLATE2 = "CTranslate2"


def ways(
    target: Model,
    params: Params,
    *,
    max_new_tokens: int,
    sampling: Sampling,
    eos_id: int = EOS_ID,
    draft: tuple[Model, Params] | None = None,
    gamma: int = 0,
) -> dict[str, Way]:
    """Every way that is installed, by name.

    Args:
      target: a T5 on one device; of others there are no other implementations here.
      params: its parameters, as it decodes with them.
      max_new_tokens: N.
      sampling: temperature, top-k, top-p.
      eos_id: the token that ends a row; -1 for none.
      draft: a smaller T5 for assisted generation, which takes one row at a time.
      gamma: its guesses a round.
    """
    if not isinstance(target, T5Model) or target.partition is not None:
        return {}
    settings: dict[str, Any] = {
        "max_new_tokens": max_new_tokens, "sampling": sampling, "eos_id": eos_id,
    }  # fmt: skip
    found = _t5x_ways(target, params, settings) if t5x_adapter.is_installed() else {}
    same_hardware = jax.default_backend() == "cpu" and target.config.dtype == "float32"
    if same_hardware and peers.installed("transformers"):
        network = peers.to_transformers(target, params)
        found[TRANSFORMERS] = peers.Transformers(network, **settings)
        if draft and isinstance(draft[0], T5Model):
            assistant = peers.to_transformers(draft[0], draft[1])
            found[ASSISTED] = peers.Transformers(
                network, **settings, assistant=assistant, gamma=gamma
            )
        if peers.installed("ctranslate2"):
            found[CTRANSLATE2] = peers.CTranslate2(network, **settings)
    return found


def _t5x_ways(target: T5Model, params: Params, settings: dict[str, Any]) -> dict[str, Way]:
    model, params = t5x_adapter.to_t5x(target, params)

    def way(model: Any) -> Way:
        return lambda batch: t5x_decoding.t5x_decode(
            model, params, batch.inputs, batch.keys[0], **settings
        )

    return {T5X: way(model), f"{T5X} with a gather": way(t5x_adapter.with_gather(model))}
