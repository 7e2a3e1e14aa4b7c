"""Makes tests/data/hf_*: tiny random T5s in Hugging Face's format, with transformers' logits.

    pip install torch transformers safetensors
    python scripts/make_golden_hf.py --output_dir tests/data

The files are laid out as the published ones are: `hf_t5_1_0` with the copies of its
embedding that t5-small has, `hf_t5_1_1` with a head of its own, `hf_mt5` in bfloat16 and
in two shards. transformers reads them back, so that the logits are of what it makes of
the files. Made with transformers 5.24 and torch 2.13 on a CPU.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForSeq2SeqLM

SIZES = dict(vocab_size=24, d_model=8, d_kv=3, d_ff=12, num_layers=1, num_heads=2)
SHARED = dict(is_encoder_decoder=True, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
CONFIGS: dict[str, dict[str, Any]] = {
    # As t5-small's: neither the activation nor the tying is written down.
    "hf_t5_1_0": dict(model_type="t5", architectures=["T5ForConditionalGeneration"]),
    "hf_t5_1_1": dict(
        model_type="t5",
        architectures=["T5ForConditionalGeneration"],
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    ),
    "hf_mt5": dict(
        model_type="mt5",
        architectures=["MT5ForConditionalGeneration"],
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    ),
}
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
UNREAD = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def draw(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Random weights of a config, under the names that the published files have."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return 0.5 * torch.randn(*shape, generator=generator)

    width, joined, inner = config["d_model"], config["num_heads"] * config["d_kv"], config["d_ff"]
    inputs = ("wi_0", "wi_1") if "gated" in config.get("feed_forward_proj", "") else ("wi",)
    weights = {"shared.weight": normal(config["vocab_size"], width)}
    for stack in ("encoder", "decoder"):
        attentions = ["SelfAttention", "EncDecAttention"][: 1 if stack == "encoder" else 2]
        layers = config["num_layers" if stack == "encoder" else "num_decoder_layers"]
        for block in range(layers):
            for number, name in enumerate([*attentions, "DenseReluDense"]):
                layer = f"{stack}.block.{block}.layer.{number}"
                weights[f"{layer}.layer_norm.weight"] = 1 + normal(width)
                if name == "DenseReluDense":
                    for dense in inputs:
                        weights[f"{layer}.{name}.{dense}.weight"] = normal(inner, width)
                    weights[f"{layer}.{name}.wo.weight"] = normal(width, inner)
                else:
                    for dense in "qkv":
                        weights[f"{layer}.{name}.{dense}.weight"] = normal(joined, width)
                    weights[f"{layer}.{name}.o.weight"] = normal(width, joined)
        first = f"{stack}.block.0.layer.0.SelfAttention"
        weights[f"{first}.relative_attention_bias.weight"] = normal(32, config["num_heads"])
        weights[f"{stack}.final_layer_norm.weight"] = 1 + normal(width)
    if config.get("tie_word_embeddings", True):
        weights |= {name: weights["shared.weight"].clone() for name in COPIES}
        weights[UNREAD] = normal(32, config["num_heads"])
    else:
        weights["lm_head.weight"] = normal(config["vocab_size"], width)
    return weights


def save(path: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    """Writes a directory; bfloat16 in shards for mT5."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    if config["model_type"] != "mt5":
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    index: dict[str, Any] = {"metadata": {}, "weight_map": {}}
    for number, shard in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        held = {name: weights[name].to(torch.bfloat16) for name in shard}
        save_file(held, path / file, metadata={"format": "pt"})
        index["weight_map"] |= dict.fromkeys(shard, file)
    (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n", "utf-8")


def save_logits(path: Path, seed: int) -> None:
    """Writes what transformers computes: padded sources [2, 60], some of 50 target positions."""
    model = AutoModelForSeq2SeqLM.from_pretrained(path, dtype=torch.float32).eval()
    rng = np.random.default_rng(seed)
    inputs = rng.integers(2, 24, (2, 60))
    inputs[1, 37:] = 0
    targets = np.concatenate([np.zeros((2, 1), int), rng.integers(2, 24, (2, 49))], 1)
    positions = np.array([0, 1, 2, 9, 23, 49])
    with torch.no_grad():
        out = model(
            input_ids=torch.tensor(inputs),
            attention_mask=torch.tensor(inputs != 0),
            decoder_input_ids=torch.tensor(targets),
        )
    np.savez_compressed(
        path / "golden.npz",
        encoder_input_tokens=inputs.astype(np.int8),
        decoder_input_tokens=targets.astype(np.int8),
        logits_positions=positions,
        logits=out.logits[:, positions].numpy(),
    )


def main() -> None:
    """Writes the three directories."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output_dir", type=Path, required=True)
    output = parser.parse_args().output_dir
    for seed, (name, config) in enumerate(CONFIGS.items()):
        whole = {**config, **SIZES, **SHARED, "num_decoder_layers": 2}
        save(output / name, whole, draw(whole, seed))
        save_logits(output / name, seed)


if __name__ == "__main__":
    main()
