"""T5X's models as ours and ours as T5X's: against T5X itself, where it is installed."""

import dataclasses
import functools
import subprocess
import sys
from pathlib import Path

import gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import (
    ModelDrafter,
    Sampling,
    autoregressive_decode,
    beam_decode,
    pretrained,
    speculative_decode,
    t5x_adapter,
    t5x_gin,
)
from specdec_jax.beam import NOTHING
from specdec_jax.model import T5Model
from specdec_jax.sampling import distribution
from specdec_jax.stored import flat
from specdec_jax.t5x_adapter import from_t5x, require_t5x, t5x_model, to_t5x, with_gather
from specdec_jax.t5x_decoding import t5x_beam_decode, t5x_decode
from specdec_jax.vocabulary import encode_sources
from tests.conftest import TINY, sources, tiny_t5

ROOT = Path(t5x_adapter.__file__).parents[1]
T5_1_1 = dataclasses.replace(TINY, num_decoder_layers=2)
T5_1_0 = dataclasses.replace(
    TINY, num_encoder_layers=2, mlp_activations=("relu",), logits_via_embedding=True
)
SMALL = dataclasses.replace(
    T5_1_1, vocab_size=512, emb_dim=96, num_heads=6, num_encoder_layers=4, head_dim=32, mlp_dim=160
)
CONFIGS = pytest.mark.parametrize("config", [T5_1_1, T5_1_0, SMALL], ids=["1.1", "1.0", "small"])
N = 24


@pytest.fixture(scope="module")
def t5x():
    try:
        return require_t5x()
    except ImportError as error:
        pytest.skip(str(error))


@functools.cache
def both(config):
    """A T5X model with random parameters, and the same as ours: model, parameters, twice."""
    theirs = t5x_model(config)
    shapes = {"encoder_input_tokens": (1, 2), "decoder_input_tokens": (1, 2)}
    dtypes = dict.fromkeys(shapes, jnp.int32)
    drawn = theirs.get_initial_variables(jax.random.key(5), shapes, dtypes)["params"]
    # A little more than T5X draws, or the greedy output would hardly vary.
    their_params = jax.tree.map(lambda x: x * (SCALE[config] if x.ndim > 1 else 1), drawn)
    return theirs, their_params, *from_t5x(theirs, their_params)


SCALE = {T5_1_1: 2.0, T5_1_0: 2.0, SMALL: 1.5}


def inputs_of(config):
    return sources(4, 12, config.vocab_size)


@functools.cache
def greedy(config, eos_id):
    """What T5X decodes, and an id that it emits in the midst of its first row."""
    theirs, their_params, *_ = both(config)
    return t5x_decode(theirs, their_params, inputs_of(config), max_new_tokens=N, eos_id=eos_id)


def some_id(config):
    return int(greedy(config, -1).tokens[0, N // 3])


# Without T5X


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


def test_a_fault_within_t5x_is_not_called_missing(tmp_path):
    (tmp_path / "t5x").mkdir()
    (tmp_path / "t5x" / "__init__.py").write_text("import t5x.a_part_that_is_not_there\n")
    said = run(ASK, tmp_path)
    assert said == "True ModuleNotFoundError No module named 't5x.a_part_that_is_not_there'"


def test_versions_name_what_is_there_and_what_is_not(tmp_path):
    code = "from specdec_jax import t5x_adapter; print(t5x_adapter.versions())"
    found = eval(run(code))
    assert found["t5x"] is None
    assert found["jax"] == jax.__version__
    package = tmp_path / "t5x"
    package.mkdir()
    (package / "__init__.py").touch()
    assert eval(run(code, tmp_path))["t5x"] == str(package)
    info = tmp_path / "t5x-0.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: t5x\nVersion: 0.0.0\n")
    (info / "direct_url.json").write_text('{"url": "u", "vcs_info": {"commit_id": "cc342d4"}}')
    assert eval(run(code, tmp_path))["t5x"] == "0.0.0 (cc342d4)"


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
    assert t5x_adapter.config_from_t5x(t5x_model(config)) == config


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
    for read in (t5x_adapter.config_from_t5x, with_gather):
        with pytest.raises(ValueError, match=r"not tests\.test_t5x_adapter\..*Mine"):
            read(theirs)


def test_another_model_is_refused_by_name(t5x):
    theirs = t5x_model(T5_1_1)
    decoder = t5x.models.DecoderOnlyModel(theirs.module, theirs.output_vocabulary, None)
    with pytest.raises(ValueError, match=r"not t5x\.models\.DecoderOnlyModel"):
        t5x_adapter.config_from_t5x(decoder)


def test_parameters_of_another_model_are_refused(t5x):
    theirs, their_params, _, params = both(T5_1_1)
    with pytest.raises(ValueError, match="T5X model's parameters don't fit .* token_embedder"):
        from_t5x(theirs, {k: v for k, v in their_params.items() if k != "token_embedder"})
    assert params["encoder"]["layers_0"]["mlp"]["wo"]["kernel"].shape == (16, 24)  # laid out
    with pytest.raises(ValueError, match="not the T5X model's parameters.*to_t5x"):
        t5x_decode(theirs, params, inputs_of(T5_1_1), max_new_tokens=N)
    with pytest.raises(ValueError, match="not the T5X model's parameters.*to_t5x"):
        t5x_beam_decode(theirs, params, inputs_of(T5_1_1), max_new_tokens=N)


def test_nothing_of_the_stand_ins_stays(t5x):
    from jax.experimental import pjit

    assert not hasattr(pjit, "PartitionSpec")
    assert not [name for name in sys.modules if name.startswith("airio")]


# Decoding


@CONFIGS
def test_greedy_tokens_and_scores_are_t5xs(t5x, config):
    *_, model, params = both(config)
    eos_id = some_id(config)
    want = greedy(config, eos_id)
    plain = autoregressive_decode(model, params, inputs_of(config), max_new_tokens=N, eos_id=eos_id)
    np.testing.assert_array_equal(plain.tokens, want.tokens)
    np.testing.assert_array_equal(plain.lengths, want.lengths)
    np.testing.assert_allclose(plain.scores, want.scores, rtol=1e-5, atol=1e-5)
    assert want.lengths.min() < N == greedy(config, -1).lengths.min()


@CONFIGS
def test_speculative_tokens_of_a_t5x_target_are_t5xs_own(t5x, config):
    *_, target, target_params = both(config)
    draft, draft_params = tiny_t5(8, dataclasses.replace(TINY, vocab_size=config.vocab_size))
    result = speculative_decode(
        target,
        target_params,
        ModelDrafter(draft),
        draft_params,
        inputs_of(config),
        gamma=3,
        max_new_tokens=N,
        eos_id=some_id(config),
    )
    np.testing.assert_array_equal(result.tokens, greedy(config, some_id(config)).tokens)


@CONFIGS
def test_hypotheses_and_scores_are_t5xs(t5x, config):
    theirs, their_params, model, params = both(config)
    num_beams = 3 if config == SMALL else 4
    options = {"num_beams": num_beams, "max_new_tokens": N, "eos_id": some_id(config)}
    want = t5x_beam_decode(theirs, their_params, inputs_of(config), **options)
    have = beam_decode(model, params, inputs_of(config), **options)
    assert np.all(np.diff(want.scores, axis=1) <= 0)
    np.testing.assert_allclose(have.scores, want.scores, rtol=1e-5, atol=1e-5)
    there = np.asarray(want.scores) > NOTHING / 2
    np.testing.assert_array_equal(have.tokens[there], want.tokens[there])
    np.testing.assert_array_equal(have.lengths, want.lengths)
    # Some of these hypotheses ended, others did not, and some there are not.
    assert np.all(want.lengths[there] > 0)
    assert want.lengths[there].min() < N


def test_a_gather_changes_only_how_tokens_are_looked_up(t5x):
    theirs, their_params, *_ = both(SMALL)
    inputs = inputs_of(SMALL)
    gathered = with_gather(theirs)
    assert gathered.module is not theirs.module
    assert from_t5x(gathered, their_params)[0].config == SMALL

    def products(model):
        encode = functools.partial(model.module.apply, enable_dropout=False, method="encode")
        jaxpr = str(jax.make_jaxpr(encode)({"params": their_params}, inputs))
        return jaxpr.count("dot_general"), jaxpr.count(" gather[")

    assert products(theirs) == (products(gathered)[0] + 1, products(gathered)[1] - 1)
    have = t5x_decode(gathered, their_params, inputs, max_new_tokens=N, eos_id=-1)
    want = greedy(SMALL, -1)
    np.testing.assert_array_equal(have.tokens, want.tokens)
    np.testing.assert_allclose(have.scores, want.scores, rtol=1e-5)


@pytest.mark.parametrize(
    "sampling", [Sampling(0.7), Sampling(1.0, top_k=5), Sampling(1.0, top_p=0.6)], ids=str
)
def test_samples_are_of_our_distribution(t5x, sampling):
    theirs, their_params, model, params = both(T5_1_1)
    rows = 2000
    inputs = jnp.tile(inputs_of(T5_1_1)[:1], (rows, 1))
    drawn = t5x_decode(
        theirs, their_params, inputs, jax.random.key(1), max_new_tokens=2, sampling=sampling
    )
    shifted = jnp.pad(drawn.tokens[:, :1], ((0, 0), (1, 0)))
    logits = model.module.apply({"params": params}, inputs, shifted)

    p = np.asarray(distribution(logits[0, 0], sampling))
    counts = np.bincount(np.asarray(drawn.tokens[:, 0]), minlength=len(p))
    assert counts[p == 0].sum() == 0
    likely = rows * p > 5
    chi2 = np.sum((counts - rows * p)[likely] ** 2 / (rows * p)[likely])
    assert chi2 < likely.sum() + 6 * np.sqrt(2 * likely.sum())

    # The score is of the unadjusted model; a row that ended with its first token has no other.
    log_p = jax.nn.log_softmax(logits)
    each = jnp.take_along_axis(log_p, drawn.tokens[..., None], axis=-1)[..., 0]
    each = jnp.where(jnp.arange(2) < drawn.lengths[:, None], each, 0.0)
    np.testing.assert_allclose(drawn.scores, each.sum(axis=-1), rtol=1e-4)


def test_arguments_that_t5x_does_not_take_are_refused(t5x):
    theirs, their_params, *_ = both(T5_1_1)
    inputs = inputs_of(T5_1_1)
    decode = functools.partial(t5x_decode, theirs, their_params)
    with pytest.raises(ValueError, match="top_k or with top_p"):
        decode(inputs, jax.random.key(0), sampling=Sampling(1.0, top_k=2, top_p=0.5))
    with pytest.raises(ValueError, match="one key"):
        decode(inputs, jax.random.split(jax.random.key(0), 4), sampling=Sampling())
    with pytest.raises(ValueError, match="Sampling needs a key"):
        decode(inputs, sampling=Sampling())
    with pytest.raises(ValueError, match="inputs hold the id 99"):
        decode(jnp.full((1, 2), 99))
    with pytest.raises(ValueError, match="num_beams"):
        t5x_beam_decode(theirs, their_params, inputs, num_beams=0)


def test_the_shipped_pair_speculates_as_t5x_decodes(t5x):
    pair = pretrained.load()
    theirs, their_params = to_t5x(pair.target, pair.target_params)
    lines = {row["task"]: row["inputs"] for row in pretrained.held_out()}
    inputs = encode_sources(pair.vocabulary, list(lines.values()), 64)
    want = t5x_decode(theirs, their_params, inputs)
    fast = speculative_decode(
        pair.target, pair.target_params, pair.drafter, pair.draft_params, inputs, gamma=7
    )
    np.testing.assert_array_equal(fast.tokens, want.tokens)
    np.testing.assert_array_equal(fast.lengths, want.lengths)
    np.testing.assert_allclose(fast.scores, want.scores, rtol=1e-4, atol=1e-4)
    assert want.lengths.min() > 3
    assert want.lengths.max() < 64  # they all end


# gin files


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
def test_a_gin_file_of_t5x_tells_its_config(t5x, file, sizes):
    config = t5x_gin.read_gin(f"t5x/examples/t5/{file}")
    assert sizes == (
        *(config.vocab_size, config.emb_dim, config.num_heads, config.num_encoder_layers),
        *(config.num_decoder_layers, config.head_dim, config.mlp_dim, config.logits_via_embedding),
    )
    assert config.mlp_activations == (("relu",) if "1_0" in file else ("gelu", "linear"))
    assert (config.dropout_rate, config.dtype) == (0.0, "bfloat16")


def test_bindings_and_a_file_of_ones_own(t5x, tmp_path):
    file = tmp_path / "mine.gin"
    file.write_text(
        "include 't5x/examples/t5/t5_1_1/small.gin'\n"
        "network.T5Config.num_decoder_layers = 2\nDROPOUT_RATE = 0.3\n"
    )
    config = t5x_gin.read_gin(file, ["network.T5Config.dtype = 'float32'"])
    assert config.num_decoder_layers == 2
    assert config.dtype == "float32"
    assert config.dropout_rate == 0.3


def test_gins_own_configuration_stays(t5x):
    gin.clear_config()
    gin.parse_config("mine = 3")
    gin.finalize()
    before = gin.config_str()
    # The second would find `network.T5Config` ambiguous if the first left its names behind.
    with pytest.raises(ValueError, match="scalable_t5"):
        t5x_gin.read_gin("t5x/examples/scalable_t5/t5_1_1/small.gin")
    t5x_gin.read_gin("t5x/examples/t5/t5_1_1/small.gin")
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
    ],
)
def test_a_gin_file_of_something_else_is_one_sentence(t5x, tmp_path, text, match):
    (tmp_path / "model.gin").write_text(f"from __gin__ import dynamic_registration\n{text}")
    with pytest.raises(ValueError, match=match) as error:
        t5x_gin.read_gin(tmp_path / "model.gin")
    assert "\n" not in str(error.value)


def test_a_gin_file_that_is_not_there(t5x):
    with pytest.raises(FileNotFoundError, match="no gin file 'nowhere.gin'.*base.gin"):
        t5x_gin.read_gin("nowhere.gin")


def test_a_decoder_only_file_is_refused_by_its_model(t5x):
    with pytest.raises(ValueError, match="not t5x.models.DecoderOnlyModel"):
        t5x_gin.read_gin("t5x/examples/decoder_only/models/base.gin")
