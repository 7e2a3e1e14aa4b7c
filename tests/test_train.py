"""Training: runs that survive being killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from specdec_jax import checkpoints, data, train, training_run, training_setup
from specdec_jax.errors import UserError
from specdec_jax.optimization import Optimizer, Schedule
from specdec_jax.t5 import T5Config
from tests.fixtures_text import corpora, spiece  # noqa: F401

CONFIG = {
    "vocab_size": 48,
    "emb_dim": 16,
    "num_heads": 2,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "head_dim": 8,
    "mlp_dim": 32,
    "dropout_rate": 0.1,
}


def run(run_dir, corpora, spiece, **changes):  # noqa: F811
    """A tiny run; the same in this process and in a child."""
    arguments = {
        "model": T5Config(**CONFIG),
        "tasks": [
            data.Task("restore", "", corpora, 2.0),
            data.Task("first", "", corpora, 1.0, cut_source=True),
        ],
        "vocabulary_path": spiece,
        "optimizer": Optimizer("adamw", learning_rate=3e-3),  # compiles fastest
        "schedule": Schedule(total_steps=12, warmup_steps=3, decay_steps=4),
        "tokens_per_batch": 256,
        "num_buckets": 2,
        "max_source": 32,
        "max_target": 32,
        "round_size": 64,
        "save_every": 4,
        "eval_every": 5,
        "eval_batches": 1,
        "log_every": 3,
        "cache_dir": os.environ["SPECDEC_TEST_CACHE"],
    }
    return train.train(str(run_dir), **(arguments | changes))


@pytest.fixture(scope="module", autouse=True)
def compile_once(tmp_path_factory):
    """Keeps compiled programs for the runs of this module, children included."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    os.environ["SPECDEC_TEST_CACHE"] = str(tmp_path_factory.mktemp("compiled"))
    yield
    del os.environ["SPECDEC_TEST_CACHE"]
    for name, value in before.items():
        jax.config.update(name, value)


CHILD = """
import sys
from tests import test_train
from specdec_jax.optimization import Schedule
test_train.run(sys.argv[1], sys.argv[2], sys.argv[3],
               schedule=Schedule(total_steps=int(sys.argv[4]), warmup_steps=3),
               save_every=8, eval_every=25)
"""


def child(*arguments):
    """Starts `run` in a process of its own."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
    )


def wait_for_line(run_dir, step, process):
    """Waits until the log holds a line of `step` or later."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        path = Path(run_dir, "metrics.jsonl")
        lines = path.read_text().splitlines() if path.exists() else []
        if lines and lines[-1].endswith("}") and json.loads(lines[-1])["step"] >= step:
            return
        time.sleep(0.02)
    raise AssertionError(f"the run did not reach step {step}")


def same(a, b):
    return jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), a, b))


def losses(run_dir):
    return [x for line in training_run.read_log(run_dir) for x in line.get("losses", [])]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, corpora, spiece):  # noqa: F811
    """(run directory, result) of a run of 12 steps."""
    directory = tmp_path_factory.mktemp("unbroken")
    return directory, run(directory, corpora, spiece)


def test_a_run_learns_and_leaves_its_files(unbroken, corpora, spiece):  # noqa: F811
    directory, result = unbroken
    assert result.finished and result.step == 12
    log = training_run.read_log(directory)
    seen = losses(directory)
    assert len(seen) == 12 and seen[-1] < seen[0]
    validations = {line["step"]: line["validation"] for line in log if "validation" in line}
    assert sorted(validations) == [5, 10, 12]
    assert set(result.validation) == {
        "restore/loss", "restore/accuracy", "first/loss", "first/accuracy", "mean",
    }  # fmt: skip
    mean = (2 * result.validation["restore/loss"] + result.validation["first/loss"]) / 3
    assert result.validation["mean"] == pytest.approx(mean)
    config, _best = checkpoints.load_params(directory / "best")
    assert config == T5Config(**CONFIG)
    about = json.loads((directory / "best" / "config.json").read_text())["about"]
    assert about["mean"] == min(v["mean"] for v in validations.values())
    _, last = checkpoints.load_params(directory / "last")
    assert same(last, result.params)


def test_killed_run_goes_on_bit_for_bit(tmp_path, corpora, spiece):  # noqa: F811
    """SIGKILL between two checkpoints, resumed: every loss as in an unbroken run."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    rest = {"schedule": Schedule(40, warmup_steps=3), "save_every": 8, "eval_every": 25}
    run(straight, corpora, spiece, **rest)
    process = child(broken, corpora, spiece, 100000)
    try:
        wait_for_line(broken, 10, process)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    reached = training_run.read_log(broken)[-1]["step"]
    assert reached < 40  # else this machine is too fast for this test: lengthen the runs
    result = run(broken, corpora, spiece, **rest)
    assert result.finished
    assert losses(broken)[:40] == losses(straight)


def test_sigterm_saves_and_exits_cleanly(tmp_path, corpora, spiece):  # noqa: F811
    process = child(tmp_path, corpora, spiece, 100000)
    try:
        wait_for_line(tmp_path, 6, process)
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
    steps = [int(s) for s in os.listdir(tmp_path / "checkpoints") if s.isdigit()]
    assert max(steps) >= training_run.read_log(tmp_path)[-1]["step"] >= 6
    assert max(steps) < 100000


@pytest.mark.slow
def test_max_minutes_stops_and_a_second_call_goes_on(tmp_path, unbroken, corpora, spiece):  # noqa: F811
    stopped = run(tmp_path, corpora, spiece, max_minutes=0.0)
    assert not stopped.finished and stopped.step == 0
    halfway = run(tmp_path, corpora, spiece, schedule=Schedule(7, warmup_steps=3))
    assert halfway.finished and halfway.step == 7
    result = run(tmp_path, corpora, spiece)  # a longer schedule, with its decay
    assert result.step == 12
    assert losses(tmp_path) == losses(unbroken[0])


def test_fine_tuning_starts_from_given_weights(tmp_path, unbroken, corpora, spiece):  # noqa: F811
    best = str(unbroken[0] / "best")
    result = run(tmp_path / "tuned", corpora, spiece, init_from=best,
                 schedule=Schedule(1),
                 optimizer=Optimizer("adamw", learning_rate=0.0))  # fmt: skip
    _, params = checkpoints.load_params(best)
    assert same(params, result.params)
    wider = T5Config(**CONFIG | {"mlp_dim": 64})
    with pytest.raises(ValueError, match=r"wi_0/kernel is \(16, 32\), expected \(16, 64\)"):
        run(tmp_path / "wider", corpora, spiece, init_from=best, model=wider)


def test_another_model_or_optimizer_is_refused(tmp_path, corpora, spiece):  # noqa: F811
    one = Schedule(1)
    run(tmp_path, corpora, spiece, schedule=one)
    with pytest.raises(ValueError, match=r"wi_0/kernel is \(16, 32\), expected \(16, 64\)"):
        run(tmp_path, corpora, spiece, model=T5Config(**CONFIG | {"mlp_dim": 64}))
    with pytest.raises(ValueError, match="another optimizer"):
        run(tmp_path, corpora, spiece, optimizer=Optimizer("adafactor"))


def test_other_batches_are_refused(tmp_path, corpora, spiece):  # noqa: F811
    run(tmp_path, corpora, spiece, schedule=Schedule(2), save_every=2)
    with pytest.raises(ValueError, match="a run on other batches"):
        run(tmp_path, corpora, spiece, schedule=Schedule(4), seed=1)
    assert run(tmp_path, corpora, spiece, schedule=Schedule(4), save_every=2).step == 4


def test_a_damaged_checkpoint_is_named_with_what_to_do(tmp_path, corpora, spiece):  # noqa: F811
    run(tmp_path, corpora, spiece, schedule=Schedule(2), save_every=1)
    newest = tmp_path / "checkpoints" / "2"
    for file in [path for path in newest.rglob("*") if path.is_file() and "/d/" in str(path)]:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ValueError, match="/2 is damaged: remove it to go on from step 1") as error:
        run(tmp_path, corpora, spiece, schedule=Schedule(3))
    assert "\n" not in str(error.value)
    shutil.rmtree(newest / "state")
    with pytest.raises(ValueError, match="/2 is damaged: remove it to go on from step 1"):
        run(tmp_path, corpora, spiece, schedule=Schedule(3))
    shutil.rmtree(newest)
    assert run(tmp_path, corpora, spiece, schedule=Schedule(3)).step == 3


def test_a_finished_run_called_again_keeps_its_scores(tmp_path, corpora, spiece):  # noqa: F811
    first = run(tmp_path, corpora, spiece, schedule=Schedule(2))
    about = (tmp_path / "last" / "config.json").read_text()
    again = run(tmp_path, corpora, spiece, schedule=Schedule(2))
    assert again.validation == first.validation
    assert (tmp_path / "last" / "config.json").read_text() == about


def test_two_processes_do_not_train_in_one_directory(tmp_path, corpora, spiece):  # noqa: F811
    with (
        training_setup.locked(str(tmp_path)),
        pytest.raises(UserError, match="Another process trains in"),
    ):
        run(tmp_path, corpora, spiece)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, corpora, spiece):  # noqa: F811
    wild = Optimizer("adamw", learning_rate=1e30, clip=0.0)
    with pytest.raises(FloatingPointError, match=r"step \d+ is .*lower the learning rate"):
        run(tmp_path, corpora, spiece, optimizer=wild)


def test_a_split_of_no_usable_pair_is_refused(tmp_path, spiece):  # noqa: F811
    (tmp_path / "restore-validation.tsv").write_text("tiny\t\n" + "files " * 20 + "\tfiles\n")
    task = data.Task("restore", "", str(tmp_path))
    with pytest.raises(ValueError, match="'restore' is left of its split validation"):
        training_setup.load_pairs([task], "validation", spiece, T5Config(**CONFIG), 8, 8)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eval_batches", 0), ("log_every", 0), ("eval_every", 0), ("save_every", 0),
        ("num_buckets", 0), ("tokens_per_batch", -5), ("keep", 0.5),
    ],
)  # fmt: skip
def test_counts_below_one_are_refused_on_entry(name, value, tmp_path, corpora, spiece):  # noqa: F811
    with pytest.raises(ValueError, match=rf"^{name} must be a whole number, 1 or above, not"):
        run(tmp_path / "run", corpora, spiece, **{name: value})
    assert not (tmp_path / "run").exists()


def test_a_vocabulary_that_is_too_large_is_refused(tmp_path, corpora, spiece):  # noqa: F811
    with pytest.raises(ValueError, match="44 pieces, the model's vocab_size is only 40"):
        run(tmp_path, corpora, spiece, model=T5Config(**CONFIG | {"vocab_size": 40}))


@pytest.mark.parametrize("size", ["target", "draft"])
def test_gin_files_configure_a_run(size, tmp_path, corpora, spiece):  # noqa: F811
    """The committed files, on tiny data and a tiny network."""
    gin = pytest.importorskip("gin")
    for task, source in (("restore", "restore"), ("ende", "restore"), ("synopsis", "first")):
        for split in ("train", "validation"):
            name = f"{task}-{split}.tsv"
            (tmp_path / name).write_text(Path(corpora, f"{source}-{split}.tsv").read_text())
    root = str(Path(__file__).parent.parent)
    bindings = [
        f"RUN_DIR = '{tmp_path}/run'",
        f"DATA_DIR = '{tmp_path}'",
        f"VOCABULARY = '{spiece}'",
        "TOTAL_STEPS = 1",
        "train.train.tokens_per_batch = 256",
        "train.train.num_buckets = 1",
        "train.train.round_size = 64",
        "optimization.Optimizer.name = 'adamw'",
        "t5.T5Config.emb_dim = 8",
        "t5.T5Config.mlp_dim = 8",
        "t5.T5Config.num_encoder_layers = 1",
        "t5.T5Config.num_decoder_layers = 1",
    ]
    files = ["gin/runs/train.gin", f"gin/models/debian_{size}.gin"]
    gin.clear_config()
    gin.add_config_file_search_path(root)
    try:
        gin.parse_config_files_and_bindings(files, bindings)
        result = gin.get_configurable(train.train)()
    finally:
        gin.clear_config()
    assert result.finished and result.step == 1
    config, _ = checkpoints.load_params(tmp_path / "run" / "best")
    assert config.vocab_size == 4096 and config.emb_dim == 8
