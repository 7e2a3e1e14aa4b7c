"""n-gram tables: the counts, the distributions, the files, the command."""

import collections
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import ModelDrafter, autoregressive_decode, speculative_decode
from specdec_jax.main import run
from specdec_jax.ngram import (
    NgramModel,
    NgramTable,
    bits_per_token,
    count_ngrams,
    load_ngrams,
    save_ngrams,
)

from .conftest import TableModel, table_params
from .tiny_pair import TEXT, save_vocabulary

V, D = 12, 0.75


def texts(number: int = 60, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(number):
        start, step = rng.integers(2, V), rng.integers(1, 4)
        rows.append([*((start + step * np.arange(rng.integers(1, 7))) % (V - 2) + 2), 1])
    return rows


def reference(rows: list[list[int]], order: int, min_count: int, most: int) -> Any:
    """q(x | h) by dictionaries."""
    counts: dict[int, Any] = {n: collections.Counter() for n in range(1, order + 1)}
    for row in rows:
        full = [0, *row]
        for n in range(1, order + 1):
            for at in range(len(full) - n + 1):
                counts[n][tuple(full[at : at + n])] += 1
    unigram = np.full(V, 0.5)
    for (token,), count in counts[1].items():
        unigram[token] += count
    unigram[0] = 0
    kept: dict[int, dict] = {1: {(token,): None for token in range(V)}}
    for n in range(2, order + 1):
        rows_of = collections.defaultdict(list)
        for gram, count in counts[n].items():
            if gram[:-1] in kept[n - 1]:
                rows_of[gram[:-1]].append((-count, gram))
        kept[n] = {}
        for found in rows_of.values():
            total = -sum(count for count, _ in found)
            for count, gram in sorted(found)[:most]:
                if -count >= min_count:
                    kept[n][gram] = (-count - D) / total

    def q(prefix: list[int]) -> np.ndarray:
        full = [0, *prefix]
        p = unigram / unigram.sum()
        for n in range(2, order + 1):
            context = tuple(full[len(full) - n + 1 :])
            if len(full) < n - 1 or (n > 2 and context not in kept[n - 1]):
                continue
            shares = np.array([kept[n].get((*context, token), 0.0) for token in range(V)])
            p = shares + (1 - shares.sum()) * p
        return p

    return q


def logits_after(model: NgramModel, table: NgramTable, prefix: list[int]) -> np.ndarray:
    fed = jnp.asarray([[0, *prefix]])
    cache = model.prefill(table, jnp.ones((1, 3), int), 16)
    return model.extend(table, cache, fed, jnp.arange(fed.shape[1])[None])[0][0, -1]


@pytest.mark.parametrize(("min_count", "most"), [(1, 64), (2, 64), (2, 2)])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_the_distributions_are_those_of_counting(order: int, min_count: int, most: int) -> None:
    rows = texts()
    model, table = count_ngrams(
        rows, vocab_size=V, order=order, min_count=min_count, max_continuations=most
    )
    q = reference(rows, order, min_count, most)
    for prefix in ([], [3], [5, 6], [2, 2, 2], [4, 5, 6, 7], [11, 3, 5], [9, 9]):
        found = np.exp(logits_after(model, table, prefix))
        np.testing.assert_allclose(found.sum(), 1, atol=1e-5)
        np.testing.assert_allclose(found, q(prefix), atol=1e-3)  # stored in half precision
        assert found[0] == 0


def test_a_table_serves_the_lower_orders() -> None:
    model, table = count_ngrams(texts(), vocab_size=V, order=3)
    for order in (1, 2):
        small, alone = count_ngrams(texts(), vocab_size=V, order=order)
        lower = NgramModel(order, V, model.max_continuations)
        for prefix in ([], [3, 5]):
            np.testing.assert_allclose(
                logits_after(lower, table, prefix), logits_after(small, alone, prefix), rtol=1e-6
            )


def test_extending_by_k_is_extending_by_one_at_any_position() -> None:
    model, table = count_ngrams(texts(), vocab_size=V, order=4)
    fed = jnp.asarray(np.random.default_rng(1).integers(2, V, (3, 6)))
    places = jnp.broadcast_to(jnp.arange(6), fed.shape)
    whole, _ = model.extend(table, model.prefill(table, fed, 8), fed, places)
    cache = model.prefill(table, fed, 8)
    _, cache = model.extend(table, cache, fed[:, ::-1], places)  # guesses that did not stand
    for at in range(6):
        one, cache = model.extend(table, cache, fed[:, at : at + 1], places[:, at : at + 1])
        np.testing.assert_array_equal(one[:, 0], whole[:, at])
    alone, _ = model.extend(table, model.prefill(table, fed[1:2], 8), fed[1:2], places[1:2])
    np.testing.assert_allclose(alone[0], whole[1], rtol=1e-6)


def test_a_large_vocabulary_stays_sparse() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(2, 32128, (300, 20))
    model, table = count_ngrams(rows, vocab_size=32128, order=3, min_count=1)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(table))
    assert size < 32128 * 4 * 4 + 3 * 300 * 21 * 16
    assert np.isfinite(logits_after(model, table, rows[0, :3].tolist())).sum() == 32127


@pytest.mark.parametrize("order", [1, 2, 3])
def test_as_a_draft_it_changes_nothing(order: int) -> None:
    model, table = count_ngrams(texts(), vocab_size=V, order=order)
    target, params, inputs = TableModel(V), table_params(0, V), jnp.arange(3)[:, None]
    settings = {"max_new_tokens": 12, "eos_id": -1}
    result = speculative_decode(
        target, params, ModelDrafter(model), table, inputs, gamma=3, **settings
    )
    alone = autoregressive_decode(target, params, inputs, **settings)
    np.testing.assert_array_equal(result.tokens, alone.tokens)


def test_bits_per_token() -> None:
    model, table = count_ngrams(texts(), vocab_size=V, order=2)
    rows = texts(5, seed=1)
    bits = [
        -np.log2(np.exp(logits_after(model, table, row[:at])[row[at]]))
        for row in rows
        for at in range(len(row))
    ]
    assert bits_per_token(model, table, rows) == pytest.approx(np.mean(bits), rel=1e-4)
    assert np.isnan(bits_per_token(model, table, []))


def test_files_keep_it_as_it_is(tmp_path: Path) -> None:
    model, table = count_ngrams(texts(), vocab_size=V, order=3)
    for _ in range(2):  # the second replaces the first
        save_ngrams(tmp_path / "table", model, table)
    again, read = load_ngrams(tmp_path / "table")
    assert again == model
    jax.tree.map(np.testing.assert_array_equal, read, table)
    assert load_ngrams(tmp_path / "table", 2)[0].order == 2
    assert sorted(f.name for f in tmp_path.iterdir()) == ["table"]


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="train_ngram"):
        load_ngrams(tmp_path)
    path = tmp_path / "table"
    save_ngrams(path, *count_ngrams(texts(), vocab_size=V, order=2))
    with pytest.raises(ValueError, match="is of order 2: it has no order 3"):
        load_ngrams(path, 3)
    whole = (path / "table.npz").read_bytes()
    (path / "table.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged or incomplete"):
        load_ngrams(path)
    (path / "table.npz").write_bytes(whole)
    fields = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(fields | {"vocab_size": 99}))
    with pytest.raises(ValueError, match="12 unigrams, its config 99"):
        load_ngrams(path)


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([], {}, "no text to count"),
        ([[V]], {}, "outside the vocabulary"),
        ([[3]], {"order": 0}, "order must be"),
        ([[3]], {"min_count": 1.5}, "min_count must be"),
        ([[3]], {"max_continuations": 0}, "max_continuations must be"),
    ],
)
def test_wrong_counts_are_refused(rows: Any, settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        count_ngrams(rows, vocab_size=V, **settings)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_vocabulary(tmp_path / "spiece.model")
    (tmp_path / "a.txt").write_text("\n".join(TEXT))
    (tmp_path / "b.tsv").write_text("".join(f"source\t{line}\n" for line in TEXT))
    command = [
        "train_ngram", str(tmp_path / "a.txt"), str(tmp_path / "b.tsv"),
        f"--vocabulary={tmp_path / 'spiece.model'}", f"--output={tmp_path / 'table'}",
    ]  # fmt: skip
    assert run([*command, "--validation", str(tmp_path / "a.txt")]) == 0
    told = capsys.readouterr().out
    assert "80 of order 1" in told and "from 8 texts" in told and "bits a token on 4 texts" in told
    assert load_ngrams(tmp_path / "table")[0] == NgramModel(3, 80, 64)
    assert run(command) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert run([*command, "--overwrite", "--vocab_size=128"]) == 0
    assert load_ngrams(tmp_path / "table")[0].vocab_size == 128
    assert run([*command, "--overwrite", "--vocab_size=8"]) == 1
    assert "80 pieces" in capsys.readouterr().err
    assert run([*command[:1], str(tmp_path / "none.txt"), *command[3:], "--overwrite"]) == 1
    assert "none.txt: No such file" in capsys.readouterr().err
