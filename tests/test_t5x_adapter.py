"""T5X imported, or asked for; its models as ours and ours as T5X's."""

import ast
import dataclasses
import functools
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import t5x_adapter
from specdec_jax.model import T5Model
from specdec_jax.stored import flat
from specdec_jax.t5x_adapter import config_from_t5x, from_t5x, t5x_model, to_t5x, with_gather
from specdec_jax.t5x_decoding import t5x_beam_decode, t5x_decode
from tests.conftest import sources
from tests.t5x_models import CONFIGS, T5_1_0, T5_1_1, both, inputs_of

ROOT = Path(t5x_adapter.__file__).parents[1]


def run(code, *path):
    """Runs Python where T5X is found on this path only."""
    hide = "import os, sys; sys.path = [p for p in sys.path if not os.path.isdir(f'{p}/t5x')]"
    paths = f"sys.path[:0] = {[str(p) for p in (*path, ROOT)]}"
    script = f"{hide}\n{paths}\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ASK = """
from specdec_jax import t5x_adapter
try:
    t5x_adapter.require_t5x()
except ImportError as error:
    print(t5x_adapter.is_installed(), type(error).__name__, error)
"""


@pytest.fixture(params=["nothing", "a directory that is no package"])
def no_t5x(request, tmp_path):
    if request.param != "nothing":
        (tmp_path / "t5x" / "t5x").mkdir(parents=True)  # a checkout's parent directory
        (tmp_path / "t5x" / "README.md").touch()
    return tmp_path


def test_a_missing_t5x_is_one_sentence_that_says_how_to_get_it(no_t5x):
    said = run(ASK, no_t5x)
    assert said.startswith("False MissingExtraError This needs T5X, which is not installed")
    assert "pip install 'specdec_jax[t5x]'" in said
    assert "pip install --no-deps git+https://github.com/google-research/t5x" in said
    assert "\n" not in said


def test_a_package_that_t5x_lacks_is_named(tmp_path):
    (tmp_path / "t5x").mkdir()
    (tmp_path / "t5x" / "__init__.py").write_text("import airio.core\nimport not_there.part\n")
    said = run(ASK + "import sys\nprint('airio' in sys.modules)", tmp_path)
    assert said.splitlines() == [
        "True MissingExtraError T5X needs the package not_there, which is not installed; "
        "get it with: pip install 'specdec_jax[t5x]'",
        "False",  # the stand-in is gone
    ]


def test_a_stand_in_of_the_callers_own_is_left_in_place(tmp_path):
    (tmp_path / "t5x").mkdir()
    (tmp_path / "t5x" / "__init__.py").write_text("import airio.core\nimport not_there\n")
    own = "import sys, types\nfor name in ('airio', 'airio.core'):\n"
    own += "    sys.modules[name] = types.ModuleType(name)\n"
    said = run(f"{own}{ASK}\nprint('airio.core' in sys.modules)", tmp_path)
    assert said.startswith("True MissingExtraError T5X needs the package not_there")
    assert said.endswith("\nTrue")


def test_a_fault_within_t5x_is_not_called_missing(tmp_path):
    (tmp_path / "t5x").mkdir()
    (tmp_path / "t5x" / "__init__.py").write_text("import t5x.a_part_that_is_not_there\n")
    said = run(ASK, tmp_path)
    assert said == "True ModuleNotFoundError No module named 't5x.a_part_that_is_not_there'"


def test_versions_name_what_is_there_and_what_is_not(tmp_path):
    code = "from specdec_jax import t5x_adapter; print(t5x_adapter.versions())"
    found = ast.literal_eval(run(code))
    assert found["t5x"] is None
    assert found["jax"] == jax.__version__
    package = tmp_path / "t5x"
    package.mkdir()
    (package / "__init__.py").touch()
    assert ast.literal_eval(run(code, tmp_path))["t5x"] == str(package)
    info = tmp_path / "t5x-0.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: t5x\nVersion: 0.0.0\n")
    (info / "direct_url.json").write_text('{"url": "u", "vcs_info": {"commit_id": "cc342d4"}}')
    assert ast.literal_eval(run(code, tmp_path))["t5x"] == "0.0.0 (cc342d4)"


# Models


@CONFIGS
def test_logits_are_t5xs(t5x, config):
    theirs, their_params, model, params = both(config)
    inputs, targets = inputs_of(config), sources(4, 40, config.vocab_size, seed=1)
    targets = jnp.maximum(targets, 2)  # T5X masks where the targets are padding
    shifted = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)))
    apply = jax.jit(functools.partial(theirs.module.apply, enable_dropout=False))
    want = apply({"params": their_params}, inputs, shifted, targets)
    have = jax.jit(model.module.apply)({"params": params}, inputs, shifted)
    assert np.abs(have - want).max() < 1e-5 * np.abs(want).max()


@CONFIGS
def test_a_model_goes_to_t5x_and_back(t5x, config):
    theirs, their_params, model, params = both(config)
    assert model == T5Model(config, feature_major=jax.default_backend() == "cpu")
    again, again_params = to_t5x(model, params)
    assert again.module == theirs.module
    want, have = flat(their_params), flat(again_params)
    assert want.keys() == have.keys()
    for name in want:
        np.testing.assert_array_equal(have[name], want[name])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_field_of_a_config_goes_there_and_back(t5x, dtype):
    config = dataclasses.replace(T5_1_0, dtype=dtype, dropout_rate=0.25)
    assert config_from_t5x(t5x_model(config)) == config


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"mlp_activations": ("tanh",)}, "can't be this T5X network: mlp_activations"),
        ({"mlp_activations": (jax.nn.gelu,)}, "can't be this T5X network: mlp_activations"),
        ({"dtype": jnp.float16}, "can't be this T5X network: dtype.*float16"),
        ({"dtype": "brainfloat"}, "can't be this T5X network: dtype.*brainfloat"),
    ],
)
def test_what_our_t5_can_not_be_is_refused(t5x, change, match):
    theirs = t5x_model(T5_1_1)
    network = t5x.examples.t5.network
    theirs.module = network.Transformer(theirs.module.config.replace(**change))
    with pytest.raises(ValueError, match=match):
        from_t5x(theirs, {})


def test_another_network_is_refused_by_name(t5x):
    class Mine(t5x.examples.t5.network.Transformer):
        pass

    theirs = t5x_model(T5_1_1)
    theirs.module = Mine(theirs.module.config)
    for read in (config_from_t5x, with_gather):
        with pytest.raises(ValueError, match=r"not tests\.test_t5x_adapter\..*Mine"):
            read(theirs)


def test_another_model_is_refused_by_name(t5x):
    theirs = t5x_model(T5_1_1)
    decoder = t5x.models.DecoderOnlyModel(theirs.module, theirs.output_vocabulary, None)
    with pytest.raises(ValueError, match=r"not t5x\.models\.DecoderOnlyModel"):
        config_from_t5x(decoder)


def test_parameters_of_another_model_are_refused(t5x):
    theirs, their_params, _, params = both(T5_1_1)
    with pytest.raises(ValueError, match="T5X model's parameters don't fit .* token_embedder"):
        from_t5x(theirs, {k: v for k, v in their_params.items() if k != "token_embedder"})
    assert params["encoder"]["layers_0"]["mlp"]["wo"]["kernel"].shape == (16, 24)  # laid out
    with pytest.raises(ValueError, match="not the T5X model's parameters.*to_t5x"):
        t5x_decode(theirs, params, inputs_of(T5_1_1))
    with pytest.raises(ValueError, match="not the T5X model's parameters.*to_t5x"):
        t5x_beam_decode(theirs, params, inputs_of(T5_1_1))


def test_nothing_of_the_stand_ins_stays(t5x):
    from jax.experimental import pjit

    assert not hasattr(pjit, "PartitionSpec")
    assert not [name for name in sys.modules if name.startswith("airio")]
