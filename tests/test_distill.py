"""Distillation: runs on a tiny target, killed and resumed like any training."""

import json
import os
import shutil
from pathlib import Path

import jax
import pytest

from specdec_jax import checkpoints, data, distill, main, teacher, training_run
from specdec_jax.errors import UserError
from specdec_jax.optimization import Optimizer, Schedule
from specdec_jax.t5 import T5Config
from tests.fixtures_text import corpora, spiece  # noqa: F401

CONFIG = T5Config(
    vocab_size=48, emb_dim=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
    head_dim=8, mlp_dim=32,
)  # fmt: skip


def random_params(seed):
    """As wide as a trained model's: T5's own initialization would guess evenly."""
    shapes = checkpoints.expected_params(CONFIG)
    leaves, tree = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = [0.5 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, drawn)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The directory of a random target, and of a draft that is near it."""
    path = tmp_path_factory.mktemp("pair")
    target, noise = random_params(0), random_params(1)
    checkpoints.save_params(path / "target", CONFIG, target)
    draft = jax.tree.map(lambda x, n: x + 0.3 * n, target, noise)
    checkpoints.save_params(path / "draft", CONFIG, draft)
    return str(path)


@pytest.fixture(scope="module", autouse=True)
def compile_once(tmp_path_factory):
    """Keeps compiled programs for the runs of this module, and has few to compile."""
    fewer = pytest.MonkeyPatch()
    fewer.setattr(teacher, "_MULTIPLE", 32)
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_enable_compilation_cache", True)
    os.environ["SPECDEC_TEST_CACHE"] = str(tmp_path_factory.mktemp("compiled"))
    yield
    fewer.undo()
    del os.environ["SPECDEC_TEST_CACHE"]
    jax.config.update("jax_enable_compilation_cache", False)
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def run(pair, corpora, spiece, tmp_path_factory):  # noqa: F811
    """A tiny run into a directory, with changes to its arguments."""
    teacher_dir = str(tmp_path_factory.mktemp("teacher"))

    def start(run_dir, **changes):
        arguments = {
            "target": pair,
            "model": CONFIG,
            "tasks": [
                data.Task("restore", "", corpora, 2.0),
                data.Task("first", "", corpora, 1.0, cut_source=True),
            ],
            "vocabulary_path": spiece,
            "optimizer": Optimizer("adamw", learning_rate=3e-3),  # compiles fastest
            "schedule": Schedule(total_steps=12, warmup_steps=3, decay_steps=4),
            "init_from": pair,
            "kinds": {"references": 0.5, "target": 0.5},
            "examples": 60,
            "eval_examples": 12,
            "teacher_dir": teacher_dir,
            "top_k": 8,
            "shard_size": 32,
            "decode_batch": 16,
            "refresh_every": 5,
            "tokens_per_batch": 256,
            "num_buckets": 1,
            "max_source": 32,
            "max_target": 32,
            "round_size": 64,
            "save_every": 4,
            "eval_every": 6,
            "log_every": 3,
            "cache_dir": os.environ["SPECDEC_TEST_CACHE"],
        }
        return distill.distill(str(run_dir), **(arguments | changes))

    return start


def losses(run_dir):
    return [x for line in training_run.read_log(run_dir) for x in line.get("losses", [])]


def same(a, b):
    return jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), a, b))


@pytest.fixture(scope="module")
def unbroken(run, tmp_path_factory):
    """(run directory, result) of a run of 12 steps."""
    directory = tmp_path_factory.mktemp("unbroken")
    return directory, run(directory)


def test_a_run_raises_alpha_and_leaves_its_files(unbroken):
    directory, result = unbroken
    assert result.finished and result.step == 12 and len(losses(directory)) == 12
    log = training_run.read_log(directory)
    validations = {line["step"]: line["validation"] for line in log if "validation" in line}
    assert sorted(validations) == [0, 6, 12]
    assert set(result.validation) == {"mean"} | {
        f"{task}/{kind}/{what}"
        for task in ("restore", "first")
        for kind in ("references", "target")
        for what in ("alpha", "agreement")
    }
    alphas = (result.validation[f"{task}/target/alpha"] for task in ("restore", "first"))
    assert result.validation["mean"] == pytest.approx((2 * next(alphas) + next(alphas)) / 3)
    assert result.validation["mean"] > validations[0]["mean"] + 0.02
    about = json.loads((directory / "best" / "config.json").read_text())["about"]
    assert about["mean"] == max(v["mean"] for v in validations.values())
    _, last = checkpoints.load_params(directory / "last")
    assert same(last, result.params)


def test_the_teacher_is_right_about_itself(run, pair, tmp_path):
    """A draft that is the target: nothing to learn, and all of it accepted."""
    still = Optimizer("adamw", learning_rate=0.0)
    result = run(
        tmp_path, init_from=f"{pair}/target", optimizer=still, schedule=Schedule(1), top_k=48,
        teacher_dir=None,
    )  # fmt: skip
    assert result.validation["mean"] == pytest.approx(1.0, abs=2e-3)
    assert result.validation["restore/references/agreement"] > 0.98
    assert losses(tmp_path)[0] == pytest.approx(0.0, abs=2e-3)


@pytest.fixture(scope="module")
def on_policy(run, tmp_path_factory):
    """(run directory, settings, result): half of the batches are the draft's own samples."""
    directory = tmp_path_factory.mktemp("on_policy")
    settings = {"kinds": {"draft": 0.5, "references": 0.5}, "keep": 1, "eval_every": 100}
    return directory, settings, run(directory, **settings)


@pytest.mark.slow
def test_a_resumed_run_gives_the_numbers_of_an_unbroken_one(run, on_policy, tmp_path):
    """Stopped between two writings of the draft."""
    straight, settings, whole = on_policy
    run(tmp_path, schedule=Schedule(7, warmup_steps=3), **settings)
    # What a process that was killed wrote after its last checkpoint is not believed.
    samples = tmp_path / "draft_samples"
    shutil.copytree(samples / "0", samples / "2")
    result = run(tmp_path, **settings)
    assert losses(tmp_path) == losses(straight) and same(result.params, whole.params)


@pytest.mark.slow
def test_the_drafts_own_samples_are_written_anew_and_cleared(on_policy):
    samples = on_policy[0] / "draft_samples"
    # Step 8's checkpoint needed window 1 when window 2 was written.
    assert sorted(p.name for p in samples.iterdir()) == ["1", "2"]
    first, second = ((samples / name / "targets.npy").read_bytes() for name in ("1", "2"))
    assert first != second


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kinds": "samples"}, "no kind of data 'samples'; there are references, target, greedy"),
        ({"kinds": {"target": 0}}, "needs a kind of data with a weight above 0"),
        ({"kinds": {"target": -1.0}}, "weight of 'target' must be 0 or above, not -1.0"),
        ({"objective": "kl"}, "no objective 'kl'"),
        ({"top_k": 0}, "top_k must be a whole number, 1 or above"),
        ({"examples": {"restore": 0}}, "examples must be a whole number, 1 or above"),
        ({"examples": {"stories": 5}}, "no task 'stories'; there are restore, first"),
        ({"temperature": -1.0}, "temperature must be a finite number"),
        ({"target": "nowhere"}, "No checkpoint at 'nowhere'"),
        ({"model": T5Config(**{**CONFIG.__dict__, "vocab_size": 64})},
         "The target has a vocabulary of 48, the draft of 64: they must share one"),
        ({"temperature": 0.5}, "made with another temperature: remove it, or name another"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_one_sentence(run, unbroken, changes, message, tmp_path):
    with pytest.raises((ValueError, UserError, FileNotFoundError), match=message) as error:
        run(tmp_path / "run", **changes)
    assert "\n" not in str(error.value)


def test_other_data_is_refused(run, unbroken, tmp_path):
    shutil.copytree(unbroken[0], tmp_path / "run")
    with pytest.raises(ValueError, match="a run on other batches"):
        run(tmp_path / "run", kinds="target", schedule=Schedule(14))


def test_the_gin_file_configures_a_run(pair, tmp_path, corpora, spiece):  # noqa: F811
    """The committed file, on tiny data and a tiny network."""
    gin = pytest.importorskip("gin")
    for task, source in (("restore", "restore"), ("ende", "restore"), ("synopsis", "first")):
        for split in ("train", "validation"):
            name = f"{task}-{split}.tsv"
            (tmp_path / name).write_text(Path(corpora, f"{source}-{split}.tsv").read_text())
    bindings = [
        f"RUN_DIR = '{tmp_path}/run'",
        f"DATA_DIR = '{tmp_path}'",
        f"VOCABULARY = '{spiece}'",
        f"TARGET = '{pair}'",
        f"INIT_FROM = '{pair}'",
        "EXAMPLES = {'restore': 16, 'ende': 16, 'synopsis': 16}",
        "TOTAL_STEPS = 1",
        "distill.distill.eval_examples = 4",
        "distill.distill.decode_batch = 16",
        "distill.distill.tokens_per_batch = 256",
        "distill.distill.num_buckets = 1",
        "distill.distill.round_size = 64",
        # What the tests above have compiled.
        *(f"{task}/data.Task.prefix = ''" for task in ("restore", "ende", "synopsis")),
        "distill.distill.max_source = 32",
        "distill.distill.max_target = 32",
        "distill.distill.top_k = 8",
        "OBJECTIVE = {'total_variation': 1.0, 'forward_kl': 0.1}",
        "distill.distill.max_target = 32",
        "optimization.Optimizer.name = 'adamw'",
        *(f"t5.T5Config.{name} = {value!r}" for name, value in CONFIG.__dict__.items()),
    ]
    gin.clear_config()
    gin.add_config_file_search_path(str(Path(__file__).parent.parent))
    try:
        files = ["gin/runs/distill.gin", "gin/models/debian_draft.gin"]
        gin.parse_config_files_and_bindings(files, bindings)
        result = gin.get_configurable(distill.distill)()
    finally:
        gin.clear_config()
    assert result.finished and result.step == 1
    assert checkpoints.load_params(tmp_path / "run" / "best")[0] == CONFIG


def test_the_command_says_how_it_is_used_and_what_is_wrong(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", os.environ["SPECDEC_TEST_CACHE"])
    assert main.run(["distill", "--help"]) == 0
    assert "specdec distill: " in capsys.readouterr().out
    files = ["--gin_file=runs/distill.gin", "--gin_file=models/debian_draft.gin"]
    for flag, message in (
        ("--gin.OBJECTIV='forward_kl'", "know no OBJECTIV; did you mean OBJECTIVE?"),
        ("--gin.OBJECTIVE='kl'", "There is no objective 'kl'; there are forward_kl"),
        ("--gin.TARGET='nowhere'", "No checkpoint at 'nowhere'."),
    ):
        assert main.run(["distill", *files, f"--gin.RUN_DIR='{tmp_path}'", flag]) == 1
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
