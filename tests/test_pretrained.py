"""Pairs by name and by directory."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import pytest

from specdec_jax import EarlyExitDrafter, LookupDrafter, ModelDrafter, pretrained
from specdec_jax.checkpoints import save_params
from specdec_jax.t5 import T5
from tests.tiny_pair import CONFIG, save_pair, tiny_pair


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A package that ships two pairs."""
    monkeypatch.setattr(pretrained, "ASSETS", tmp_path)
    for name in ("debian", "debris"):
        shutil.copytree(tiny_pair(), tmp_path / name)
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_a_pair_by_name(shipped):
    assert pretrained.available() == ["debian", "debris"]
    pair = pretrained.load("debian")
    assert pair.target.config == CONFIG
    assert pair.vocabulary.size == CONFIG.vocab_size
    assert pair.card.startswith("# A random pair")
    assert pair.name == "debian"


def test_a_pair_by_directory():
    pair = pretrained.load(tiny_pair())
    leaves = jax.tree.map(lambda a, b: bool((a == b).all()), pair.target_params, pair.draft_params)
    assert not all(jax.tree.leaves(leaves)), "target and draft are not the same"


def test_a_name_that_is_nearly_right(shipped):
    with pytest.raises(FileNotFoundError, match=r"'debain'; did you mean debian"):
        pretrained.load("debain")


def test_a_name_that_is_nothing_like_it(shipped):
    with pytest.raises(FileNotFoundError, match="'zzzz'; did you mean debian or debris"):
        pretrained.load("zzzz")


def test_a_package_without_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "ASSETS", tmp_path)
    assert pretrained.available() == []
    with pytest.raises(FileNotFoundError, match="none ships"):
        pretrained.load("debian")


def test_a_directory_that_holds_no_pair(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no pair: it needs target/, draft/"):
        pretrained.load(tmp_path)


def test_a_pair_without_its_vocabulary(tmp_path):
    shutil.copytree(tiny_pair(), tmp_path, dirs_exist_ok=True)
    (tmp_path / "spiece.model").unlink()
    with pytest.raises(FileNotFoundError, match=r"spiece\.model"):
        pretrained.load(tmp_path)


def test_a_vocabulary_of_another_model(tmp_path):
    shutil.copytree(tiny_pair(), tmp_path, dirs_exist_ok=True)
    pair = pretrained.load(tmp_path)
    assert pair.vocabulary.size == 80
    small = type(CONFIG)(**{**CONFIG.__dict__, "vocab_size": 60})
    from specdec_jax.checkpoints import load_params, save_params

    _, params = load_params(tmp_path / "draft")
    params = {**params, "token_embedder": {"embedding": params["token_embedder"]["embedding"][:60]}}
    kernel = params["decoder"]["logits_dense"]["kernel"][:, :60]
    params["decoder"] = {**params["decoder"], "logits_dense": {"kernel": kernel}}
    save_params(tmp_path / "draft", small, params)
    with pytest.raises(ValueError, match="80 pieces, a model of it only 60"):
        pretrained.load(tmp_path)


def test_another_draft(tmp_path):
    other = save_pair(tmp_path / "other", noise=0.0)
    pair, own = pretrained.load(tiny_pair(), draft=other), pretrained.load(tiny_pair())
    equal = jax.tree.map(lambda a, b: bool((a == b).all()), pair.draft_params, own.target_params)
    assert all(jax.tree.leaves(equal)), "a draft without noise is the target"
    weights = pretrained.load(tiny_pair(), draft=other / "draft")
    equal = jax.tree.map(lambda a, b: bool((a == b).all()), pair.draft_params, weights.draft_params)
    assert all(jax.tree.leaves(equal))
    with pytest.raises(FileNotFoundError, match="no directory 'nowhere'"):
        pretrained.load(tiny_pair(), draft="nowhere")


def test_a_pair_without_a_card(tmp_path):
    shutil.copytree(tiny_pair(), tmp_path, dirs_exist_ok=True)
    (tmp_path / "MODEL_CARD.md").unlink()
    assert pretrained.load(tmp_path).card == ""


def test_the_held_out_sentences(tmp_path):
    rows = pretrained.held_out()
    assert len(rows) >= 50
    assert {"restore", "ende", "synopsis"} == {row["task"] for row in rows}
    (tmp_path / "own.jsonl").write_text(json.dumps({"task": "ende", "inputs": "x\u2028y"}) + "\n\n")
    assert pretrained.held_out(tmp_path / "own.jsonl") == [{"task": "ende", "inputs": "x\u2028y"}]


def test_a_fingerprint_is_of_what_the_files_hold(tmp_path):
    for name in ("one", "two"):
        shutil.copytree(tiny_pair(), tmp_path / name)
    first = pretrained.fingerprint(tmp_path / "one")
    assert first == pretrained.fingerprint(tmp_path / "two") != ""
    config = tmp_path / "two" / "draft" / "config.json"
    config.write_text(config.read_text() + " ")
    second = pretrained.fingerprint(tmp_path / "two")
    assert second == pretrained.fingerprint(tmp_path / "one", draft=tmp_path / "two") != first
    (tmp_path / "two" / "spiece.model").write_bytes(b"")
    assert pretrained.fingerprint(tmp_path / "two") not in (first, second)
    assert pretrained.fingerprint(tmp_path / "none") == ""


@pytest.mark.parametrize(
    ("draft", "kind"),
    [
        ("model", ModelDrafter), ("unigram", ModelDrafter), ("bigram", ModelDrafter),
        ("trigram", ModelDrafter), ("lookup", LookupDrafter), ("lookup+model", LookupDrafter),
        ("lookup+bigram", LookupDrafter),
    ],
)  # fmt: skip
def test_drafts_by_name(draft, kind):
    pair = pretrained.load(tiny_pair(), draft=draft)
    assert isinstance(pair.drafter, kind)
    if draft.startswith("lookup+"):
        alone = pretrained.load(tiny_pair(), draft=draft.removeprefix("lookup+"))
        assert pair.drafter.fallback == alone.drafter
    if draft.endswith("gram") and kind is ModelDrafter:
        assert pair.drafter.model.order == ["unigram", "bigram", "trigram"].index(draft) + 1


def test_early_exit_takes_the_targets_own_parameters(tmp_path):
    config = dataclasses.replace(CONFIG, num_decoder_layers=3)
    shutil.copytree(tiny_pair(), tmp_path / "pair")
    tokens = jnp.ones((1, 1), jnp.int32)
    params = T5(config).init(jax.random.key(0), tokens, tokens)["params"]
    save_params(tmp_path / "pair" / "target", config, params)
    pair = pretrained.load(tmp_path / "pair", draft="early_exit:2")
    assert pair.drafter == EarlyExitDrafter(pair.target, 2)
    assert pair.draft_params is pair.target_params


def test_an_ngram_table_by_its_directory():
    pair = pretrained.load(tiny_pair(), draft=tiny_pair() / "ngram")
    assert pair.drafter.model.order == 3


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ("early_exit", "such as early_exit:2"),
        ("early_exit:x", "such as early_exit:2"),
        ("early_exit:1", "1 to 0 of the target's 1 decoder layers"),
        ("lookup+lookup", r"such as lookup\+bigram"),
        ("lookup+none", "A draft is model"),
        ("bigramm", "A draft is model"),
    ],
)
def test_drafts_that_there_are_not(draft, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pretrained.load(tiny_pair(), draft=draft)


def test_a_pair_without_a_table_says_how_to_make_one(tmp_path):
    shutil.copytree(tiny_pair(), tmp_path / "pair")
    shutil.rmtree(tmp_path / "pair" / "ngram")
    with pytest.raises(FileNotFoundError, match="train_ngram"):
        pretrained.load(tmp_path / "pair", draft="bigram")


def test_the_shipped_table_is_the_shipped_vocabularys():
    pair = pretrained.load("debian", draft="trigram")
    assert pair.drafter.model.order == 3
    assert pair.drafter.vocab_size == pair.target.vocab_size


def test_a_fingerprint_is_of_the_draft_that_is_used(tmp_path):
    shutil.copytree(tiny_pair(), tmp_path / "pair")
    names = ("model", "bigram", "lookup", "lookup+bigram", "early_exit:1")
    before = {name: pretrained.fingerprint(tmp_path / "pair", draft=name) for name in names}
    assert before["model"] == pretrained.fingerprint(tmp_path / "pair")
    config = tmp_path / "pair" / "ngram" / "config.json"
    config.write_text(config.read_text() + " ")
    after = {name: pretrained.fingerprint(tmp_path / "pair", draft=name) for name in names}
    changed = {name for name in names if before[name] != after[name]}
    assert changed == {"bigram", "lookup+bigram"}
