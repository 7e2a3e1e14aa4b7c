"""Output files: whole rows only, and a rerun that completes what an interrupted run began."""

import json
import os

import pytest

from specdec_jax import batch_job
from specdec_jax.batch_job import BatchJob, to_row
from specdec_jax.errors import UserError
from specdec_jax.generate import Generation
from specdec_jax.text_lines import split_lines

LINES = [f"line {i}" for i in range(10)]
SETTINGS = {"gamma": 3, "model": "m"}


def fake(lines, first=0, batch_size=4):
    """Batches as `generate` yields them."""
    for start in range(first, len(lines), batch_size):
        yield [Generation(line, line.upper(), -1.5) for line in lines[start : start + batch_size]]


def run(output, lines=LINES, settings=SETTINGS, stop_after=None, **kwargs):
    """Runs a job; returns where it began. `stop_after` batches it is interrupted."""
    with BatchJob(output, lines, settings, batch_size=4, **kwargs) as job:
        first = job.done
        for i, _ in enumerate(job.write(fake(lines, first)), 1):
            if i == stop_after:
                raise KeyboardInterrupt
    return first


@pytest.fixture
def whole(tmp_path):
    output = tmp_path / "whole.jsonl"
    run(output)
    return output.read_bytes()


def test_a_finished_output(tmp_path, whole):
    assert [json.loads(row)["inputs"] for row in whole.splitlines()] == LINES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole.jsonl"]


def test_nothing_has_the_final_name_before_the_end(tmp_path):
    output = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(output, stop_after=1)
    assert not output.exists()
    assert len((tmp_path / "out.jsonl.partial").read_bytes().splitlines()) == 4


def test_a_rerun_goes_on_after_any_cut(tmp_path, whole):
    for cut in range(0, len(whole), 7):
        output = tmp_path / f"{cut}.jsonl"
        with pytest.raises(KeyboardInterrupt):
            run(output, stop_after=2)
        partial = tmp_path / f"{cut}.jsonl.partial"
        partial.write_bytes(whole[:cut])
        first = run(output)
        assert output.read_bytes() == whole, cut
        assert first == whole[:cut].count(b"\n") // 4 * 4


def test_a_run_killed_just_before_the_rename_is_only_finished(tmp_path, whole):
    output = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(output, stop_after=2)
    (tmp_path / "out.jsonl.partial").write_bytes(whole)
    assert run(output) == 10
    assert output.read_bytes() == whole


@pytest.mark.parametrize(
    "damage", [b"\0\0\0\0\n", b'{"inputs": 1}\n', b"[]\n", b'{"inputs": "other"}\n']
)
def test_damaged_rows_are_done_again(tmp_path, whole, damage):
    output = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(output, stop_after=1)
    with (tmp_path / "out.jsonl.partial").open("ab") as f:
        f.write(damage + b"".join(whole.splitlines(keepends=True)[5:8]))
    assert run(output) == 4
    assert output.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"settings": {**SETTINGS, "gamma": 5}}, "gamma"),
        ({"settings": {"model": "m"}}, "gamma"),
        ({"lines": [*LINES[:-1], "another"]}, "input"),
    ],
)
def test_other_settings_or_inputs_are_refused(tmp_path, change, named):
    output = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run(output, stop_after=1)
    with pytest.raises(UserError, match=f"another {named}: .*--overwrite"):
        run(output, **change)
    assert run(output, **change, overwrite=True) == 0


def test_a_partial_file_of_unknown_making_is_refused(tmp_path):
    (tmp_path / "out.jsonl.partial").write_text("{}\n")
    with pytest.raises(UserError, match="--overwrite"):
        run(tmp_path / "out.jsonl")


def test_a_finished_output_is_replaced_only_if_asked(tmp_path):
    output = tmp_path / "out.jsonl"
    output.write_text("precious")
    with pytest.raises(UserError, match=r"exists already.*--overwrite"):
        run(output)
    assert output.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    run(output, overwrite=True)
    assert len(output.read_bytes().splitlines()) == 10


@pytest.mark.parametrize("overwrite", [False, True])
def test_only_regular_files_are_replaced(tmp_path, overwrite):
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for output in (tmp_path / "directory", tmp_path / "fifo", "/dev/null"):
        with pytest.raises(UserError, match="is not a regular file"):
            BatchJob(output, LINES, SETTINGS, batch_size=4, overwrite=overwrite)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "fifo"]


def test_an_interrupted_overwrite_goes_on(tmp_path, whole):
    output = tmp_path / "out.jsonl"
    output.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        run(output, stop_after=2, overwrite=True)
    assert output.read_text() == "old"
    assert run(output, overwrite=True) == 8
    assert output.read_bytes() == whole
    assert run(output, overwrite=True) == 0, "a finished one is made anew"


def test_an_overwrite_starts_over_what_another_job_began(tmp_path):
    output = tmp_path / "out.jsonl"
    for changes in ({}, {"settings": {**SETTINGS, "gamma": 5}, "overwrite": True}):
        with pytest.raises(KeyboardInterrupt):
            run(output, stop_after=2, **changes)
        assert run(output, overwrite=True) == 0


def test_a_process_that_finishes_meanwhile_is_not_overwritten(tmp_path, whole, monkeypatch):
    """It renames the partial file between another's open and its lock."""
    output = tmp_path / "out.jsonl"
    partial = tmp_path / "out.jsonl.partial"
    flock = batch_job.fcntl.flock

    def finish_first(*arguments):
        monkeypatch.setattr(batch_job.fcntl, "flock", flock)
        partial.write_bytes(whole)
        partial.rename(output)
        flock(*arguments)

    monkeypatch.setattr(batch_job.fcntl, "flock", finish_first)
    with pytest.raises(UserError, match="exists already"):
        run(output)
    assert output.read_bytes() == whole
    output.unlink()
    monkeypatch.setattr(batch_job.fcntl, "flock", finish_first)
    with BatchJob(output, LINES, SETTINGS, batch_size=4, overwrite=True):
        assert output.read_bytes() == whole


def test_the_output_has_its_name_once_its_last_row_is_written(tmp_path, whole):
    output = tmp_path / "out.jsonl"

    def batches():
        yield from fake(LINES)
        assert output.read_bytes() == whole, "before a summary, which may take its time"

    with BatchJob(output, LINES, SETTINGS, batch_size=4) as job:
        for _ in job.write(batches()):
            pass


def test_two_processes_do_not_write_one_file(tmp_path):
    with BatchJob(tmp_path / "o", LINES, SETTINGS, batch_size=4) as job:
        next(iter(job.write(fake(LINES))))
        with pytest.raises(UserError, match="another process"):
            BatchJob(tmp_path / "o", LINES, SETTINGS, batch_size=4, overwrite=True)


def test_a_job_that_wrote_nothing_leaves_nothing(tmp_path):
    with (
        pytest.raises(ValueError, match="no model"),
        BatchJob(tmp_path / "o", LINES, SETTINGS, batch_size=4),
    ):
        raise ValueError("no model")
    assert list(tmp_path.iterdir()) == []


def test_no_lines_make_an_empty_output(tmp_path):
    run(tmp_path / "o", lines=[])
    assert (tmp_path / "o").read_bytes() == b""


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"\n\n", ["", ""]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\n\r\nb", ["a", "", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"\xef\xbb\xbfa\n", ["a"]),
        ("a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\n".encode(), ["a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"]),
        (b"a\0b\n\0\n", ["a\0b", "\0"]),
    ],
)
def test_lines_end_at_newlines_only(data, lines):
    assert split_lines(data) == (lines, [])


def test_bytes_that_are_not_utf8_are_replaced_and_told():
    lines, invalid = split_lines(b"fine\n\xff\xfe x\nfine\ncut \xe2\x82\n")
    assert lines == ["fine", "\ufffd\ufffd x", "fine", "cut \ufffd"]
    assert invalid == [2, 4]


def test_a_row_is_one_line_for_every_reader():
    text = "a\u2028b\u2029c\x85d\ne\rf\x0bg\x1ch \U0001f600 ü"
    row = to_row(Generation(text, text).as_json())
    assert len(row.decode().splitlines()) == 1
    assert json.loads(row)["inputs"] == json.loads(row)["prediction"] == text
    assert "ü" in row.decode()
