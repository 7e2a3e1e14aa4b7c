"""T5X's models as ours, and ours as T5X's: the only module that imports T5X.

T5X is not on PyPI. `require_t5x` imports it with the two stand-ins that it needs today
(tested with commit cc342d4 of April 2026), or says in one sentence how to get it.

Parameters are shared: T5X's tree is ours, name for name. Caches are not: T5X's takes one
token a call and adds to its slots, so that nothing can be verified in it or rewound. So a
T5X model is a target through our T5, which computes the same (`from_t5x`); the decoding
that it is measured against is T5X's own (t5x_decoding.py).
"""

import contextlib
import copy
import functools
import importlib.metadata
import importlib.util
import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pjit

from specdec_jax.checkpoints import check_params
from specdec_jax.errors import MissingExtraError
from specdec_jax.model import T5Model, t5_model
from specdec_jax.stored import flat, nested
from specdec_jax.t5 import T5Config
from specdec_jax.types import Params
from specdec_jax.vocabulary import EOS_ID

T5XModel = Any  # a t5x.models.EncoderDecoderModel

_NEEDS = "pip install 'specdec_jax[t5x]'"
INSTALL = f"{_NEEDS} && pip install --no-deps git+https://github.com/google-research/t5x"


def is_installed() -> bool:
    """Whether there is a T5X to import; nothing is imported."""
    spec = importlib.util.find_spec("t5x")
    return spec is not None and spec.origin is not None  # a mere directory t5x has none


@functools.cache
def require_t5x() -> types.ModuleType:
    """Imports T5X, its T5 network among it; some 10 s the first time.

    Raises:
      MissingExtraError: T5X, or a package that it needs, is not installed; one sentence
        that says how to get it. Any other fault of it is raised as it is.
    """
    if not is_installed():
        raise MissingExtraError(f"This needs T5X, which is not installed; get it with: {INSTALL}")
    try:
        with _stand_ins():
            import t5x
            import t5x.examples.t5.network
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] == "t5x":
            raise
        raise MissingExtraError(
            f"T5X needs the package {error.name}, which is not installed; get it with: {_NEEDS}"
        ) from error
    return t5x


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """What T5X imports and does not get today; in place only while it is imported."""
    added = []
    # T5X's other data pipeline; never called here. A caller may have put a stand-in of its own.
    if "airio" not in sys.modules and importlib.util.find_spec("airio") is None:
        airio, core = types.ModuleType("airio"), types.ModuleType("airio.core")
        for name in ("DatasetProviderBase", "Task", "Mixture", "AirIODatasetIterator"):
            setattr(core, name, type(name, (), {}))
        core.dataset_providers = types.ModuleType("airio.core.dataset_providers")  # type: ignore[attr-defined]
        airio.core = core  # type: ignore[attr-defined]
        sys.modules.update({airio.__name__: airio, core.__name__: core})
        added = [airio.__name__, core.__name__]
    moved = not hasattr(pjit, "PartitionSpec")  # jestimator, of T5X's needs, looks for it there
    if moved:
        pjit.PartitionSpec = jax.sharding.PartitionSpec  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]
        if moved:
            del pjit.PartitionSpec  # type: ignore[attr-defined]


def versions() -> dict[str, str | None]:
    """The versions of T5X, with its commit where pip knows it, and of what it runs on.

    None for what is not installed; of a T5X that pip did not install, its directory.
    """
    names = ("t5x", "jax", "flax", "seqio", "tensorflow")
    found = {name: _version(name) for name in names}
    found["tensorflow"] = found["tensorflow"] or _version("tensorflow-cpu")
    spec = importlib.util.find_spec("t5x")
    if found["t5x"] is None and spec and spec.origin:
        found["t5x"] = str(Path(spec.origin).parent)
    return found


def _version(name: str) -> str | None:
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    commit = origin.get("vcs_info", {}).get("commit_id")
    return f"{distribution.version} ({commit})" if commit else distribution.version


def t5x_model(config: T5Config) -> T5XModel:
    """The T5X model of a config: `examples/t5/network.Transformer`, for inference.

    Its vocabularies pass ids through, and it has no optimizer.
    """
    t5x = require_t5x()
    import seqio

    network = t5x.examples.t5.network
    vocabulary = seqio.PassThroughVocabulary(config.vocab_size, eos_id=EOS_ID)
    names = {field for field in network.T5Config.__dataclass_fields__ if hasattr(config, field)}
    fields = {name: getattr(config, name) for name in names}
    fields["dtype"] = jnp.dtype(config.dtype)
    return t5x.models.EncoderDecoderModel(
        module=network.Transformer(network.T5Config(**fields)),
        input_vocabulary=vocabulary,
        output_vocabulary=vocabulary,
        optimizer_def=None,
    )


def to_t5x(model: T5Model, params: Params) -> tuple[T5XModel, Params]:
    """Our model and its parameters, as `model.prepare` laid them out, as T5X's."""
    return t5x_model(model.config), model.restore(params)


def from_t5x(model: T5XModel, params: Params) -> tuple[T5Model, Params]:
    """A T5X model and its parameters as a target: ours, in this back end's orientation.

    In float32 the logits are the same up to rounding. In bfloat16 ours softmaxes
    attention in float32, as T5X does with `float32_attention_logits`.

    Args:
      model: a `t5x.models.EncoderDecoderModel`.
      params: its tree, such as `train_state.params`.

    Returns:
      The model, and the parameters as it reads them.

    Raises:
      ValueError: as `config_from_t5x`; or the parameters are not the model's.
    """
    ours = t5_model(config_from_t5x(model))
    params = nested(flat(params))  # plain dicts, where T5X has frozen ones
    check_params(ours.config, params, "The T5X model's parameters")
    return ours, ours.prepare(params)


def config_from_t5x(model: T5XModel) -> T5Config:
    """The config of a T5X model.

    Raises:
      ValueError: it is not an encoder-decoder of `t5x/examples/t5/network`, or one that our
        T5 can't be; one sentence.
    """
    t5x = require_t5x()
    if not isinstance(model, t5x.models.EncoderDecoderModel):
        raise ValueError(
            "Only T5X's EncoderDecoderModel can be read as a T5, not "
            f"{_name(type(model))}: a T5 has an encoder and a decoder."
        )
    network = type(model.module)
    if network not in (t5x.examples.t5.network.Transformer, _gather_transformer()):
        raise ValueError(
            "Only the network t5x.examples.t5.network.Transformer can be read as a T5, not "
            f"{_name(network)}: another network may lay out its parameters or compute otherwise."
        )
    theirs = model.module.config
    names = T5Config.__dataclass_fields__
    fields = {name: getattr(theirs, name) for name in names} | {"dtype": _dtype(theirs.dtype)}
    try:
        return T5Config(**fields)
    except ValueError as error:
        raise ValueError(f"Our T5 can't be this T5X network: {error}") from error


def _name(of: type) -> str:
    return f"{of.__module__}.{of.__qualname__}"


def _dtype(dtype: Any) -> str:
    try:
        return jnp.dtype(dtype).name
    except TypeError:
        return repr(dtype)  # which T5Config then refuses


def with_gather(model: T5XModel) -> T5XModel:
    """The same T5X model with a gather where T5X looks tokens up by a one-hot product.

    The product reads the whole embedding for every token. A speed-up over T5X should be
    given over this one too, so that nobody credits speculation with it.

    Raises:
      ValueError: as `config_from_t5x`.
    """
    config_from_t5x(model)
    changed = copy.copy(model)
    changed.module = _gather_transformer()(model.module.config)
    return changed


@functools.cache
def _gather_transformer() -> type:
    from flax import linen as nn

    network = require_t5x().examples.t5.network

    def gather(next_fun: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        if isinstance(context.module, network.layers.Embed) and context.method_name == "__call__":
            return jnp.asarray(context.module.embedding, context.module.dtype)[args[0]]
        return next_fun(*args, **kwargs)

    class GatherTransformer(network.Transformer):  # type: ignore[name-defined]
        """T5X's T5, but its tokens are looked up by a gather."""

        def encode(self, *args: Any, **kwargs: Any) -> Any:
            with nn.intercept_methods(gather):
                return super().encode(*args, **kwargs)

        def decode(self, *args: Any, **kwargs: Any) -> Any:
            with nn.intercept_methods(gather):
                return super().decode(*args, **kwargs)

    return GatherTransformer
