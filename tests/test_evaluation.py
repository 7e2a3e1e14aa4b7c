"""Evaluation: against the decoders and metrics that it stands on."""

import dataclasses
import json

import numpy as np
import pytest

from specdec_jax import evaluation, main, metrics, pretrained
from specdec_jax.generate import Settings, generate
from specdec_jax.restoration import strip_case_and_punctuation
from tests.tiny_pair import tiny_pair

REFERENCES = ["The quick brown fox.", "A package, with tools!", "The lazy dog."]
SOURCES = [strip_case_and_punctuation(text) for text in REFERENCES]
SETTINGS = Settings(max_new_tokens=8, gamma=3, input_length=32, batch_size=2)


def test_scores_and_acceptance_are_those_of_what_is_generated():
    pair = pretrained.load(tiny_pair())
    seen = []
    report = evaluation.evaluate(
        pair, "restore", SOURCES, REFERENCES, SETTINGS, progress=seen.append
    )
    rows = []
    for batch in generate(pair, SOURCES, dataclasses.replace(SETTINGS, task="restore")):
        rows += batch
    assert report.predictions == [row.prediction for row in rows]
    assert report.scores == metrics.restored(report.predictions, REFERENCES)
    assert report.copy == metrics.restored(SOURCES, REFERENCES)
    greedy, sampled = report.acceptance
    assert greedy.temperature == 0
    assert sampled.temperature == 1
    np.testing.assert_allclose(
        greedy.alpha, sum(row.accepted for row in rows) / sum(row.examined for row in rows)
    )
    np.testing.assert_allclose(
        greedy.tokens_per_call, sum(len(row.tokens) for row in rows) / sum(r.rounds for r in rows)
    )
    assert sampled != greedy
    assert sum(seen) == 6


def test_a_task_needs_as_many_references_as_sources():
    pair = pretrained.load(tiny_pair())
    with pytest.raises(ValueError, match="not 3 and 1"):
        evaluation.evaluate(pair, "restore", SOURCES, REFERENCES[:1], SETTINGS)


def test_the_command_prints_a_table_and_keeps_the_figures(tmp_path, capsys):
    for task in ("restore", "ende"):
        pairs = zip(SOURCES, REFERENCES, strict=True)
        text = "".join(f"{source}\t{reference}\n" for source, reference in pairs)
        (tmp_path / f"{task}-test.tsv").write_text(text)
    command = ["evaluate", f"--model={tiny_pair()}", f"--data_dir={tmp_path}"]
    command += ["--max_new_tokens=8", "--gamma=2", "--max_examples=2", "--input_length=32"]
    assert main.run([*command, f"--output={tmp_path / 'out.json'}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * 2
    assert lines[2].startswith("| restore | 2 | words ")
    assert lines[4].startswith("| ende | 2 | bleu ")
    figures = json.loads((tmp_path / "out.json").read_text())
    assert [report["task"] for report in figures] == ["restore", "ende"]
    assert f"{figures[0]['acceptance'][0]['alpha']:.3f}" in lines[2]


def test_the_command_says_where_pairs_come_from(tmp_path, capsys):
    assert main.run(["evaluate", f"--model={tiny_pair()}", f"--data_dir={tmp_path}"]) == 1
    assert "scripts/build_corpora.py makes them" in capsys.readouterr().err


def test_the_command_refuses_no_examples(capsys):
    assert main.run(["evaluate", "--max_examples=0"]) == 2
    assert "--max_examples" in capsys.readouterr().err


def test_a_missing_package_is_told_before_any_work(tmp_path, monkeypatch, capsys):
    def missing(*_):
        raise ImportError("needs a package that is not there")

    def load(*_, **__):
        raise AssertionError("nothing should be loaded")

    (tmp_path / "ende-test.tsv").write_text("a\tb\n")
    monkeypatch.setitem(evaluation.METRICS, "bleu", missing)
    monkeypatch.setattr(pretrained, "load", load)
    assert main.run(["evaluate", f"--data_dir={tmp_path}"]) == 1
    assert "needs a package" in capsys.readouterr().err
