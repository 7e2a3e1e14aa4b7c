"""Hugging Face's T5: transformers' own logits, and what is refused."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specdec_jax import T5Model
from specdec_jax.checkpoints import load_config, load_params, open_checkpoint
from specdec_jax.checkpoints_hf import parse_config, t5x_name

from .conftest import DATA

NAMES = ["hf_t5_1_0", "hf_t5_1_1", "hf_mt5"]


def logits(model, params, inputs, targets):
    apply = jax.jit(model.module.apply)
    return apply({"params": model.prepare(params)}, inputs.astype(int), targets.astype(int))


@pytest.mark.parametrize("feature_major", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name, feature_major):
    config, params = load_params(DATA / name)
    assert config.logits_via_embedding == (name == "hf_t5_1_0")
    assert config.mlp_activations == (("relu",) if name == "hf_t5_1_0" else ("gelu", "linear"))
    golden = np.load(DATA / name / "golden.npz")
    model = T5Model(config, feature_major)
    got = logits(model, params, golden["encoder_input_tokens"], golden["decoder_input_tokens"])
    np.testing.assert_allclose(
        got[:, golden["logits_positions"]], golden["logits"], rtol=0, atol=1e-4
    )


def test_a_config_of_the_callers_goes_first():
    half = dataclasses.replace(load_config(DATA / "hf_mt5"), dtype="bfloat16")
    assert load_params(DATA / "hf_mt5", config=half)[0] == half


def test_shards_in_bfloat16_stay_so():
    _, params = load_params(DATA / "hf_mt5", dtype=None)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"bfloat16"}


def test_a_part_of_a_turned_matrix_is_read_as_a_part():
    array = open_checkpoint(DATA / "hf_t5_1_1").arrays["encoder/layers_0/mlp/wo/kernel"]
    whole = load_file(DATA / "hf_t5_1_1" / "model.safetensors")[
        "encoder.block.0.layer.1.DenseReluDense.wo.weight"
    ].T
    assert array.shape == whole.shape == (12, 8)
    np.testing.assert_array_equal(array.read((slice(2, 9), slice(1, 3))), whole[2:9, 1:3])


@pytest.fixture
def copy(tmp_path):
    """Copies a golden directory, with other fields in its config."""

    def make(name, **fields):
        path = tmp_path / name
        shutil.copytree(DATA / name, path)
        file = path / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
        return path

    return make


def edit(path, change):
    weights = load_file(path / "model.safetensors")
    change(weights)
    save_file(weights, path / "model.safetensors")


def test_a_copy_stands_for_the_embedding(copy):
    path = copy("hf_t5_1_0")
    edit(path, lambda weights: weights.pop("shared.weight"))
    want = load_params(DATA / "hf_t5_1_0")[1]
    assert jax.tree.all(jax.tree.map(np.array_equal, load_params(path)[1], want))


def test_a_head_that_is_no_copy_is_not_dropped_silently(copy):
    path = copy("hf_t5_1_0")
    edit(path, lambda weights: weights.update({"lm_head.weight": weights["shared.weight"] + 1}))
    with pytest.raises(ValueError, match="lm_head.weight that is not shared.weight"):
        load_params(path)


def test_unscaled_logits_without_a_head_are_of_the_embedding(copy):
    path = copy("hf_t5_1_1")
    edit(path, lambda weights: weights.pop("lm_head.weight"))
    config, params = load_params(path)
    assert not config.logits_via_embedding
    head, embedding = params["decoder"]["logits_dense"], params["token_embedder"]
    np.testing.assert_array_equal(head["kernel"], embedding["embedding"].T)


@pytest.mark.parametrize(
    ("fields", "scaled"),
    [
        ({"model_type": "t5"}, True),
        ({"model_type": "t5", "tie_word_embeddings": False}, False),
        ({"model_type": "t5", "tie_word_embeddings": True, "scale_decoder_outputs": False}, False),
        ({"model_type": "t5", "tie_word_embeddings": True, "scale_decoder_outputs": True}, True),
        ({"model_type": "mt5"}, False),
        ({"model_type": "mt5", "tie_word_embeddings": False}, False),
        (
            {"model_type": "mt5", "tie_word_embeddings": True, "transformers_version": "4.57.1"},
            True,
        ),
        (
            {"model_type": "mt5", "tie_word_embeddings": True, "transformers_version": "5.24.0"},
            False,
        ),
    ],
)
def test_which_logits_are_scaled(fields, scaled):
    assert parse_config(fields, "config.json").logits_via_embedding == scaled


def test_what_config_json_leaves_out_is_as_in_transformers():
    small, multilingual = (parse_config({"model_type": kind}, "") for kind in ("t5", "mt5"))
    assert (small.vocab_size, small.mlp_dim, small.num_decoder_layers) == (32128, 2048, 6)
    assert small.mlp_activations == ("relu",)
    assert (multilingual.vocab_size, multilingual.mlp_dim) == (250112, 1024)
    assert (multilingual.num_heads, multilingual.num_decoder_layers) == (6, 8)
    assert multilingual.mlp_activations == ("gelu", "linear")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "umt5"}, "type 'umt5', another architecture: expected 't5' or 'mt5'"),
        ({"model_type": ["t5"]}, "another architecture"),
        ({"feed_forward_proj": "gelu"}, "has feed_forward_proj 'gelu': expected relu,"),
        ({"relative_attention_num_buckets": 64}, "num_buckets 64; T5 has 32"),
        ({"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon 1e-05; T5 has 1e-06"),
        ({"d_model": "wide"}, "is not a T5's: emb_dim must be a whole number"),
        ({"num_layers": 3, "num_decoder_layers": 1}, "lack encoder/layers_1/.*unknown decoder/lay"),
        ({"d_ff": 13}, r"mlp/wi_0/kernel is \(8, 12\), expected \(8, 13\)"),
    ],
)
def test_what_does_not_fit_is_one_sentence(copy, fields, message):
    with pytest.raises(ValueError, match=message) as error:
        load_params(copy("hf_t5_1_1", **fields))
    assert "\n" not in str(error.value)


def test_umt5s_biases_in_every_layer_are_unknown(copy):
    path, name = copy("hf_t5_1_1"), "block.{}.layer.0.SelfAttention.relative_attention_bias.weight"
    first = f"decoder.{name.format(0)}"
    edit(path, lambda w: w.update({f"decoder.{name.format(1)}": w[first]}))
    with pytest.raises(ValueError, match=r"unknown decoder.block.1.layer.0.SelfAtt\w+.relative"):
        load_params(path)


def test_an_encoder_alone_is_not_a_t5(copy):
    path = copy("hf_t5_1_1")

    def drop(weights):
        for name in [name for name in weights if name.startswith(("decoder", "lm_head"))]:
            del weights[name]

    edit(path, drop)
    with pytest.raises(ValueError, match="lack decoder/decoder_norm/scale.* and 25 more"):
        load_params(path)


def test_files_that_are_missing_or_damaged(copy, tmp_path):
    path = copy("hf_mt5")
    shard = path / "model-00002-of-00002.safetensors"
    data = shard.read_bytes()
    for bad in (data[:-5], data[:20], b"version https://git-lfs.github.com/spec/v1\n"):
        shard.write_bytes(bad)
        with pytest.raises(ValueError, match="00002.safetensors' is not safetensors, or cut short"):
            load_params(path)
    shard.unlink()
    with pytest.raises(FileNotFoundError, match="incomplete: it lacks model-00002-of-00002"):
        load_params(path)
    (path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match="not an index of safetensors"):
        load_params(path)

    path = copy("hf_t5_1_0")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=r"has pytorch_model.bin but no model.safetensors"):
        load_params(path)
    (path / "pytorch_model.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"it lacks model.safetensors\."):
        load_params(path)

    path = copy("hf_t5_1_1")
    (path / "config.json").unlink()
    for given in (path, path / "model.safetensors"):
        with pytest.raises(FileNotFoundError, match="no config.json: give a directory with both"):
            load_params(given)


def test_whole_numbers_are_refused(copy):
    path = copy("hf_t5_1_1")
    edit(path, lambda w: w.update({"shared.weight": w["shared.weight"].astype(np.int8)}))
    with pytest.raises(ValueError, match="other than floats: shared.weight is I8"):
        load_params(path)


@pytest.mark.parametrize(
    "name", ["lm_tail.weight", "encoder.block.0.layer.2.layer_norm.weight", "decoder.weight"]
)
def test_names_that_t5x_does_not_have(name):
    assert t5x_name(name) is None


LIVE = [
    ("T5", {}),
    ("T5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    ("T5", {"feed_forward_proj": "gated-silu", "num_decoder_layers": 1}),
    ("MT5", {}),
]


@pytest.mark.parametrize(("kind", "fields"), LIVE)
def test_against_a_live_model(tmp_path, kind, fields):
    """What this release of transformers writes, with every weight moved off its start."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = dict(vocab_size=40, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=3)
    config = getattr(transformers, f"{kind}Config")(
        **sizes, decoder_start_token_id=0, pad_token_id=0, **fields
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)
    model.save_pretrained(tmp_path, safe_serialization=True, max_shard_size="20kB")
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(2, 40, (2, 30)), rng.integers(2, 40, (2, 20))
    inputs[1, 11:], targets[:, 0] = 0, 0
    with torch.no_grad():
        want = model(
            input_ids=torch.tensor(inputs),
            attention_mask=torch.tensor(inputs != 0),
            decoder_input_ids=torch.tensor(targets),
        ).logits.numpy()
    found, params = load_params(tmp_path)
    assert load_config(tmp_path) == found
    np.testing.assert_allclose(
        logits(T5Model(found), params, inputs, targets), want, rtol=1e-5, atol=1e-4
    )
