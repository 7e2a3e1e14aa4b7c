"""Text in, text out: a row each, whatever a line holds, and the same row however it is run."""

import dataclasses
import json
import math

import numpy as np
import pytest

from specdec_jax import pretrained
from specdec_jax.generate import (
    TASKS,
    Settings,
    batches,
    decode_plain,
    generate,
    read,
)
from specdec_jax.sampling import Sampling
from specdec_jax.speed import Comparison, first_difference
from tests.tiny_pair import tiny_pair

SMALL = Settings(gamma=3, max_new_tokens=8, batch_size=4, input_length=32)
ODD_LINES = [
    "The quick brown fox",
    "",
    "   \t ",
    "\u00a0\u2003",
    "emoji \U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "combining e\u0301\u0301\u0301",
    "\u05e9\u05dc\u05d5\u05dd \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u202eRTL",
    "a nul \0 within",
    "line\u2028separator, next\x85line, form\x0cfeed, file\x1cseparator",
    "a lone carriage\rreturn",
    "\ufffd\ufeff",
    "long " * 5000,
    "The quick brown fox",
]


@pytest.fixture(scope="module")
def pair():
    return pretrained.load(tiny_pair())


def rows_of(pair, lines, settings, **kwargs):
    return [row for batch in generate(pair, lines, settings, **kwargs) for row in batch]


@pytest.fixture(scope="module")
def odd_rows(pair):
    with pytest.warns(UserWarning, match=r"^\d of 13 sources .*cut") as warned:
        rows = rows_of(pair, ODD_LINES, SMALL)
    assert len(warned) == 1
    return rows


def test_every_line_gets_its_row(odd_rows):
    assert [row.inputs for row in odd_rows] == ODD_LINES


def test_lines_without_text_get_an_empty_prediction(odd_rows):
    for row in odd_rows:
        assert bool(row.tokens) == bool(row.inputs.strip())
        assert bool(row.rounds) == bool(row.inputs.strip())
    assert odd_rows[1].prediction == ""


def test_each_row_is_what_the_target_alone_gives_for_that_line(pair, odd_rows):
    alone = dataclasses.replace(SMALL, batch_size=1)
    for line, row in zip(ODD_LINES, odd_rows, strict=True):
        if line.strip():
            [batch] = batches(pair, [line], alone)
            [expected] = read(pair, batch, decode_plain(pair, batch, alone))
            assert row.tokens == expected.tokens, line[:40]
            assert row.score == pytest.approx(expected.score, abs=1e-3)


def test_only_lines_without_text(pair):
    rows = rows_of(pair, ["", " ", "\t"], SMALL)
    assert [row.prediction for row in rows] == ["", "", ""]


def test_no_lines(pair):
    assert rows_of(pair, [], SMALL) == []


def test_sampled_rows_depend_on_neither_batch_size_nor_beginning(pair):
    lines = ["The quick", "brown fox", "", "jumps over", "the lazy dog", "again"]
    sampled = dataclasses.replace(SMALL, sampling=Sampling(1.0), seed=5)
    one = rows_of(pair, lines, dataclasses.replace(sampled, batch_size=1))
    four = rows_of(pair, lines, sampled)
    assert [row.tokens for row in one] == [row.tokens for row in four]
    assert [row.tokens for row in rows_of(pair, lines, sampled, first=2)] == [
        row.tokens for row in four[2:]
    ]
    other = rows_of(pair, lines, dataclasses.replace(sampled, seed=6))
    assert [row.tokens for row in other] != [row.tokens for row in four]


def test_equal_lines_are_sampled_independently(pair):
    sampled = dataclasses.replace(SMALL, sampling=Sampling(1.0))
    rows = rows_of(pair, ["The quick brown fox"] * 4, sampled)
    assert len({row.tokens for row in rows}) > 1


def test_a_long_source_is_an_error_if_asked_for(pair):
    strict = dataclasses.replace(SMALL, on_long="error")
    with pytest.raises(ValueError, match=r"1 of 2 sources .*32 tokens.*line 2"):
        rows_of(pair, ["short", "long " * 100], strict)


def test_few_source_lengths(pair):
    settings = dataclasses.replace(SMALL, batch_size=1, input_length=500)
    lines = ["fox " * n for n in range(1, 200, 7)]
    shapes = {batch.inputs.shape for batch in batches(pair, lines, settings)}
    assert shapes <= {(1, 32), (1, 64), (1, 128), (1, 256), (1, 500)}
    assert len(shapes) > 2


def test_no_source_loses_a_token_to_its_shape(pair):
    settings = dataclasses.replace(SMALL, batch_size=3, input_length=64)
    lines = ["fox " * n for n in range(1, 14)]
    for batch in batches(pair, lines, settings):
        for line, ids in zip(batch.lines, np.asarray(batch.inputs), strict=False):
            assert [*pair.vocabulary.encode(line), 1] == ids[ids != 0].tolist()


def test_a_task_prepares_and_prefixes():
    assert Settings(task="restore").source("Hello, World!") == "restore: hello world"
    assert Settings(task="ende").source("Hello, World!") == (
        "translate English to German: Hello, World!"
    )
    assert Settings(prefix="x: ").source("Hello") == "x: Hello"
    assert set(TASKS) == {"restore", "ende", "synopsis"}


def test_a_row_as_json(odd_rows):
    row = odd_rows[0]
    fields = json.loads(json.dumps(row.as_json()))
    assert fields["inputs"] == row.inputs
    assert fields["prediction"] == row.prediction
    assert fields["score"] < 0
    acceptance = fields["acceptance"]
    assert acceptance["tokens"] == len(row.tokens)
    assert acceptance["rounds"] == row.rounds
    assert acceptance["alpha"] == row.accepted / row.examined
    assert acceptance["tokens_per_call"] == len(row.tokens) / row.rounds
    assert odd_rows[1].as_json()["acceptance"] == {
        "alpha": None,
        "rounds": 0,
        "tokens": 0,
        "tokens_per_call": None,
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"task": "resture"}, "no task 'resture'"),
        ({"task": "ende", "prefix": "x"}, "not both"),
        ({"gamma": 0}, "gamma"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"batch_size": 0}, "batch_size"),
        ({"input_length": 1}, "input_length"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"on_long": "crop"}, "on_long"),
    ],
)
def test_wrong_settings_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        Settings(**wrong)


def test_a_comparison_counts_only_lines_with_text(pair):
    comparison = Comparison(pair, SMALL, repeats=1)
    for batch in batches(pair, ["The quick", "", "brown fox"], SMALL):
        comparison.add(batch)
    assert (comparison.rows, comparison.identical) == (2, 2)
    assert comparison.tokens == comparison.plain_tokens
    assert 0 <= comparison.alpha <= 1
    assert 1 <= comparison.tokens_per_call <= SMALL.gamma + 1
    assert comparison.verdict() == "identical to the target alone: 2 of 2"
    assert "tokens/s" in comparison.speeds()
    reason = comparison.reason()
    assert "gamma 3" in reason
    assert "T(4)/T(1)" in reason
    assert not math.isnan(comparison.speedup)


def test_a_comparison_says_where_rows_differ(pair, monkeypatch):
    def wrong(pair, batch, settings):
        result = decode_plain(pair, batch, settings)
        return result._replace(tokens=result.tokens.at[1, 2].set(9))

    monkeypatch.setattr("specdec_jax.speed.decode_plain", wrong)
    comparison = Comparison(pair, SMALL, repeats=1)
    [batch] = batches(pair, ["The quick", "brown fox"], SMALL)
    comparison.add(batch)
    assert comparison.verdict().startswith("identical to the target alone: 1 of 2\n")
    assert "differs in row 2: token 3 is " in comparison.verdict()


def test_samples_are_not_called_identical(pair):
    settings = dataclasses.replace(SMALL, sampling=Sampling(1.0))
    assert "identical" not in Comparison(pair, settings).verdict()


def test_the_first_difference_of_equal_results_is_none(pair):
    [batch] = batches(pair, ["The quick"], dataclasses.replace(SMALL, batch_size=1))
    result = decode_plain(pair, batch, SMALL)
    assert first_difference(pair, result, result, 0) is None


def test_a_batch_has_no_more_rows_than_there_are_lines(pair):
    settings = dataclasses.replace(SMALL, batch_size=10**12)
    [batch] = batches(pair, ["The quick", "", "fox"], settings)
    assert batch.inputs.shape[0] == 3
