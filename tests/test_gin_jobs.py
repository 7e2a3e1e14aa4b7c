"""Jobs configured by gin, with T5X's flags."""

import re

import gin
import pytest

from specdec_jax import gin_jobs, main
from specdec_jax.errors import UserError
from specdec_jax.resources import gin_search_paths
from tests.tiny_pair import save_vocabulary

TINY_JOB = """
from __gin__ import dynamic_registration
from specdec_jax import t5
include "runs/train.gin"
MODEL = @t5.T5Config()
t5.T5Config:
  vocab_size = 80
  emb_dim = 16
  num_heads = 2
  num_encoder_layers = 1
  num_decoder_layers = 1
  head_dim = 8
  mlp_dim = 32
"""


@pytest.fixture(autouse=True)
def _no_configuration_left(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    yield
    gin.clear_config()


def test_flags_as_t5x_has_them():
    flags = gin_jobs.parse_flags(
        ["--gin_file=a.gin", "--gin_file=b.gin", "--gin.X=1", "--gin.a.b='c=d'"]
        + ["--gin_search_paths=p,q", "-gin_bindings=Y=2"]
    )
    assert flags.files == ("a.gin", "b.gin")
    assert flags.bindings == ("X = 1", "a.b = 'c=d'", "Y=2")
    assert flags.search_paths == ("p", "q")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs at least one --gin_file"),
        (["a.gin"], "Not a gin flag: 'a.gin'"),
        (["--gin_file"], "Not a gin flag"),
        (["--gin_fil=a.gin"], "Unknown flag --gin_fil"),
    ],
)
def test_wrong_flags(arguments, message):
    with pytest.raises(UserError, match=message):
        gin_jobs.parse_flags(arguments)


def test_a_misspelt_macro_of_a_file_is_noticed(tmp_path):
    (tmp_path / "mine.gin").write_text('include "runs/train.gin"\nTOTAL_STEP = 3\n')
    flags = gin_jobs.parse_flags(
        [f"--gin_file={tmp_path / 'mine.gin'}", "--gin.MODEL=1", "--gin.RUN_DIR='here'"]
    )
    with pytest.raises(UserError, match="sets TOTAL_STEP, which nothing reads; did you mean TOT"):
        gin_jobs.configure(flags)


def test_the_model_of_a_file():
    assert gin_jobs.model_config("t5_1_1_xl").num_heads == 32
    assert gin_jobs.model_config("gin/models/t5_1_0_base.gin").mlp_activations == ("relu",)
    with pytest.raises(UserError, match="sets RULE, which nothing reads"):
        gin_jobs.model_config("gin/rules/exact.gin")


@pytest.mark.parametrize("name", ["runs/train.gin", "gin/runs/train.gin"])
def test_shipped_files_are_found_from_anywhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = name.replace("runs/train", "models/debian_draft")
    files = [f"--gin_file={name}", f"--gin_file={model}"]
    gin_jobs.configure(gin_jobs.parse_flags([*files, "--gin.RUN_DIR='here'"]))
    assert gin.query_parameter("%RUN_DIR") == "here"
    assert len(gin_search_paths()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gin_file=runs/none.gin"], "none.gin"),
        (["--gin_file=runs/train.gin", "--gin.RUN_DIR=("], "gin: "),
        (["--gin_file=runs/train.gin", "--gin.RUN_DIR=runs/a"], "--gin.RUN_DIR='\"...\"'"),
        (["--gin_file=runs/train.gin", "--gin.TOTL_STEPS=1"], "did you mean TOTAL_STEPS?"),
        (["--gin_file=runs/train.gin", "--gin.XYZ=1"], "gin: the job's files know no XYZ."),
        (
            ["--gin_file=runs/train.gin", "--gin.train.train.sead=1"],
            "'sead'; did you mean train.train.seed?",
        ),
        (
            ["--gin_file=runs/train.gin", "--gin.trian.train.seed=1"],
            "'trian.train'; did you mean train.train.seed?",
        ),
        (
            ["--gin_file=runs/train.gin", "--gin.MODEL=1", "--gin.RUN_DIR='gs://a/b'"],
            "RUN_DIR must be a directory",
        ),
        (["--gin_file=runs/train.gin"], "The job needs --gin.RUN_DIR=VALUE"),
        (["--gin_file=mixtures/debian.gin"], "sets TASKS, which nothing reads"),
        (
            ["--gin_file=runs/train.gin", "--gin.MODEL=1", "--gin.RUN_DIR=5"],
            "RUN_DIR must be text, not 5",
        ),
    ],
)
def test_a_wrong_job_is_one_sentence(arguments, message, capsys):
    assert main.run(["train", *arguments]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.fixture
def job(tmp_path, monkeypatch):
    """The flags of a run of two steps, with data of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.gin").write_text(TINY_JOB)
    save_vocabulary(tmp_path / "spiece.model")
    for task in ("restore", "ende", "synopsis"):
        for split in ("train", "validation"):
            rows = "".join(f"the fox {i}\tThe fox {i}.\n" for i in range(40))
            (tmp_path / f"{task}-{split}.tsv").write_text(rows)
    bindings = {"RUN_DIR": "run", "DATA_DIR": ".", "VOCABULARY": "spiece.model"}
    flags = [f"--gin.{name}='{value}'" for name, value in bindings.items()]
    return ["--gin_file=tiny.gin", *flags, "--gin.TOTAL_STEPS=2", "--gin.DECAY_STEPS=1"]


def test_a_tiny_training_run(job, tmp_path):
    assert main.run(["train", *job]) == 0
    assert (tmp_path / "run" / "last" / "config.json").is_file()
    config = (tmp_path / "run" / "config.gin").read_text()
    assert re.search(r"^TOTAL_STEPS = 2$", config, re.M)
    assert re.search(r"^MODEL/t5\.T5Config\.emb_dim = 16$", config, re.M)


def test_a_refused_job_leaves_the_configuration_of_the_run_before(job, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    config = tmp_path / "run" / "config.gin"
    config.write_text("# of the run before\n")
    assert main.run(["train", *job, "--gin.train.train.log_every=0"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "specdec: log_every must be a whole number, 1 or above, not 0."
    )
    assert config.read_text() == "# of the run before\n"


def test_a_job_may_import_what_registers_with_gin(tmp_path):
    def job():
        @gin.configurable
        def late():
            return 3

        return late()

    (tmp_path / "job.gin").write_text("RUN_DIR = %gin.REQUIRED\n")
    gin.external_configurable(job, "late_job")
    flags = [f"--gin_file={tmp_path / 'job.gin'}", f"--gin.RUN_DIR={str(tmp_path / 'run')!r}"]
    assert gin_jobs.run(job, flags) == 3
