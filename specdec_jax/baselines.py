"""What speculation is compared with: the decoders of others, on the same parameters.

T5X's own loop, where T5X is installed (t5x_decoding.py); as it is, and with a gather in place
of its one-hot embedding lookup, so that nobody credits speculation with that.
"""

from collections.abc import Callable
from typing import Any

from specdec_jax import t5x_adapter, t5x_decoding
from specdec_jax.benchmark_table import T5X
from specdec_jax.generate import Batch, Settings
from specdec_jax.measuring import Way
from specdec_jax.model import T5Model
from specdec_jax.pretrained import Pair


def ways(pair: Pair, settings: Settings) -> dict[str, Way]:
    """Every way that is installed, by name; none for pairs on several devices."""
    if pair.partitioner is not None or not isinstance(pair.target, T5Model):
        return {}
    return _t5x_ways(pair, settings) if t5x_adapter.is_installed() else {}


def versions() -> dict[str, str | None]:
    """Of what takes part in a benchmark, by package; None of what is not installed."""
    return t5x_adapter.versions()


def _t5x_ways(pair: Pair, settings: Settings) -> dict[str, Way]:
    model, params = t5x_adapter.to_t5x(pair.target, pair.target_params)

    def way(model: Any) -> Callable[[Batch], Any]:
        return lambda batch: t5x_decoding.t5x_decode(
            model,
            params,
            batch.inputs,
            batch.keys[0],
            max_new_tokens=settings.max_new_tokens,
            sampling=settings.sampling,
        )

    return {T5X: way(model), f"{T5X} with a gather": way(t5x_adapter.with_gather(model))}
