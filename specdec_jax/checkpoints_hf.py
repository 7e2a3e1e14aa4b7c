"""Hugging Face's T5, 1.0, 1.1, Flan and mT5: directories of safetensors and `config.json`.

Linear layers are kept `[out, in]` there, kernels `[in, out]` here; position biases
`[bucket, head]` there, `[head, bucket]` here: these are transposed as they are read.
"""

import json
import os
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from specdec_jax.stored import Index, StoredArray, some
from specdec_jax.t5 import T5Config

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
_SHARDS = f"{WEIGHTS}.index.json"
_OTHER_WEIGHTS = ("pytorch_model.bin", "flax_model.msgpack", "tf_model.h5", "pytorch_model.bin.")
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}

# What transformers takes where config.json leaves a field out.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "t5": dict(vocab_size=32128, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8),
    "mt5": dict(vocab_size=250112, d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_heads=6),
}
_ACTIVATION_OF = {"t5": "relu", "mt5": "gated-gelu"}
# What our network has no choice about.
_FIXED = {
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
}
# "gated-gelu" is the tanh approximation, as everywhere in T5; a bare "gelu" there is not.
_ACTIVATIONS = {
    "relu": ("relu",),
    "silu": ("silu",),
    "gelu_new": ("gelu",),
    "gated-relu": ("relu", "linear"),
    "gated-silu": ("silu", "linear"),
    "gated-gelu": ("gelu", "linear"),
    "gated-gelu_new": ("gelu", "linear"),
}

_EMBEDDING, _HEAD = "shared.weight", "lm_head.weight"
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# The first exports had it by mistake; nothing reads it.
_UNREAD = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
_POSITION = ".block.0.layer.0.SelfAttention.relative_attention_bias.weight"
_BLOCK = re.compile(r"(encoder|decoder)\.block\.(\d+)\.layer\.(\d\.\w+?)(?:\.(\w+))?\.weight")
_SUBLAYERS = {
    "encoder": {
        "0.SelfAttention": "attention",
        "0.layer_norm": "pre_attention_layer_norm",
        "1.DenseReluDense": "mlp",
        "1.layer_norm": "pre_mlp_layer_norm",
    },
    "decoder": {
        "0.SelfAttention": "self_attention",
        "0.layer_norm": "pre_self_attention_layer_norm",
        "1.EncDecAttention": "encoder_decoder_attention",
        "1.layer_norm": "pre_cross_attention_layer_norm",
        "2.DenseReluDense": "mlp",
        "2.layer_norm": "pre_mlp_layer_norm",
    },
}
# The matrices of a sublayer.
_MATRICES = {"q": "query", "k": "key", "v": "value", "o": "out"} | {
    name: name for name in ("wi", "wi_0", "wi_1", "wo")
}


def t5x_name(name: str) -> str | None:
    """Hugging Face's name of a parameter -> T5X's; None where T5X has no such parameter.

    >>> t5x_name("decoder.block.3.layer.1.EncDecAttention.q.weight")
    'decoder/layers_3/encoder_decoder_attention/query/kernel'
    """
    stack = name.split(".")[0]
    if name == _EMBEDDING:
        return "token_embedder/embedding"
    if name == _HEAD:
        return "decoder/logits_dense/kernel"
    if name == f"{stack}{_POSITION}":
        return f"{stack}/relpos_bias/rel_embedding"
    if name == f"{stack}.final_layer_norm.weight":
        return f"{stack}/{stack}_norm/scale"
    found = _BLOCK.fullmatch(name)
    sublayer = found and _SUBLAYERS[found[1]].get(found[3])
    if not found or not sublayer:
        return None
    path = f"{found[1]}/layers_{found[2]}/{sublayer}"
    if found[4] is None:
        return f"{path}/scale"
    return f"{path}/{_MATRICES[found[4]]}/kernel" if found[4] in _MATRICES else None


def is_config(fields: Any) -> bool:
    """Whether JSON is Hugging Face's config of some model."""
    return isinstance(fields, dict) and "model_type" in fields


def parse_config(fields: dict[str, Any], where: str) -> T5Config:
    """Hugging Face's `config.json` as ours; `logits_via_embedding` if logits are scaled.

    Args:
      fields: its JSON.
      where: the file, for messages.

    Raises:
      ValueError: another architecture, or a variant that T5X's network is not.
    """
    kind = str(fields["model_type"])
    if kind not in _DEFAULTS:
        raise ValueError(
            f"{where!r} is of a model of type {kind!r}, another architecture: expected "
            f"{' or '.join(map(repr, _DEFAULTS))}."
        )
    for name, value in _FIXED.items():
        if fields.get(name, value) != value:
            raise ValueError(f"{where!r} has {name} {fields[name]}; T5 has {value}.")
    activation = fields.get("feed_forward_proj", _ACTIVATION_OF[kind])
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"{where!r} has feed_forward_proj {activation!r}: expected {', '.join(_ACTIVATIONS)}."
        )
    sizes = {name: fields.get(name, size) for name, size in _DEFAULTS[kind].items()}
    try:
        return T5Config(
            vocab_size=sizes["vocab_size"],
            emb_dim=sizes["d_model"],
            num_heads=sizes["num_heads"],
            num_encoder_layers=sizes["num_layers"],
            num_decoder_layers=fields.get("num_decoder_layers") or sizes["num_layers"],
            head_dim=sizes["d_kv"],
            mlp_dim=sizes["d_ff"],
            mlp_activations=_ACTIVATIONS[activation],
            logits_via_embedding=_scales_logits(kind, fields),
        )
    except ValueError as error:
        raise ValueError(f"{where!r} is not a T5's: {error}") from error


def _scales_logits(kind: str, fields: dict[str, Any]) -> bool:
    """Whether logits are scaled by 1/sqrt(d_model), which 1.0's tied ones are.

    Up to release 4 of transformers, `tie_word_embeddings` says so. Release 5 writes it as
    true whatever the model, keeps `scale_decoder_outputs` for T5 and never scales mT5.
    """
    if "scale_decoder_outputs" in fields:
        return bool(fields["scale_decoder_outputs"])
    release = str(fields.get("transformers_version", "")).split(".")[0]
    if kind == "mt5":
        return fields.get("tie_word_embeddings") is True and not release >= "5"
    return fields.get("tie_word_embeddings") is not False


def read(path: str, fields: dict[str, Any]) -> tuple[T5Config, dict[str, StoredArray]]:
    """Opens a directory -> its config, and unread arrays by T5X's names, "a/b/kernel".

    An array that T5X has no name for keeps its own, for the caller to complain about.

    Args:
      path: the directory.
      fields: what its `config.json` holds.

    Raises:
      FileNotFoundError: there are no safetensors, or a shard of them is missing.
      ValueError: another architecture, or a file is damaged; one sentence.
    """
    config = parse_config(fields, os.path.join(path, CONFIG))
    stored = {name: array for file in _files(path) for name, array in _open(file).items()}
    stored.pop(_UNREAD, None)
    copies = [stored.pop(name) for name in _COPIES if name in stored]
    if copies:  # of the embedding; some exports keep only these
        stored.setdefault(_EMBEDDING, copies[0])
    _settle_head(config, stored, path)
    arrays = {}
    for theirs, array in stored.items():
        ours = t5x_name(theirs)
        turned = (ours or "").endswith(("/kernel", "/rel_embedding"))
        arrays[ours or theirs] = array.transposed if turned else array
    return config, arrays


def _settle_head(config: T5Config, stored: dict[str, StoredArray], path: str) -> None:
    """Makes `lm_head.weight` be there exactly where logits are not scaled.

    Scaled, it can only be the embedding again. Not scaled and absent, it is the embedding
    too, which T5X has no name for: the head becomes a matrix of its own.
    """
    embedding = stored.get(_EMBEDDING)
    if not config.logits_via_embedding:
        if embedding:
            stored.setdefault(_HEAD, embedding)
        return
    head = stored.pop(_HEAD, None)
    if head and embedding and not np.array_equal(head.read_whole(), embedding.read_whole()):
        raise ValueError(
            f"{path!r} has an {_HEAD} that is not {_EMBEDDING}, where config.json ties the two; "
            'if the head was trained by itself, set "tie_word_embeddings": false there.'
        )


def _files(path: str) -> list[str]:
    """The safetensors of a directory; a model in shards has an index of them."""
    index = os.path.join(path, _SHARDS)
    if os.path.isfile(index):
        try:
            with open(index, encoding="utf-8") as f:
                names = sorted(set(json.load(f)["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{index!r} is not an index of safetensors.") from error
    else:
        names = [WEIGHTS]
    files = [os.path.join(path, os.path.basename(name)) for name in names]
    missing = [name for name, file in zip(names, files, strict=True) if not os.path.isfile(file)]
    if not missing:
        return files
    other = [name for name in sorted(os.listdir(path)) if name.startswith(_OTHER_WEIGHTS)]
    if other and names == [WEIGHTS]:
        raise FileNotFoundError(
            f"{path!r} has {other[0]} but no {WEIGHTS}: write one, with transformers' "
            'AutoModelForSeq2SeqLM.from_pretrained("...").save_pretrained("...", '
            "safe_serialization=True)."
        )
    raise FileNotFoundError(f"{path!r} is incomplete: it lacks {some(missing)}.")


def _open(file: str) -> dict[str, StoredArray]:
    try:
        with safe_open(file, "numpy") as f:
            slices = {name: f.get_slice(name) for name in f.keys()}  # noqa: SIM118
            heads = {name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{file!r} is not safetensors, or cut short ({os.path.getsize(file)} bytes): {error}."
        ) from error
    odd = [f"{name} is {dtype}" for name, (_, dtype) in heads.items() if dtype not in _DTYPES]
    if odd:
        raise ValueError(f"{file!r} holds other than floats: {some(odd)}.")
    return {name: _stored(file, name, *head) for name, head in heads.items()}


def _stored(file: str, name: str, shape: tuple[int, ...], dtype: str) -> StoredArray:
    def read(index: Index) -> np.ndarray:
        # Opened each time: a mapped file would count as memory as long as it is open.
        with safe_open(file, "numpy") as f:
            return f.get_slice(name)[index]

    return StoredArray(shape, jnp.dtype(_DTYPES[dtype]), read)
