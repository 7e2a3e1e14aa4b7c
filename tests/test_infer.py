"""Decoding as a gin job, with every drafter and rule that ships as a file."""

import dataclasses
import json
import re
from pathlib import Path

import gin
import jax
import jax.numpy as jnp
import pytest

from specdec_jax import main
from specdec_jax.checkpoints import expected_params, save_params
from specdec_jax.network import NetworkConfig
from specdec_jax.resources import gin_search_paths
from specdec_jax.t5 import T5
from tests.tiny_pair import CONFIG, save_pair

GIN = Path(gin_search_paths()[0])
KINDS = ("drafters", "rules")
OUTPUT = "lines-infer.jsonl-00000-of-00001"
FILES = sorted(str(path.relative_to(GIN)) for kind in KINDS for path in GIN.glob(f"{kind}/*.gin"))
TASKS = sorted(str(path.relative_to(GIN)) for path in GIN.glob("tasks/*.gin"))
RUNS = sorted(str(path.relative_to(GIN)) for path in GIN.glob("runs/*.gin"))
MODELS = sorted(str(path.relative_to(GIN)) for path in GIN.glob("models/*.gin"))


@pytest.mark.parametrize("file", MODELS)
def test_every_model_has_the_size_it_says(file):
    gin.clear_config()
    gin.parse_config(f'include "gin/{file}"\nfrom __gin__ import dynamic_registration\n'
                     "from specdec_jax import train\ntrain.train.model = %MODEL")  # fmt: skip
    config = gin.query_parameter("train.train.model").scoped_configurable_fn()
    while not isinstance(config, NetworkConfig):
        config = config()
    shapes = jax.tree.leaves(expected_params(config))
    count = sum(shape.size for shape in shapes)
    said = re.search(r"([\d.]+) ([MB]) parameters", (GIN / file).read_text().replace("\n# ", " "))
    if said:
        assert count / {"M": 1e6, "B": 1e9}[said[2]] == pytest.approx(float(said[1]), rel=0.02)
    else:
        assert "include" in (GIN / file).read_text()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A tiny pair whose target has layers to skip."""
    path = save_pair(tmp_path_factory.mktemp("pairs") / "pair")
    config = dataclasses.replace(CONFIG, num_decoder_layers=3)
    tokens = jnp.ones((1, 1), jnp.int32)
    params = T5(config).init(jax.random.key(0), tokens, tokens)["params"]
    save_params(path / "target", config, params)
    return path


@pytest.fixture(autouse=True)
def _no_configuration_left(monkeypatch, tmp_path_factory):
    cache = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(cache))
    yield
    gin.clear_config()


def infer(pair, tmp_path, *flags):
    (tmp_path / "lines.txt").write_text("The quick\nbrown fox\n")
    return main.run([
        "infer", "--gin_file=gin/runs/infer.gin", *flags, f"--gin.MODEL={str(pair)!r}",
        f"--gin.RUN_DIR={str(tmp_path / 'run')!r}", f"--gin.INPUTS={str(tmp_path / 'lines.txt')!r}",
        "--gin.MAX_NEW_TOKENS=8", "--gin.INPUT_LENGTH=32",
    ])  # fmt: skip


@pytest.mark.parametrize("file", FILES)
def test_every_drafter_and_rule(file, pair, tmp_path):
    gamma = [] if file.endswith(("auto_gamma.gin", "beam.gin")) else ["--gin.GAMMA=2"]
    assert infer(pair, tmp_path, f"--gin_file={file}", *gamma) == 0
    rows = [json.loads(row) for row in (tmp_path / "run" / OUTPUT).read_text().splitlines()]
    texts = [row["inputs"]["inputs_pretokenized"] for row in rows]
    assert texts == ["The quick", "brown fox"]
    config = (tmp_path / "run" / "config.gin").read_text()
    setting = next(line for line in (GIN / file).read_text().splitlines() if " = " in line)
    name, value = setting.split(" = ")
    assert f"{name} = {value.replace(chr(34), chr(39))}" in config


def test_bfloat16(pair, tmp_path):
    assert infer(pair, tmp_path, "--gin.GAMMA=2", "--gin.DTYPE='bfloat16'") == 0
    rows = (tmp_path / "run" / OUTPUT).read_text().splitlines()
    assert len(rows) == 2 and "bfloat16" in (tmp_path / "run" / "job.json").read_text()


@pytest.mark.parametrize("file", [f for f in TASKS if "debian" in f])
def test_every_task_of_a_file(file, pair, tmp_path):
    (tmp_path / "pairs.tsv").write_text("The quick\tbrown fox jumps over\n")
    inputs = f"--gin.INPUTS={str(tmp_path / 'pairs.tsv')!r}"
    name = json.dumps(str(tmp_path / "run"))
    flags = ["--gin.GAMMA=2", "--gin.MAX_NEW_TOKENS=8", "--gin.INPUT_LENGTH=32", inputs]
    run = "eval" if "restore" in file else "infer"
    files = [f"--gin_file=gin/runs/{run}.gin", f"--gin_file=gin/{file}"]
    model = f"--gin.MODEL={str(pair)!r}"
    assert main.run(["infer", *files, f"--gin.RUN_DIR={name}", model, *flags]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rows"] == 1 and summary["scores"]


@pytest.mark.parametrize("file", [f for f in TASKS if "debian" not in f])
def test_every_task_of_seqio(file, pair, tmp_path, capsys):
    try:
        import seqio  # noqa: F401
    except ImportError:
        files = ["--gin_file=gin/runs/infer.gin", f"--gin_file=gin/{file}"]
        run_dir = f"--gin.RUN_DIR={str(tmp_path / 'run')!r}"
        assert main.run(["infer", *files, run_dir, f"--gin.MODEL={str(pair)!r}"]) == 1
        assert "pip install 'specdec_jax[seqio]'" in capsys.readouterr().err
    else:
        pytest.skip("seqio is installed: test_tasks_seqio.py reads these tasks")


@pytest.mark.parametrize("file", [*FILES, *TASKS, *MODELS, *RUNS])
def test_every_file_opens_with_its_command(file):
    text = (GIN / file).read_text()
    level = file.partition("reproduce_")[2].removesuffix(".gin")
    named = f"specdec reproduce --level={level}" if level else f"--gin_file=gin/{file}"
    assert text.startswith("# ") and named in text


def test_a_finished_run_is_not_repeated(pair, tmp_path, capsys):
    assert infer(pair, tmp_path, "--gin.GAMMA=2") == 0
    before = (tmp_path / "run" / OUTPUT).stat().st_mtime_ns
    capsys.readouterr()
    assert infer(pair, tmp_path, "--gin.GAMMA=2") == 0
    assert "1 of 1 shards are complete already" in capsys.readouterr().err
    assert (tmp_path / "run" / OUTPUT).stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--gin.RULE='gumble'", "did you mean gumbel"),
        ("--gin.DRAFT='bigramm'", "A draft is model"),
        ("--gin.GAMA=3", "did you mean GAMMA"),
        ("--gin.NUM_DEVICES=0", "num_devices must be from 1 to 1"),
        ("--gin.NUM_SHARDS=0", "num_shards must be from 1, the number of processes"),
        ("--gin.MODEL_PARALLEL=2", "must divide the number of devices of a process, 1"),
        ("--gin.NUM_BEAMS=2 --gin.TEMPERATURE=1.0", "does not go with a temperature"),
    ],
)
def test_mistakes_are_one_sentence(flag, message, pair, tmp_path, capsys):
    assert infer(pair, tmp_path, *flag.split()) == 1
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err
    assert not (tmp_path / "run" / "job.json").exists()  # which would bind the next try
