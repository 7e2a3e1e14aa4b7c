"""The command: what a user types, what they see, and how it ends."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jax.errors import JaxRuntimeError

from specdec_jax import gamma_table, main, pretrained, rule_table, terminal, text_run
from tests.tiny_pair import tiny_pair

SMALL = ["--max_new_tokens=8", "--gamma=3", "--input_length=32", "--batch_size=4"]
COMMAND = [sys.executable, "-c", "import sys; from specdec_jax.main import run; sys.exit(run())"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """No test writes to the user's cache, or sets jax's for the tests after it."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))


def generate(*arguments):
    return main.run(["generate", f"--model={tiny_pair()}", *SMALL, *arguments])


def feed(monkeypatch, data: bytes):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_sentences_of_the_command_line(capsys):
    assert generate("The quick", "brown fox") == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert "2 rows" in err
    assert "alpha" in err


def test_a_row_for_each_line_of_standard_input(capsys, monkeypatch):
    data = "The quick\r\n\r\na\u2028b\x85c\n \nlast, without an end".encode()
    feed(monkeypatch, data)
    assert generate("--output=-") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [row["inputs"] for row in rows] == [
        "The quick", "", "a\u2028b\x85c", " ", "last, without an end",
    ]  # fmt: skip


def test_predictions_stay_line_for_line(capsys, monkeypatch):
    feed(monkeypatch, b"The quick\n\nbrown\n")
    assert generate() == 0
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 4
    assert lines[1] == ""


def test_an_input_of_no_lines(tmp_path, capsys):
    (tmp_path / "in").write_bytes(b"")
    assert generate(f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}") == 0
    assert (tmp_path / "out").read_bytes() == b""
    assert generate(f"--input={tmp_path / 'in'}") == 0
    assert capsys.readouterr().out == ""


def test_bytes_that_are_not_utf8_are_a_warning(tmp_path, capsys):
    (tmp_path / "in").write_bytes(b"fine\nnot \xff fine\n")
    assert generate(f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}") == 0
    assert "specdec: warning: 1 of 2 lines are not UTF-8 (the first is line 2)" in (
        capsys.readouterr().err
    )
    assert len((tmp_path / "out").read_bytes().splitlines()) == 2


def test_a_long_source_is_one_warning(tmp_path, capsys):
    (tmp_path / "in").write_text("fox " * 100 + "\nfox\n" + "dog " * 100 + "\n")
    assert generate(f"--input={tmp_path / 'in'}") == 0
    err = capsys.readouterr().err
    assert err.count("warning") == 1
    assert "2 of 3 sources are longer than 32 tokens" in err


def test_the_comparison(capsys):
    assert generate("The quick", "brown fox", "--compare") == 0
    err = capsys.readouterr().err
    assert "identical to the target alone: 2 of 2" in err
    assert "compilation" in err


def test_the_trace_of_one_sentence(capsys):
    assert generate("tools", "--trace", "--batch_size=1") == 0
    out = capsys.readouterr().out
    assert "accepted [-rejected-] {+the target's own+}" in out
    assert "\n   1 " in out


def test_a_terminal_sees_the_trace_and_a_file_does_not(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert generate("tools", "--batch_size=1") == 0
    assert "the target's own" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert generate("tools", "--batch_size=1", "--no-trace") == 0
    assert "the target's own" not in capsys.readouterr().out


def test_progress_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with terminal.progress(total=10, done=4) as advance:
        advance(6)
    assert "10/10" in capsys.readouterr().err


def wrong(capsys, code, *arguments):
    """Runs a wrong command: the status, and exactly one line."""
    assert main.run(list(arguments)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("specdec: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "command"),
        (["generat"], "generat"),
        (["generate", "x", "--gama=3"], "--gama=3"),
        (["generate", "x", "--gamma=three"], "three"),
        (["generate", "x", "--gamma=0"], "gamma must be 1"),
        (["generate", "x", "--temperature=-1"], "temperature"),
        (["generate", "x", "--temperature=nan"], "temperature"),
        (["generate", "x", "--top_p=0"], "top_p"),
        (["generate", "x", "--top_k=-1"], "top_k"),
        (["generate", "x", "--batch_size=0"], "batch_size"),
        (["generate", "x", "--max_new_tokens=0"], "max_new_tokens"),
        (["generate", "x", "--max_new_tokens=9999999999999"], "at most 1048576"),
        (["generate", "x", "--gamma=9999999999999"], "at most 1048576"),
        (["generate", "x", "--seed=-1"], "seed"),
        (["generate", "x", "--task=resture"], "restore, ende, synopsis"),
        (["generate", "x", "--task=ende", "--prefix=y"], "not both"),
        (["generate", "x", "--input=y"], "not both"),
        (["generate", "x", "y", "--trace"], "single sentence"),
        (["demo", "--num_sentences=0"], "num_sentences"),
    ],
)
def test_wrong_usage_is_one_sentence(capsys, arguments, message):
    assert message in wrong(capsys, 2, *arguments)


def test_nothing_to_decode(capsys, monkeypatch):
    feed(monkeypatch, b"")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert "Nothing to decode" in wrong(capsys, 2, "generate")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "x", "--model=nowhere"], "no directory 'nowhere'"),
        (["generate", "--input=/no/such/file"], "/no/such/file: No such file"),
        (["generate", "--input=/"], "/: Is a directory"),
        (["generate", "x", "--output=/no/such/file"], "/no/such/file.partial: No such file"),
        (["demo", "--sentences=/no/such/file"], "/no/such/file: No such file"),
    ],
)
def test_what_can_not_be_done_is_one_sentence(capsys, arguments, message):
    assert message in wrong(capsys, 1, *arguments)


def test_a_long_source_as_an_error(capsys):
    model = f"--model={tiny_pair()}"
    message = wrong(capsys, 1, "generate", "x " * 99, model, *SMALL, "--on_long=error")
    assert "longer than 32 tokens" in message


def test_a_finished_output_is_not_replaced(tmp_path, capsys):
    output = tmp_path / "out"
    output.write_text("precious")
    assert "--overwrite" in wrong(capsys, 1, "generate", "x", f"--output={output}")
    assert output.read_text() == "precious"
    assert generate("x", f"--output={output}", "--overwrite") == 0
    assert json.loads(output.read_text())["inputs"] == "x"


def test_a_traceback_for_who_wants_it(monkeypatch):
    monkeypatch.setenv("SPECDEC_TRACEBACK", "1")
    with pytest.raises(FileNotFoundError):
        main.run(["generate", "x", "--model=nowhere"])


def test_an_interrupted_run_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    (tmp_path / "in").write_text("".join(f"fox {i}\n" for i in range(10)))
    files = [f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}"]
    from specdec_jax import text_run

    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return decode(*arguments)

    decode = text_run.decode
    monkeypatch.setattr(text_run, "decode", interrupted)
    assert generate(*files) == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        "specdec: Interrupted after 4 of 10 rows; the same command goes on from there."
    )
    assert "another gamma" in wrong(
        capsys, 1, "generate", f"--model={tiny_pair()}", *SMALL, *files, "--gamma=2"
    )
    with monkeypatch.context() as changed:  # new weights of the same name
        changed.setattr(pretrained, "fingerprint", lambda *_, **__: "another")
        assert generate(*files) == 1
        assert "another checkpoint" in capsys.readouterr().err
    assert generate(*files) == 0
    assert "Going on after row 4 of 10." in capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [row["inputs"] for row in rows] == [f"fox {i}" for i in range(10)]


def test_an_interrupt_elsewhere(capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(pretrained, "load", interrupted)
    assert wrong(capsys, 130, "generate", "x") == "specdec: Interrupted.\n"


@pytest.fixture
def sentences(tmp_path):
    path = tmp_path / "sentences.jsonl"
    tasks = ["restore"] * 6 + ["ende"] * 3 + ["synopsis"] * 3
    rows = [{"task": task, "inputs": f"{task}: fox {i}"} for i, task in enumerate(tasks)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return f"--sentences={path}"


def demo(sentences, *arguments):
    model = f"--model={tiny_pair()}"
    return main.run(["demo", model, sentences, "--gamma=3", "--repeats=1", *arguments])


def test_the_demo(capsys, sentences):
    assert demo(sentences, "--num_sentences=6") == 0
    out = capsys.readouterr().out
    assert "identical to the target alone: 6 of 6" in out
    assert out.index("restore: 4") < out.index("ende: 1") < out.index("synopsis: 1")
    assert out.count("\n  > ") == 6
    assert "alpha" in out
    assert "tokens/call" in out
    assert "compilation" in out


def test_the_demo_fails_where_a_sentence_differs(capsys, sentences, monkeypatch):
    from specdec_jax import speed

    def changed(*arguments):
        result = decode_plain(*arguments)
        return result._replace(tokens=result.tokens.at[0, 1].set(9))

    decode_plain = speed.decode_plain
    monkeypatch.setattr(speed, "decode_plain", changed)
    assert demo(sentences, "--num_sentences=1") == 1
    out = capsys.readouterr().out
    assert "restore differs in row 1: token 2 is" in out
    assert "identical to the target alone: 0 of 1" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}\n', 'own.jsonl:1 must be an object with the texts "task" and "inputs"'),
        ("\n[1]\n", "own.jsonl:2 must be an object"),
        ('{"task": 1, "inputs": "x"}', "own.jsonl:1 must be an object"),
        ("{]\n", "own.jsonl:1 is not JSON"),
        ("\xff\n", "own.jsonl:1 is not JSON"),
        ("\n", "own.jsonl holds no sentences"),
        ('{"task": "fly", "inputs": "x"}', "no task 'fly'; there are restore, ende, synopsis"),
    ],
)
def test_wrong_sentences_of_ones_own(capsys, tmp_path, text, message):
    (tmp_path / "own.jsonl").write_text(text, "latin-1")
    assert message in wrong(capsys, 1, "demo", f"--sentences={tmp_path / 'own.jsonl'}")


@pytest.mark.parametrize("error", [MemoryError(), JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GB")])
def test_too_little_memory_is_one_sentence(capsys, monkeypatch, error):
    def full(*_, **__):
        raise error

    monkeypatch.setattr(pretrained, "load", full)
    assert "not enough memory: try a smaller batch_size" in wrong(capsys, 1, "generate", "x")


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_stream_swallows_what_is_written(monkeypatch, closed):
    monkeypatch.setattr(sys, closed, None)
    assert generate("The quick") == 0


def test_version_and_help(capsys):
    assert main.run(["version"]) == 0
    assert capsys.readouterr().out == "specdec_jax 0.1.0\n"
    assert main.run(["train", "--help"]) == 0
    assert "--gin_file=FILE" in capsys.readouterr().out
    for arguments in (["--help"], ["generate", "--help"], ["demo", "-h"]):
        with pytest.raises(SystemExit, match="0"):
            main.run(arguments)
        assert "usage: specdec" in capsys.readouterr().out


def environment(tmp_path):
    root = str(Path(main.__file__).parents[1])
    keep = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    return {**keep, "PYTHONPATH": root, "XDG_CACHE_HOME": str(tmp_path / "cache")}


ROWS = 30_000


def test_a_real_interrupt_and_a_real_rerun(tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("".join(f"fox {i}\n" for i in range(ROWS)))
    # Where the tests are a shell's background job, SIGINT is ignored from the start.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = [*COMMAND[:-1], heed + COMMAND[-1], "generate", f"--model={tiny_pair()}", *SMALL]
    command += [f"--input={source}", f"--output={output}"]
    process = subprocess.Popen(  # a row at a time: minutes of work, cut off in its first second
        [*command, "--batch_size=1"],
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    partial = tmp_path / "out.partial"
    for _ in range(6000):
        if partial.exists() and partial.stat().st_size > 0:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "the same command goes on from there" in err
    assert "Traceback" not in err
    assert not output.exists()
    begun = partial.read_bytes()
    assert 0 < begun.count(b"\n") < ROWS
    rerun = [*command, "--batch_size=1000"]
    subprocess.run(rerun, env=environment(tmp_path), check=True, cwd=tmp_path)
    before, after = (
        [json.loads(row) for row in text.split(b"\n")[:-1]] for text in (begun, output.read_bytes())
    )
    assert [row["inputs"] for row in after] == [f"fox {i}" for i in range(ROWS)]
    # Scores may differ in the last digit: the rows had other rows beside them.
    assert [row["prediction"] for row in after[: len(before)]] == [r["prediction"] for r in before]
    assert list((tmp_path / "cache" / "specdec_jax").iterdir()), "compiled programs are kept"


def test_a_reader_that_stops_reading(tmp_path):
    (tmp_path / "in").write_text("fox\n" * 20)
    process = subprocess.Popen(
        [*COMMAND, "generate", f"--model={tiny_pair()}", *SMALL, f"--input={tmp_path / 'in'}"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.wait(timeout=60)


@pytest.mark.parametrize(
    "flags",
    [
        ["--draft=bigram"],
        ["--draft=lookup+model"],
        ["--rule=lenient", "--lenience=0.5"],
        ["--num_drafts=2", "--temperature=1"],
        ["--gamma=auto"],
    ],
)
def test_drafts_and_rules_of_the_command(capsys, flags):
    assert generate("The quick", "brown fox", *flags) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.slow
def test_the_gumbel_rule_gives_a_seeds_tokens_whatever_the_draft(capsys):
    outputs = set()
    for flags in (["--draft=model"], ["--draft=lookup"], ["--gamma=1", "--batch_size=1"]):
        assert generate("The quick", "brown", "--rule=gumbel", "--temperature=1", *flags) == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1
    assert generate("The quick", "--rule=gumbel", "--temperature=1", "--compare") == 0
    assert "identical to the target alone: 1 of 1" in capsys.readouterr().err


def test_beam_search_of_the_command(capsys):
    assert generate("The quick", "brown fox", "--num_beams=2", "--gamma=2", "--compare") == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert "identical to the target alone: 2 of 2" in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rule=gumble"], "did you mean gumbel?"),
        (["--rule=none"], "there are exact, lenient, gumbel"),
        (["--rule=lenient"], "lenience goes with rule=lenient"),
        (["--lenience=0.5"], "lenience goes with rule=lenient"),
        (["--rule=lenient", "--lenience=2"], "lenience must be in"),
        (["--num_drafts=2"], "num_drafts needs a temperature above 0"),
        (["--num_drafts=2", "--rule=gumbel", "--temperature=1"], "num_drafts needs rule=exact"),
        (["--num_drafts=0"], "num_drafts must be 1"),
        (["--gamma=x"], "a whole number or auto"),
        (["--num_beams=2", "--temperature=1"], "does not go with a temperature"),
        (["--num_beams=2", "--rule=gumbel"], "does not go with rule=gumbel"),
        (["--num_beams=2", "--gamma=auto"], "does not go with gamma=auto"),
        (["--num_beams=2", "--num_draft_beams=1"], "at least num_beams, 2"),
        (["--num_beams=2", "--trace"], "beam search does not make"),
        (["--num_draft_beams=4"], "goes with num_beams above 1"),
    ],
)
def test_flags_that_do_not_go_together(capsys, flags, message):
    assert main.run(["generate", "a", f"--model={tiny_pair()}", *flags]) == 2
    err = capsys.readouterr().err
    assert message in err and len(err.splitlines()) == 1


def test_beam_search_with_a_draft_that_can_not(capsys):
    assert generate("The quick", "--num_beams=2", "--draft=bigram") == 1
    assert "needs a draft that is a network" in capsys.readouterr().err


def test_an_output_is_not_completed_by_another_rule(tmp_path, capsys, monkeypatch):
    lines, output = tmp_path / "lines", tmp_path / "out.jsonl"
    lines.write_text("The quick\n" * 9)
    job = ["generate", f"--model={tiny_pair()}", *SMALL, f"--input={lines}", f"--output={output}"]
    decode, calls = text_run.decode, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return decode(*arguments)

    monkeypatch.setattr(text_run, "decode", interrupted)
    assert main.run([*job, "--rule=gumbel"]) == 130
    for other in (["--rule=exact"], ["--rule=gumbel", "--draft=lookup"], ["--gamma=auto"]):
        assert main.run([*job, *other]) == 1
        assert "was begun with another" in capsys.readouterr().err
    assert main.run([*job, "--rule=gumbel"]) == 0
    assert len(output.read_text().splitlines()) == 9


@pytest.fixture
def two_sentences(tmp_path):
    path = tmp_path / "sentences.jsonl"
    rows = [{"task": task, "inputs": "The quick brown fox"} for task in ("restore", "ende")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.slow
def test_drafts_side_by_side(tmp_path, two_sentences, capsys, monkeypatch):
    monkeypatch.setattr("specdec_jax.costs.REPEATS", 1)
    monkeypatch.setattr("specdec_jax.draft_table.GAMMAS", (1, 3))
    output = tmp_path / "drafts.json"
    assert main.run([
        "drafts", f"--model={tiny_pair()}", "--drafts", "bigram", "lookup", "--repeats=1",
        f"--sentences={two_sentences}", "--max_new_tokens=8", f"--output={output}",
    ]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert [line.split(" | ")[0] for line in out.splitlines()[2:6]] == [
        "| bigram", "| bigram", "| lookup", "| lookup",
    ]  # fmt: skip
    rows = json.loads(output.read_text())
    assert {row["gamma"] for row in rows} <= {1, 3}
    assert all(row["measured"] > 0 and row["expected"] > 0 for row in rows)
    assert all(0 <= row["alpha"] <= 1 for row in rows)


def test_rules_side_by_side(two_sentences, capsys, monkeypatch):
    few = {name: rule_table.RULES[name] for name in ("exact", "gumbel", "2 beams, 4 of the draft")}
    monkeypatch.setattr(rule_table, "RULES", few)
    command = [
        "rules",
        f"--model={tiny_pair()}",
        f"--sentences={two_sentences}",
        "--max_new_tokens=8",
    ]
    assert main.run(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| rule | α, restore | tokens a call | α, ende")
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {name}" for name in few]
    assert main.run([*command, "--gamma=auto"]) == 2


@pytest.mark.slow
def test_gammas_side_by_side(two_sentences, capsys, monkeypatch):
    monkeypatch.setattr("specdec_jax.costs.REPEATS", 1)
    monkeypatch.setattr(gamma_table, "FIXED", (3,))
    command = ["gammas", f"--model={tiny_pair()}", f"--sentences={two_sentences}", "--repeats=1"]
    assert main.run([*command, "--max_new_tokens=8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:7]] == [
        "| the target alone", "| gamma 3", "| confident", "| assisted", "| adaptive",
    ]  # fmt: skip
    assert lines[2].split(" | ")[1:3] == ["1.00X", "0.0"]
    assert "restore: adaptive" in lines[8] and "against the best fixed" in lines[8]


@pytest.mark.parametrize("command", ["drafts", "rules", "gammas"])
def test_side_by_side_of_nothing(command, capsys):
    assert main.run([command, "--num_sentences=0"]) == 2
    assert "--num_sentences must be 1" in capsys.readouterr().err
