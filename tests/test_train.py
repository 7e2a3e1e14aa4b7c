"""Training: the loss, the schedules, and runs that survive being killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fixtures_text import corpora, spiece  # noqa: F401

from specdec_jax import checkpoints, data, train
from specdec_jax.t5 import T5Config
from specdec_jax.vocabulary import EOS_ID, Vocabulary

CONFIG = dict(
    vocab_size=48, emb_dim=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
    head_dim=8, mlp_dim=32, dropout_rate=0.1,
)  # fmt: skip


def run(run_dir, corpora, spiece, **changes):  # noqa: F811
    """A tiny run; the same in this process and in a child."""
    arguments = dict(
        model=T5Config(**CONFIG),
        tasks=[
            data.Task("restore", "", corpora, 2.0),
            data.Task("first", "", corpora, 1.0, cut_source=True),
        ],
        vocabulary_path=spiece,
        optimizer=train.Optimizer("adamw", learning_rate=3e-3),  # compiles fastest
        schedule=train.Schedule(total_steps=12, warmup_steps=3, decay_steps=4),
        tokens_per_batch=256,
        num_buckets=2,
        max_source=32,
        max_target=32,
        round_size=64,
        save_every=4,
        eval_every=5,
        eval_batches=1,
        log_every=3,
        cache_dir=os.environ["SPECDEC_TEST_CACHE"],
    )
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
import test_train
from specdec_jax import train
test_train.run(sys.argv[1], sys.argv[2], sys.argv[3],
               schedule=train.Schedule(total_steps=int(sys.argv[4]), warmup_steps=3),
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
    return [x for line in train.read_log(run_dir) for x in line.get("losses", [])]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, corpora, spiece):  # noqa: F811
    """(run directory, result) of a run of 12 steps."""
    directory = tmp_path_factory.mktemp("unbroken")
    return directory, run(directory, corpora, spiece)


# --- the loss ---------------------------------------------------------------


def test_decoder_reads_targets_behind_the_start_token():
    targets = jnp.array([[5, 6, EOS_ID, 0]])
    assert train.shift_right(targets).tolist() == [[0, 5, 6, EOS_ID]]


def test_cross_entropy_is_optaxs_and_ignores_padding():
    logits = jax.random.normal(jax.random.key(0), (2, 3, 7)) * 3
    targets = jnp.array([[3, 1, 0], [4, 5, 1]])
    loss = train.cross_entropy(logits, targets)
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    np.testing.assert_allclose(loss, jnp.where(targets == 0, 0, expected), rtol=1e-5)
    assert loss[0, 2] == 0
    gradient = jax.grad(lambda x: train.cross_entropy(x, targets).sum())(logits)
    assert (gradient[0, 2] == 0).all() and (gradient[0, 1] != 0).any()


def test_label_smoothing_and_z_loss():
    logits = jax.random.normal(jax.random.key(1), (1, 2, 5))
    targets = jnp.array([[3, 4]])
    smoothed = train.cross_entropy(logits, targets, label_smoothing=0.1)
    labels = optax.smooth_labels(jax.nn.one_hot(targets, 5), 0.1)
    np.testing.assert_allclose(smoothed, optax.softmax_cross_entropy(logits, labels), rtol=1e-5)
    with_z = train.cross_entropy(logits, targets, z_loss=0.01)
    extra = with_z - train.cross_entropy(logits, targets)
    np.testing.assert_allclose(extra, 0.01 * jax.nn.logsumexp(logits, -1) ** 2, rtol=1e-3)


# --- schedule and optimizer -------------------------------------------------


def test_schedules():
    wsd = train.Schedule(total_steps=100, warmup_steps=10, decay_steps=20)
    values = np.array([float(wsd(s)) for s in range(101)])
    np.testing.assert_allclose(values[:10], np.arange(1, 11) / 10, rtol=1e-6)
    assert (values[10:81] == 1).all() and values[90] == 0.5 and values[100] == 0
    cosine = train.Schedule(100, warmup_steps=1, decay_steps=100, shape="cosine", final=0.1)
    assert float(cosine(50)) == pytest.approx(0.55) and float(cosine(100)) == pytest.approx(0.1)
    root = train.Schedule(10000, warmup_steps=100, shape="inverse_sqrt")
    assert float(root(399)) == pytest.approx(0.5) and float(root(49)) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="shape"):
        train.Schedule(10, shape="cosin")
    with pytest.raises(ValueError, match="muon"):
        train.Optimizer(name="sgd")


def test_decay_can_be_triggered_late_without_changing_the_past():
    long = train.Schedule(total_steps=1000, decay_steps=0)
    short = train.Schedule(total_steps=300, decay_steps=100)
    assert all(float(long(s)) == float(short(s)) for s in range(0, 200, 7))
    assert float(short(250)) == 0.5


@pytest.mark.parametrize("name", ["muon", "adamw", "adafactor"])
def test_every_optimizer_learns_one_batch(name):
    config = T5Config(**CONFIG | {"dropout_rate": 0.0})
    optimizer = train.Optimizer(name, learning_rate=1e-2)
    transform = train.make_optimizer(optimizer, train.Schedule(40, warmup_steps=1))
    step = train.make_step(config, transform)
    state = train.init_state(config, transform)
    inputs = np.random.default_rng(0).integers(3, 48, (4, 8)).astype(np.int32)
    first = last = None
    for _ in range(40):
        loss, grads = step.gradients(state.params, state.step, inputs, inputs)
        state, norm = step.update(state, grads)
        first, last = first or float(loss), float(loss)
    assert last < 0.6 * first and np.isfinite(float(norm)) and int(state.step) == 40


def test_muon_orthogonalizes_matrices_only():
    config = T5Config(**CONFIG)
    transform = train.make_optimizer(train.Optimizer(), train.Schedule(10, warmup_steps=1))
    params = train.init_state(config, transform).params
    grads = jax.tree.map(
        lambda x: jax.random.normal(jax.random.key(x.size), x.shape) * 1e-3, params
    )
    updates, _ = jax.jit(transform.update)(grads, transform.init(params), params)
    attention = updates["encoder"]["layers_0"]["attention"]
    sizes = {}
    for name in ("query", "key"):
        singular = np.linalg.svd(attention[name]["kernel"])[1]
        assert singular.max() / singular.min() < 3  # a random matrix has far more
        sizes[name] = singular.mean()
    # T5's queries are 1/sqrt(head_dim) of the usual size, and so are their updates.
    assert sizes["query"] / sizes["key"] == pytest.approx(0.125, rel=0.1)
    embedding = updates["token_embedder"]["embedding"]
    np.testing.assert_allclose(np.abs(embedding), 1e-2, rtol=1e-2)  # Adam's first step
    head = updates["decoder"]["logits_dense"]["kernel"]
    np.testing.assert_allclose(np.abs(head), 3e-3, rtol=1e-2)


# --- runs -------------------------------------------------------------------


def test_a_run_learns_and_leaves_its_files(unbroken, corpora, spiece):  # noqa: F811
    directory, result = unbroken
    assert result.finished and result.step == 12
    log = train.read_log(directory)
    seen = losses(directory)
    assert len(seen) == 12 and seen[-1] < seen[0]
    validations = {line["step"]: line["validation"] for line in log if "validation" in line}
    assert sorted(validations) == [5, 10, 12]
    assert set(result.validation) == {
        "restore/loss", "restore/accuracy", "first/loss", "first/accuracy", "mean",
    }  # fmt: skip
    mean = (2 * result.validation["restore/loss"] + result.validation["first/loss"]) / 3
    assert result.validation["mean"] == pytest.approx(mean)
    config, best = checkpoints.load_params(directory / "best")
    assert config == T5Config(**CONFIG)
    about = json.loads((directory / "best" / "config.json").read_text())["about"]
    assert about["mean"] == min(v["mean"] for v in validations.values())
    _, last = checkpoints.load_params(directory / "last")
    assert same(last, result.params)


def test_killed_run_goes_on_bit_for_bit(tmp_path, corpora, spiece):  # noqa: F811
    """SIGKILL between two checkpoints, resumed: every loss as in an unbroken run."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    rest = dict(schedule=train.Schedule(40, warmup_steps=3), save_every=8, eval_every=25)
    run(straight, corpora, spiece, **rest)
    process = child(broken, corpora, spiece, 100000)
    try:
        wait_for_line(broken, 10, process)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    reached = train.read_log(broken)[-1]["step"]
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
    assert max(steps) >= train.read_log(tmp_path)[-1]["step"] >= 6
    assert max(steps) < 100000


def test_max_minutes_stops_and_a_second_call_goes_on(tmp_path, unbroken, corpora, spiece):  # noqa: F811
    stopped = run(tmp_path, corpora, spiece, max_minutes=0.0)
    assert not stopped.finished and stopped.step == 0
    halfway = run(tmp_path, corpora, spiece, schedule=train.Schedule(7, warmup_steps=3))
    assert halfway.finished and halfway.step == 7
    result = run(tmp_path, corpora, spiece)  # a longer schedule, with its decay
    assert result.step == 12
    assert losses(tmp_path) == losses(unbroken[0])


def test_fine_tuning_starts_from_given_weights(tmp_path, unbroken, corpora, spiece):  # noqa: F811
    best = str(unbroken[0] / "best")
    result = run(tmp_path / "tuned", corpora, spiece, init_from=best,
                 schedule=train.Schedule(1),
                 optimizer=train.Optimizer("adamw", learning_rate=0.0))  # fmt: skip
    _, params = checkpoints.load_params(best)
    assert same(params, result.params)
    wider = T5Config(**CONFIG | {"mlp_dim": 64})
    with pytest.raises(ValueError, match=r"wi_0/kernel is \(16, 32\), expected \(16, 64\)"):
        run(tmp_path / "wider", corpora, spiece, init_from=best, model=wider)


def test_another_model_or_optimizer_is_refused(tmp_path, corpora, spiece):  # noqa: F811
    one = train.Schedule(1)
    run(tmp_path, corpora, spiece, schedule=one)
    with pytest.raises(ValueError, match=r"wi_0/kernel is \(16, 32\), expected \(16, 64\)"):
        run(tmp_path, corpora, spiece, model=T5Config(**CONFIG | {"mlp_dim": 64}))
    with pytest.raises(ValueError, match="another optimizer"):
        run(tmp_path, corpora, spiece, optimizer=train.Optimizer("adafactor"))


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, corpora, spiece):  # noqa: F811
    wild = train.Optimizer("adamw", learning_rate=1e30, clip=0.0)
    with pytest.raises(FloatingPointError, match=r"step \d+ is .*lower the learning rate"):
        run(tmp_path, corpora, spiece, optimizer=wild)


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
        "train.Optimizer.name = 'adamw'",
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


# --- generated text ---------------------------------------------------------


def test_evaluate_scores_in_the_files_order(corpora, spiece):  # noqa: F811
    vocabulary = Vocabulary(spiece)
    task = data.Task("restore", "", corpora)
    sources, references = data.read_pairs(task.path("test"))
    answers = dict(zip(sources, references, strict=True))
    shapes = set()

    def oracle(inputs):
        shapes.add(inputs.shape)
        rows = [vocabulary.encode(answers.get(vocabulary.decode(row), "")) for row in inputs]
        return [[*row, EOS_ID, 7] for row in rows]

    found = train.evaluate(
        oracle, task, vocabulary, metric="restored", split="test", max_source=64, batch=8
    )
    assert shapes == {(8, 64)}
    assert found.predictions == references and found.sources == sources
    assert found.scores["words"] == found.scores["exact"] == 100
    assert 0 < found.scores["copy_words"] < 100

    def copy(inputs):
        return inputs

    few = train.evaluate(copy, task, vocabulary, metric="restored", split="test", max_examples=5)
    assert few.predictions == sources[:5]
    assert few.scores["words"] == few.scores["copy_words"]
    with pytest.raises(ValueError, match="metric is one of"):
        train.evaluate(copy, task, vocabulary, metric="accuracy")
