"""Batches: deterministic, complete, of few shapes, with little padding."""

import logging
import os

import numpy as np
import pytest

from specdec_jax import data
from specdec_jax.vocabulary import EOS_ID, PAD_ID, Vocabulary
from tests.fixtures_text import corpora, sentences, spiece, write_pairs  # noqa: F401


def random_pairs(count, seed, longest=40):
    """Pairs whose tokens identify them: source i and target i both begin with 3 + i."""
    rng = np.random.default_rng(seed)

    def rows():
        return [[3 + i] * rng.integers(1, longest) + [EOS_ID] for i in range(count)]

    return data.Pairs(data.ragged(rows()), data.ragged(rows()))


def seen(batches):
    """The first source tokens of all rows that hold an example, sorted."""
    firsts = np.concatenate([b.inputs[:, 0] for b in batches])
    return np.sort(firsts[firsts != PAD_ID])


def test_pairs_are_read_and_bad_lines_named(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("a b\tc\n\td\n", encoding="utf-8")
    assert data.read_pairs(str(path)) == (["a b", ""], ["c", "d"])
    path.write_text("a\tb\nno target\n", encoding="utf-8")
    with pytest.raises(ValueError, match="pairs.tsv:2 has 1 tab-separated"):
        data.read_pairs(str(path))
    path.write_bytes(b"a\tb\n\xff\tb\n")
    with pytest.raises(ValueError, match=r"pairs.tsv:2 is not UTF-8 text\.$"):
        data.read_pairs(str(path))
    with pytest.raises(FileNotFoundError, match="No text pairs"):
        data.read_pairs(str(tmp_path / "absent.tsv"))


def test_tokens_are_those_of_the_vocabulary_and_end(tmp_path, spiece):  # noqa: F811
    vocabulary = Vocabulary(spiece)
    path = str(tmp_path / "pairs.tsv")
    write_pairs(tmp_path / "pairs.tsv", [("tiny files", "Debian"), ("or", "copy them")])
    pairs = data.tokenize(path, "read: ", vocabulary)
    assert pairs.sources[0].tolist() == vocabulary.encode("read: tiny files") + [EOS_ID]
    assert pairs.targets[1].tolist() == vocabulary.encode("copy them") + [EOS_ID]


def test_cache_is_keyed_by_text_prefix_and_vocabulary(tmp_path, spiece, monkeypatch):  # noqa: F811
    vocabulary = Vocabulary(spiece)
    path = str(tmp_path / "pairs.tsv")
    write_pairs(tmp_path / "pairs.tsv", [("tiny files", "Debian")])
    first = data.tokenize(path, "", vocabulary)
    kept = [f for f in os.listdir(tmp_path) if f.endswith(".npz")]
    assert len(kept) == 1 and not [f for f in os.listdir(tmp_path) if f.endswith(".partial")]
    calls = []
    encode = Vocabulary.encode_batch
    monkeypatch.setattr(
        Vocabulary, "encode_batch", lambda self, t: calls.append(1) or encode(self, t)
    )
    again = data.tokenize(path, "", vocabulary)
    assert not calls
    for x, y in zip(first, again, strict=True):
        np.testing.assert_array_equal(x.tokens, y.tokens)
        np.testing.assert_array_equal(x.offsets, y.offsets)
    data.tokenize(path, "copy ", vocabulary)
    assert len(calls) == 2  # another prefix: both sides anew
    write_pairs(tmp_path / "pairs.tsv", [("tiny files", "users")])
    changed = data.tokenize(path, "", vocabulary)
    assert len(calls) == 4
    assert vocabulary.decode(changed.targets[0]) == "users"


@pytest.mark.parametrize("size", [0, 100, 700])
def test_a_damaged_cache_is_made_anew(size, tmp_path, spiece):  # noqa: F811
    path = tmp_path / "pairs.tsv"
    write_pairs(path, [("tiny files", "Debian")])
    first = data.tokenize(str(path), "", Vocabulary(spiece))
    [kept] = tmp_path.glob("*.npz")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:size])
    again = data.tokenize(str(path), "", Vocabulary(spiece))
    np.testing.assert_array_equal(first.sources.tokens, again.sources.tokens)
    assert len(kept.read_bytes()) == len(whole)


def test_fit_drops_or_cuts_and_counts(caplog):
    rows = data.Pairs(
        data.ragged([[5, 6, 7, 8, 1], [5, 1], [5, 1], [5, 1]]),
        data.ragged([[9, 1], [9, 9, 9, 9, 1], [9, 1], [1]]),
    )
    with caplog.at_level(logging.INFO, logger="absl"):
        cut = data.fit(rows, 4, 4, cut_source=True, name="toy")
    assert [cut.sources[i].tolist() for i in range(2)] == [[5, 6, 7, EOS_ID], [5, EOS_ID]]
    assert len(cut.sources) == len(cut.targets) == 2  # a long and an empty target are gone
    assert "toy: 2 pairs of 4; 2 dropped for length or an empty target, 1 sources cut" in (
        caplog.text
    )
    dropped = data.fit(rows, 4, 4, cut_source=False)
    assert [dropped.sources[i].tolist() for i in range(len(dropped.sources))] == [[5, EOS_ID]]


def test_few_buckets_hold_everything_and_pad_little():
    rng = np.random.default_rng(0)
    source = rng.gamma(4.0, 6.0, 4000).clip(2, 64).astype(int)
    lengths = np.stack([source, (source + rng.integers(-3, 3, 4000)).clip(2, 64)], -1)
    buckets = data.choose_buckets(lengths, count=8, tokens_per_batch=2048)
    assert len(buckets) <= 8
    for b in buckets:
        assert b.batch % 4 == 0 and b.source % 8 == 0 and b.target % 8 == 0
        assert b.batch == 4 or 1024 < b.batch * (b.source + b.target) <= 2048
    shapes = np.array([b[1:] for b in buckets])[data.assign(lengths, buckets)]
    assert (lengths <= shapes).all()
    assert 1 - lengths.sum() / shapes.sum() < 0.25
    one = data.choose_buckets(lengths, count=1, tokens_per_batch=2048)
    assert len(one) == 1 and (lengths.max(0) <= one[0][1:]).all()
    with pytest.raises(ValueError, match="longer than the largest bucket"):
        data.assign(np.array([[99, 4]]), buckets)


def test_batches_depend_on_seed_and_step_alone():
    pairs = [random_pairs(50, 0), random_pairs(30, 1)]

    def mixture(seed=0):
        return data.Mixture(pairs, [2, 1], seed=seed, tokens_per_batch=256, round_size=64)

    in_order, jumping = mixture(), mixture()
    steps = list(range(40))
    expected = {s: in_order.batch(s) for s in steps}
    for s in np.random.default_rng(3).permutation(steps):
        for a, b in zip(expected[s], jumping.batch(int(s)), strict=True):
            np.testing.assert_array_equal(a, b)
    # A fresh one that starts in the middle, as a resumed run does.
    for a, b in zip(expected[33], mixture().batch(33), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(
        not np.array_equal(expected[s].inputs, mixture(seed=1).batch(s).inputs) for s in range(4)
    )
    with pytest.raises(ValueError, match="negative"):
        in_order.batch(-1)


def test_every_example_comes_once_per_pass():
    pairs = random_pairs(64, 0)
    mixture = data.Mixture([pairs], [1.0], tokens_per_batch=512, num_buckets=3, round_size=64)
    steps = len(mixture._plan(0))
    first = [mixture.batch(s) for s in range(steps)]
    second = [mixture.batch(s) for s in range(steps, steps + len(mixture._plan(1)))]
    np.testing.assert_array_equal(seen(first), 3 + np.arange(64))
    np.testing.assert_array_equal(seen(second), 3 + np.arange(64))
    assert not all(np.array_equal(a.inputs, b.inputs) for a, b in zip(first, second, strict=False))
    for batch in first:  # source and target of a row belong together
        real = batch.inputs[:, 0] != PAD_ID
        body = np.where(batch.targets[real, :1] == EOS_ID, EOS_ID, batch.inputs[real, :1])
        assert (batch.targets[real, :1] == body).all()


def test_every_pass_has_an_order_of_its_own():
    mixture = data.Mixture([random_pairs(64, 0)], [1.0], round_size=64)
    assert mixture._drawn(0, 0).tolist() != mixture._drawn(0, 1).tolist()
    assert sorted(mixture._drawn(0, 1)) == list(range(64))


def test_a_round_leaves_at_most_one_batch_unfilled():
    mixture = data.Mixture(
        [random_pairs(500, 0)], [1.0], tokens_per_batch=512, num_buckets=6, round_size=500
    )
    assert len(mixture.buckets) == 6
    assert sum(len(rows) < bucket.batch for bucket, rows in mixture._plan(0)) <= 1


def test_rates_set_the_shares():
    few, many = random_pairs(10, 0), random_pairs(500, 1)
    mixture = data.Mixture([few, many], [3, 1], tokens_per_batch=512, round_size=400)
    firsts = np.concatenate([rows[:, 0] for _, rows in mixture._plan(0)])
    assert (firsts == 0).sum() == 300 and (firsts == 1).sum() == 100
    counts = np.bincount(np.concatenate([r[r[:, 0] == 0, 1] for _, r in mixture._plan(0)]))
    assert (counts == 30).all()  # a small task's examples repeat evenly
    with pytest.raises(ValueError, match="positive rate"):
        data.Mixture([few, many], [1, 0])
    with pytest.raises(ValueError, match="at least one pair"):
        data.Mixture([few, data.Pairs(data.ragged([]), data.ragged([]))], [1, 1])


def test_examples_longer_than_the_first_round_drew_still_fit():
    pairs = data.Pairs(
        data.ragged([[3, 1]] * 200 + [[4] * 50 + [1]]),
        data.ragged([[3, 1]] * 200 + [[4] * 60 + [1]]),
    )
    for seed in range(3):
        mixture = data.Mixture([pairs], [1.0], seed=seed, tokens_per_batch=64, round_size=8)
        batches = [mixture.batch(s) for s in range(80)]
        assert any((b.targets == 4).any() for b in batches)


def test_padding_fraction_is_that_of_the_batches():
    mixture = data.Mixture([random_pairs(300, 0)], [1.0], tokens_per_batch=512, round_size=300)
    batches = [mixture.batch(s) for s in range(len(mixture._plan(0)))]
    used = sum(b.num_tokens for b in batches)
    slots = sum(b.inputs.size + b.targets.size for b in batches)
    assert mixture.padding_fraction() == pytest.approx(1 - used / slots)


def test_eval_batches_show_each_pair_once_in_the_same_shapes():
    pairs = random_pairs(70, 0)
    mixture = data.Mixture([pairs], [1.0], tokens_per_batch=256, num_buckets=4)
    batches = list(data.eval_batches(pairs, mixture.buckets))
    np.testing.assert_array_equal(seen(batches), 3 + np.arange(70))
    shapes = {(b.batch, b.source, b.target) for b in mixture.buckets}
    assert {(*b.inputs.shape, b.targets.shape[1]) for b in batches} <= shapes
    assert len(list(data.eval_batches(pairs, mixture.buckets, max_batches=3))) == 3


def test_validation_may_be_longer_than_training():
    short, long = random_pairs(70, 0, longest=20), random_pairs(30, 1, longest=60)
    mixture = data.Mixture([short], [1.0], tokens_per_batch=256, num_buckets=2)
    batches = list(data.eval_batches(long, mixture.buckets))
    np.testing.assert_array_equal(seen(batches), 3 + np.arange(30))
    known = {(b.batch, b.source, b.target) for b in mixture.buckets}
    assert len({(*b.inputs.shape, b.targets.shape[1]) for b in batches} - known) == 1
