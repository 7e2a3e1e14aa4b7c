"""A teacher's work: what it writes, its probabilities, and their cache on disk."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import data, teacher, teacher_cache
from specdec_jax.decoding import autoregressive_decode
from specdec_jax.errors import UserError
from specdec_jax.sampling import Sampling
from specdec_jax.train_step import shift_right
from specdec_jax.training_setup import locked
from tests.conftest import tiny_t5

V = 40


@pytest.fixture(scope="module")
def network():
    return teacher.Network(*tiny_t5(0), "weights")


@functools.cache
def pairs(count=13):
    rng = np.random.default_rng(0)

    def side(low, high):
        rows = [rng.integers(2, V, rng.integers(low, high)).tolist() + [1] for _ in range(count)]
        return data.ragged(rows)

    return data.Pairs(side(3, 12), side(1, 9))


def test_what_is_written_is_the_decodes_and_in_the_order_of_the_sources(network):
    sources, keys = pairs().sources, jax.random.split(jax.random.key(1), 13)
    for temperature in (0.0, 1.0):
        written = teacher.write(
            network, sources, keys, temperature=temperature, max_target=6, batch_size=8
        )
        for i in (0, 5, 12):
            inputs = np.zeros((8, 16), np.int32)
            inputs[:, : len(sources[i])] = sources[i]
            alone = autoregressive_decode(
                network.model, network.params, jnp.asarray(inputs),
                jnp.repeat(keys[i][None], 8), max_new_tokens=6, sampling=Sampling(temperature),
            )  # fmt: skip
            assert written[i].tolist() == alone.tokens[0, : alone.lengths[0]].tolist()


@pytest.mark.parametrize("k", [5, V, 3 * V])
def test_scores_are_the_likeliest_of_the_teacher_forced_distribution(network, k):
    some = pairs()
    found = teacher.score(network, some, k, batch_size=8)

    @jax.jit
    def distribution(inputs, targets):
        model, params = network.model.module, network.params
        return jax.nn.softmax(model.apply({"params": params}, inputs, shift_right(targets)))

    assert found.probs.shape == (len(some.targets.tokens), min(k, V))
    for i in (0, 12):
        p = np.asarray(distribution(*(jnp.asarray(side[i])[None] for side in some))[0])
        at = slice(*some.targets.offsets[i : i + 2])
        if k >= V:
            assert found.ids.shape[1] == 0 and not found.rest.any()
            np.testing.assert_allclose(found.probs[at], p, atol=1e-3)
            continue
        best = np.sort(p, axis=-1)[:, ::-1][:, :k]
        np.testing.assert_allclose(found.probs[at], best, atol=1e-3)
        named = np.take_along_axis(p, found.ids[at].astype(int), -1)
        np.testing.assert_allclose(found.probs[at], named, atol=1e-3)
        np.testing.assert_allclose(found.rest[at], 1 - best.sum(-1), atol=1e-3)


def work(network, directory, **changes):
    settings = {"temperature": 1.0, "max_target": 6, "seed": 0, "shard_size": 4, "batch_size": 8}
    return teacher.Work(network, str(directory), **(settings | changes))


def same(a, b):
    for i in range(len(a.pairs.sources)):
        for x, y in zip(a.pairs, b.pairs, strict=True):
            np.testing.assert_array_equal(x[i], y[i])
        for x, y in zip(a.teacher(i), b.teacher(i), strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_killed_build_goes_on_behind_its_last_whole_shard(network, tmp_path, monkeypatch):
    whole = work(network, tmp_path / "whole").of("a", "train", "target", pairs(), None, 5)
    broken, calls = work(network, tmp_path / "broken"), []

    def score(*arguments, **settings):
        calls.append(len(arguments[1].targets))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **settings)

    original = teacher.score
    monkeypatch.setattr(teacher, "score", score)
    with pytest.raises(KeyboardInterrupt):
        broken.of("a", "train", "target", pairs(), None, 5)
    place = tmp_path / "broken" / "a-train-target"
    assert sorted(p.name for p in place.iterdir()) == ["00000", "00001", "meta.json"]
    same(whole, broken.of("a", "train", "target", pairs(), None, 5))
    assert calls == [4, 4, 4, 4, 1]
    # All is there: the teacher has nothing to do, whether the same is asked for, or less.
    same(broken.of("a", "train", "target", pairs(), 6, 5), whole)
    assert len(calls) == 5


def test_greedy_work_is_at_temperature_0_and_validation_at_1(network, tmp_path):
    hot, cold = work(network, tmp_path / "a"), work(network, tmp_path / "b", temperature=0.0)
    greedy = hot.of("a", "train", "greedy", pairs(), None, 5)
    same(greedy, cold.of("a", "train", "target", pairs(), None, 5))
    sampled = cold.of("a", "validation", "target", pairs(), 4, 5)
    same(sampled, hot.of("a", "train", "target", pairs(), 4, 5))
    assert sampled.pairs.targets.tokens.tolist() != greedy.head(4).pairs.targets.tokens.tolist()


def test_more_examples_go_on_with_a_smaller_cache(network, tmp_path):
    whole = work(network, tmp_path / "whole").of("a", "train", "references", pairs(), None, 5)
    one = work(network, tmp_path / "grown")
    few = one.of("a", "train", "references", pairs(), 5, 5)
    assert len(few.pairs.sources) == 5
    same(few, whole)
    same(one.of("a", "train", "references", pairs(), None, 5), whole)


def test_examples_are_chosen_at_random_each_once(network, tmp_path):
    made = work(network, tmp_path).of("a", "train", "references", pairs(), None, 5).pairs
    found = sorted((a.tolist(), b.tolist()) for a, b in zip(made[0], made[1], strict=True))
    known = [(pairs()[0][i].tolist(), pairs()[1][i].tolist()) for i in range(13)]
    assert found == sorted(known)
    assert [made[0][i].tolist() for i in range(13)] != [s for s, _ in known]


def test_another_teachers_work_or_settings_are_refused(network, tmp_path):
    one = work(network, tmp_path)
    one.of("a", "train", "target", pairs(), 4, 5)
    for changed, k, what in (
        (work(network._replace(fingerprint="other"), tmp_path), 5, "target"),
        (work(network, tmp_path, temperature=0.5), 5, "temperature"),
        (work(network, tmp_path, shard_size=3), 5, "shard_size"),
        (one, 6, "top_k"),
    ):
        with pytest.raises(ValueError, match=f"made with another {what}: remove it, or") as error:
            changed.of("a", "train", "target", pairs(), 4, k)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="made with another data: remove it"):
        one.of("a", "train", "target", pairs(7), 4, 5)


def test_a_damaged_shard_is_named_with_what_to_do(network, tmp_path):
    one = work(network, tmp_path)
    one.of("a", "train", "references", pairs(), None, 5)
    shard = tmp_path / "a-train-references" / "00001"
    (shard / "probs.npy").write_bytes(b"")
    with pytest.raises(ValueError, match="00001 is damaged: remove it to make it again"):
        one.of("a", "train", "references", pairs(), None, 5)
    shutil.rmtree(shard)
    one.of("a", "train", "references", pairs(), None, 5)


def test_the_teachers_arrays_stay_on_disk(network, tmp_path):
    scored = work(network, tmp_path).of("a", "train", "references", pairs(), None, 5)
    assert all(isinstance(a, np.memmap) for shard in scored.teachers for a in shard)
    reread = teacher_cache.read([str(tmp_path / "a-train-references" / "00002")])
    np.testing.assert_array_equal(reread.teacher(1).probs, scored.teacher(9).probs)


def test_two_processes_do_not_share_the_work(network, tmp_path):
    with locked(str(tmp_path)), pytest.raises(UserError, match="Another process runs the teacher"):
        work(network, tmp_path).of("a", "train", "references", pairs(), None, 5)
