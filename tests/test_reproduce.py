"""The reproduction: its parts, what it does not do twice, and its gin files at tiny size."""

import dataclasses
import json
import subprocess
from pathlib import Path

import gin
import pytest

from specdec_jax import findings, gin_jobs, main, theory
from specdec_jax.errors import UserError
from specdec_jax.findings import Finding, Table
from specdec_jax.paper_figures import TABLE_1, table_2, table_3
from specdec_jax.reproduce import gin_flags, reproduce
from tests.tiny_pair import tiny_pair

ROOT = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Counting:
    """A part that counts how often it ran."""

    name: str
    size: int = 1

    def findings(self, run_dir: Path) -> list[Finding]:
        ran = run_dir / f"{self.name}.ran"
        ran.write_text(ran.read_text() + "x" if ran.exists() else "x")
        return [Table(self.name, "A table", ("a",), ("{}",), ((self.size,),))]


def ran(run_dir: Path, name: str) -> int:
    file = run_dir / f"{name}.ran"
    return len(file.read_text()) if file.exists() else 0


def test_parts_are_done_once_and_reported(tmp_path: Path) -> None:
    parts = [Counting("one"), Counting("two")]
    page = reproduce(run_dir=str(tmp_path), parts=parts, only=("two",))
    assert (ran(tmp_path, "one"), ran(tmp_path, "two")) == (0, 1)
    assert page == tmp_path / "report.html" and "A table" in page.read_text()
    reproduce(run_dir=str(tmp_path), parts=parts)
    assert (ran(tmp_path, "one"), ran(tmp_path, "two")) == (1, 1)
    assert [table.name for table in findings.load(tmp_path)] == ["one", "two"]
    assert json.loads((tmp_path / "environment.json").read_text())["cores"]


def test_another_reproduction_s_directory_is_refused(tmp_path: Path) -> None:
    reproduce(run_dir=str(tmp_path), parts=[Counting("one")])
    with pytest.raises(UserError, match="holds one of another model, task or setting"):
        reproduce(run_dir=str(tmp_path), parts=[Counting("one", size=2)])
    with pytest.raises(UserError, match="no part 'three' here; there are one"):
        reproduce(run_dir=str(tmp_path), parts=[Counting("one")], only=("three",))


def test_the_command_s_flags_are_gin_s() -> None:
    flags = gin_flags(["--level=paper", "--run_dir=runs/a b", "--only=x,y", "--gin.N=1"])
    assert flags == [
        "--gin_file=runs/reproduce_paper.gin", "--gin.RUN_DIR='runs/a b'",
        "--gin.ONLY=['x', 'y']", "--gin.N=1",
    ]  # fmt: skip
    for wrong in (["--level=embeded"], ["--run_dir=x"]):
        with pytest.raises(UserError, match=r"--level(=| is )embedded"):
            gin_flags(wrong)


def test_a_mistake_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    command = ["reproduce", "--level=embedded", f"--run_dir={tmp_path}", "--only=them"]
    assert main.run(command) == 1
    err = capsys.readouterr().err
    assert "There is no part 'them'" in err and len(err.splitlines()) == 1
    gin.clear_config()


def test_table_1_tells_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {row[-1] for row in theory.table_1().rows} == {"equal"}
    wrong = (TABLE_1[0]._replace(speed=1.97), *TABLE_1[1:])
    monkeypatch.setattr(theory, "TABLE_1", wrong)
    assert [row[-1] for row in theory.table_1().rows] == ["differs"] + ["equal"] * 5


def test_the_figures_from_theory() -> None:
    second, third, fourth, fifth = theory.Theory().findings(Path())[1:]
    assert all(len(one.x) == len(one.y) == 100 for one in second.series)
    by_label = {one.label: one for one in third.series}
    # Where verifying costs more, the best gamma is larger, or none.
    dear, cheap = by_label["c = 0.05, T(γ+1) = 1.5 T(1)"], by_label["c = 0.05"]
    assert dear.dashed and not cheap.dashed
    assert all(d == 0 or d >= c for d, c in zip(dear.y, cheap.y, strict=True))
    assert fourth.series[0].y[0] == 1 and fifth.series[0].y[0] == 2


def test_the_paper_s_rows_are_found() -> None:
    assert table_2("EnDe", "small", 1.0).measured == 2.6
    assert table_2("EnDe", "huge", 1.0) is None and table_2(None, "small", 0.0) is None
    assert table_3("LM1B", "bigram").sampled == 0.05 and table_3("LM1B", "base") is None


TINY = [
    *("--gin.MAX_EXAMPLES=2", "--gin.REPEATS=1", "--gin.COUNTED_EXAMPLES=2", "--gin.GAMMAS=(2,)"),
    *("--gin.TEMPERATURES=(0.0,)", "--gin.MAX_NEW_TOKENS=6", f"--gin.MODEL='{tiny_pair()}'"),
]


@pytest.mark.slow
def test_the_embedded_level_at_tiny_size(tmp_path: Path) -> None:
    command = ["reproduce", "--level=embedded", f"--run_dir={tmp_path}", *TINY]
    assert main.run(command) == 0
    names = {finding.name: finding for finding in findings.load(tmp_path)}
    assert {"headline", "table1", "table2", "table3", "table_lenience", "figure5"} <= set(names)
    assert {"walk_restore", "walk_ende", "walk_synopsis"} <= set(names)
    assert len(names["table2"].rows) == 3 and len(names["table3"].rows) == 18
    row = dict(zip(names["table2"].columns, names["table2"].rows[1], strict=True))
    assert row["task"] == "ende" and row["measured "] == 3.4  # the paper's EnDe
    assert row["difference"] == pytest.approx(row["measured"] - 3.4)
    assert row["tokens"] == "2 of 2 identical"
    assert (tmp_path / "speed" / "ende" / "rows.jsonl").exists()
    gin.clear_config()


def test_the_paper_s_level_is_configured_as_its_file_says() -> None:
    text = (ROOT / "gin/runs/reproduce_paper.gin").read_text()
    command = text.split("#\n")[1].replace("#", "").replace("\\", " ").split()
    flags = [flag.replace("'", "", 1)[:-1] if flag.endswith("'") else flag for flag in command]
    assert command[:2] == ["specdec", "reproduce"]
    gin_jobs.configure(gin_jobs.parse_flags(gin_flags(["--level=paper", "--run_dir=x"] + [
        f"--gin.{name}={value}"
        for name, value in (
            ("ENDE_PAIR", "'a'"), ("CNN_PAIR", "'b'"),
            ("ENDE_DRAFTS", "('a/small',)"), ("CNN_DRAFTS", "('b/small', 'b/base')"),
        )
    ])))  # fmt: skip
    assert any(flag.startswith("--gin.ENDE_PAIR") for flag in flags)
    ende, cnn = (one.scoped_configurable_fn() for one in gin.query_parameter("%SUBJECTS"))
    assert (ende.like, cnn.like) == ("EnDe", "CNN/DM")
    assert (ende.task.name, cnn.drafts) == ("wmt14_ende-test", ("b/small", "b/base"))
    assert cnn.settings.input_length == 512 and cnn.dtype == "bfloat16"
    gin.clear_config()


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").glob("reproduce_*.sh")), ids=str)
def test_the_scripts_ask_for_parts_that_there_are(script: Path, tmp_path: Path) -> None:
    stand_in = tmp_path / "specdec"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    run = subprocess.run([script, "out", "--gin.X=1"], env=environment, capture_output=True)
    asked = run.stdout.decode().split()
    assert asked[:2] == ["reproduce", "--level=embedded"]
    assert asked[3:] == ["--run_dir=out", "--gin.X=1"]
    part = asked[2].removeprefix("--only=")
    assert part in {"theory", "speed", "rates", "lenience", "traces"}
