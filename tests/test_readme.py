"""What the README shows, runs."""

import re
import shlex
import shutil
from pathlib import Path

import gin
import pytest

from specdec_jax import gin_jobs, main, pretrained, reproduce
from tests.tiny_pair import tiny_pair

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def commands():
    lines = "".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("specdec ")]


@pytest.fixture
def _a_pair_of_that_name(tmp_path, monkeypatch):
    """A tiny pair in the shipped one's place: the README's code, in seconds."""
    shutil.copytree(tiny_pair(), tmp_path / "debian")
    monkeypatch.setattr(pretrained, "ASSETS", tmp_path)


@pytest.mark.usefixtures("_a_pair_of_that_name")
def test_the_python_of_the_readme(capsys):
    assert len(blocks("python")) == 5
    exec(compile("\n".join(blocks("python")), "README.md", "exec"), {})
    assert "first line -> " in capsys.readouterr().out


@pytest.mark.parametrize("command", commands())
def test_the_commands_of_the_readme_are_understood(command):
    _, name, *arguments = shlex.split(command, comments=True)
    if name == "reproduce":
        arguments = reproduce.gin_flags(arguments)
    if name in ("train", "distill", "infer", "benchmark", "reproduce"):
        gin_jobs.configure(gin_jobs.parse_flags(arguments))
        assert gin.query_parameter("%RUN_DIR").startswith("runs/")
    else:
        parsed = main._build_parser().parse_args([name, *arguments])
        if name not in ("plan", "convert", "train_ngram", "report"):
            assert main._settings(parsed).gamma in (3, 7, "auto")


def test_what_the_readme_links_to_is_there():
    root = Path(__file__).parents[1]
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    missing = [link for link in links if not (root / link).exists()]
    assert len(links) > 5
    assert not missing
