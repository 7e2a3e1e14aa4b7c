"""Configs from T5X's gin files, where it is installed."""

import gin
import pytest

from specdec_jax.t5x_gin import read_gin

pytestmark = pytest.mark.usefixtures("t5x")


@pytest.mark.parametrize(
    ("file", "sizes"),
    [
        ("t5_1_1/base.gin", (32128, 768, 12, 12, 12, 64, 2048, False)),
        ("t5_1_1/small.gin", (32128, 512, 6, 8, 8, 64, 1024, False)),
        ("t5_1_0/3B.gin", (32128, 1024, 32, 24, 24, 128, 16384, True)),
        ("byt5/small.gin", (384, 1472, 6, 12, 4, 64, 3584, False)),
        ("mt5/base.gin", (250112, 768, 12, 12, 12, 64, 2048, False)),
    ],
)
def test_a_gin_file_of_t5x_tells_its_config(file, sizes):
    config = read_gin(f"t5x/examples/t5/{file}")
    assert sizes == (
        *(config.vocab_size, config.emb_dim, config.num_heads, config.num_encoder_layers),
        *(config.num_decoder_layers, config.head_dim, config.mlp_dim, config.logits_via_embedding),
    )
    assert config.mlp_activations == (("relu",) if "1_0" in file else ("gelu", "linear"))
    assert (config.dropout_rate, config.dtype) == (0.0, "bfloat16")


def test_bindings_and_a_file_of_ones_own(tmp_path):
    file = tmp_path / "mine.gin"
    file.write_text(
        "include 't5x/examples/t5/t5_1_1/small.gin'\n"
        "network.T5Config.num_decoder_layers = 2\nDROPOUT_RATE = 0.3\n"
    )
    config = read_gin(file, ["network.T5Config.dtype = 'float32'"])
    assert config.num_decoder_layers == 2
    assert config.dtype == "float32"
    assert config.dropout_rate == 0.3


def test_gins_own_configuration_stays():
    gin.clear_config()
    gin.parse_config("mine = 3")
    gin.finalize()
    before = gin.config_str()
    # The second would find `network.T5Config` ambiguous if the first left its names behind.
    with pytest.raises(ValueError, match="scalable_t5"):
        read_gin("t5x/examples/scalable_t5/t5_1_1/small.gin")
    read_gin("t5x/examples/t5/t5_1_1/small.gin")
    assert gin.config_str() == before
    assert gin.config_is_locked()
    gin.clear_config()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("vocabulary = 3\n", "sets no MODEL"),
        ("MODEL = 3\n", r"not builtins\.int"),
        ("MODEL = @@\n", "gin can't read the model"),
        ("MODEL = %NOT_SET\n", "gin can't read the model"),
        ("import not_there\nMODEL = @not_there.Model()\n", "gin can't read the model.*not_there"),
        (
            "from t5x import models\nMODEL = @models.DecoderOnlyModel()\n"
            "models.DecoderOnlyModel:\n  module = None\n  vocabulary = None\n"
            "  optimizer_def = None\n",
            r"not t5x\.models\.DecoderOnlyModel",
        ),
    ],
)
def test_a_gin_file_of_something_else_is_one_sentence(tmp_path, text, match):
    (tmp_path / "model.gin").write_text(f"from __gin__ import dynamic_registration\n{text}")
    with pytest.raises(ValueError, match=match) as error:
        read_gin(tmp_path / "model.gin")
    assert "\n" not in str(error.value)


def test_a_gin_file_that_is_not_there():
    with pytest.raises(FileNotFoundError, match="no gin file 'nowhere.gin'.*base.gin"):
        read_gin("nowhere.gin")
