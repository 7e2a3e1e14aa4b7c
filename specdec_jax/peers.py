"""The same T5 in Hugging Face `transformers` (plain and assisted) and in CTranslate2.

Both are given our parameters, so that they can be raced on the same inputs. They are imported
where they are asked for, and needed for nothing else.
"""

import dataclasses
import importlib.util
import os
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from specdec_jax.checkpoints_hf import t5x_name
from specdec_jax.generate import Batch
from specdec_jax.model import T5Model
from specdec_jax.sampling import Sampling
from specdec_jax.stored import flat
from specdec_jax.types import Params
from specdec_jax.vocabulary import EOS_ID, PAD_ID

_EMBEDDING, _HEAD = "token_embedder/embedding", "decoder/logits_dense/kernel"


class PeerResult(NamedTuple):
    """Tokens of another's decode."""

    tokens: np.ndarray  # int32[B, N], 0 after the end
    lengths: np.ndarray  # int32[B]


def installed(name: str) -> bool:
    """Whether `transformers` (with torch) or `ctranslate2` can be used; both need torch."""
    return all(importlib.util.find_spec(module) for module in ("torch", "transformers", name))


def to_transformers(model: T5Model, params: Params) -> Any:
    """Our T5 as a `transformers.T5ForConditionalGeneration`, in float32.

    Args:
      model: ours.
      params: as `model.prepare` laid them out.
    """
    import torch
    import transformers

    c = model.config
    activation = {("relu",): "relu", ("gelu", "linear"): "gated-gelu"}.get(c.mlp_activations)
    if activation is None:
        raise ValueError(f"transformers has no T5 with activations {c.mlp_activations}.")
    config = transformers.T5Config(
        vocab_size=c.vocab_size,
        d_model=c.emb_dim,
        d_kv=c.head_dim,
        d_ff=c.mlp_dim,
        num_layers=c.num_encoder_layers,
        num_decoder_layers=c.num_decoder_layers,
        num_heads=c.num_heads,
        feed_forward_proj=activation,
        tie_word_embeddings=c.logits_via_embedding,
        scale_decoder_outputs=c.logits_via_embedding,
        dropout_rate=0.0,
        decoder_start_token_id=PAD_ID,
        pad_token_id=PAD_ID,
        eos_token_id=EOS_ID,
    )
    network = transformers.T5ForConditionalGeneration(config).eval()
    if not c.logits_via_embedding:  # release 5 ties them whatever the config says
        network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.detach().clone())
    # It makes a decoder's cache (5.24) with as many layers as this says.
    network.config.num_layers = c.num_decoder_layers
    leaves = flat(model.restore(params))
    state = network.state_dict()
    for name, tensor in state.items():
        path = t5x_name(name)
        if path is None or (path == _HEAD and c.logits_via_embedding):
            path = _EMBEDDING  # of which there are copies
        array = np.array(leaves[path], np.float32)
        transposed = path.endswith(("kernel", "rel_embedding"))
        tensor.copy_(torch.from_numpy(array.T.copy() if transposed else array))
    return network


@dataclasses.dataclass(frozen=True)
class Transformers:
    """`generate`, with a draft as `assistant_model` or without.

    Attributes:
      network: of `to_transformers`.
      max_new_tokens: N.
      sampling: temperature, top-k, top-p.
      eos_id: the token that ends a row; -1 for none.
      assistant: the draft; it goes with batches of one row.
      gamma: guesses a round.
    """

    network: Any
    max_new_tokens: int
    sampling: Sampling
    eos_id: int
    assistant: Any = None
    gamma: int = 0

    def __call__(self, batch: Batch) -> PeerResult:
        """Decodes a batch."""
        import torch

        inputs = torch.from_numpy(np.asarray(batch.inputs, np.int64))
        sampled: dict[str, Any] = {"do_sample": False}
        if self.sampling.temperature > 0:
            sampled = {
                "do_sample": True,
                "temperature": self.sampling.temperature,
                "top_k": self.sampling.top_k,
                "top_p": self.sampling.top_p,
            }
        if self.assistant is not None:
            self.assistant.generation_config.num_assistant_tokens = self.gamma
            self.assistant.generation_config.num_assistant_tokens_schedule = "constant"
            sampled["assistant_model"] = self.assistant
        with torch.no_grad():
            out = self.network.generate(
                inputs,
                attention_mask=(inputs != PAD_ID).long(),
                max_new_tokens=self.max_new_tokens,
                eos_token_id=self.eos_id if self.eos_id >= 0 else None,
                **sampled,
            )
        return _result(out[:, 1:].tolist(), self.max_new_tokens, self.eos_id)


class CTranslate2:
    """`translate_batch` of a converted model, in float32, with as many threads as there are."""

    def __init__(self, network: Any, max_new_tokens: int, sampling: Sampling, eos_id: int):
        """Converts a model of `to_transformers`; the vocabulary is its ids as text."""
        import ctranslate2
        from ctranslate2.converters import transformers as converters

        decoder_layers = network.config.num_layers
        network.config.num_layers = len(network.encoder.block)  # what the converter reads there
        spec = converters._MODEL_LOADERS["T5Config"].get_model_spec(network)
        network.config.num_layers = decoder_layers
        self._pieces = ["<pad>", "</s>", "<unk>"]
        self._pieces += [str(i) for i in range(3, network.config.vocab_size)]
        spec.register_source_vocabulary(self._pieces)
        spec.register_target_vocabulary(self._pieces)
        spec.config.decoder_start_token = "<pad>"
        spec.config.add_source_eos = False
        spec.validate()
        spec.optimize(quantization="float32")
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        self._most, self._sampling, self._eos_id = max_new_tokens, sampling, eos_id
        with tempfile.TemporaryDirectory() as directory:
            spec.save(directory)
            self._translator = ctranslate2.Translator(
                directory, device="cpu", compute_type="float32", intra_threads=_threads()
            )

    def __call__(self, batch: Batch) -> PeerResult:
        """Decodes a batch."""
        sources = [
            [self._pieces[i] for i in row if i != PAD_ID] for row in np.asarray(batch.inputs)
        ]
        sampled: dict[str, Any] = {}
        if self._sampling.temperature > 0:
            sampled = {
                "sampling_topk": self._sampling.top_k,
                "sampling_topp": self._sampling.top_p,
                "sampling_temperature": self._sampling.temperature,
            }
        results = self._translator.translate_batch(
            sources,
            beam_size=1,
            max_decoding_length=self._most,
            min_decoding_length=self._most if self._eos_id < 0 else 1,
            max_input_length=0,
            return_end_token=True,
            **sampled,
        )
        rows = [[self._ids[piece] for piece in result.hypotheses[0]] for result in results]
        return _result(rows, self._most, self._eos_id)


def _threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _result(rows: Sequence[Sequence[int]], most: int, eos_id: int) -> PeerResult:
    """Rows of ids, padded to N and cut behind their ends."""
    tokens = np.zeros((len(rows), most), np.int32)
    lengths = np.zeros(len(rows), np.int32)
    for i, row in enumerate(rows):
        ids = list(row)[:most]
        if eos_id in ids:
            ids = ids[: ids.index(eos_id) + 1]
        tokens[i, : len(ids)] = ids
        lengths[i] = len(ids)
    return PeerResult(tokens, lengths)
