"""`specdec convert`: any checkpoint in, a directory that `--model` takes out."""

import json
import os
import shutil

import jax
import numpy as np

from specdec_jax import conversion, pretrained
from specdec_jax.checkpoints import load_params, save_params
from specdec_jax.main import run

from .conftest import DATA
from .t5x_format import write_legacy
from .tiny_pair import CONFIG, random_params, save_vocabulary, tiny_pair


def same(a, b):
    return jax.tree.all(jax.tree.map(np.array_equal, a, b))


def test_hugging_face_becomes_ours(tmp_path, capsys):
    output = tmp_path / "pairs" / "tiny"
    assert run(["convert", str(DATA / "hf_t5_1_1"), str(output)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "Hugging Face, T5 1.1, 1 + 2 layers of 8, 24 ids, 2,416 parameters." in said[0]
    assert "float32" in said[1] and "without a vocabulary." in said[1] and len(said) == 2
    converted, original = load_params(output), load_params(DATA / "hf_t5_1_1")
    assert converted[0] == original[0] and same(converted[1], original[1])
    assert json.loads((output / "config.json").read_text())["mlp_activations"] == ["gelu", "linear"]


def test_converted_halves_make_a_pair(tmp_path, capsys):
    """Target and draft of T5X's format, with a vocabulary given or beside the weights."""
    vocabulary = tmp_path / "any.name"
    save_vocabulary(vocabulary)
    pair = tmp_path / "pair"
    for seed, name in enumerate(["target", "draft"]):
        source = write_legacy(tmp_path / name / "checkpoint_1", random_params(seed))
        flags = ["--dtype=bfloat16"]
        if name == "target":
            flags.append(f"--vocabulary={vocabulary}")
        else:
            shutil.copy(vocabulary, source / "spiece.model")
        assert run(["convert", str(source), str(pair / name), *flags]) == 0
    assert "with spiece.model." in capsys.readouterr().out
    assert sorted(os.listdir(pair / "target")) == ["config.json", "params", "spiece.model"]
    loaded = pretrained.load(pair)
    assert loaded.target.config == CONFIG
    assert loaded.vocabulary.path == str(pair / "target" / "spiece.model")
    before = pretrained.fingerprint(pair)
    assert len(before) == 64
    assert run(["generate", "A package", f"--model={pair}", "--max_new_tokens=4"]) == 0

    shutil.copy(tiny_pair() / "spiece.model", pair / "spiece.model")
    assert pretrained.load(pair).vocabulary.path == str(pair / "spiece.model")


def test_a_config_says_what_shapes_do_not(tmp_path):
    source = write_legacy(tmp_path / "checkpoint_1", random_params(0))
    config = tmp_path / "silu.json"
    sizes = dict(vocab_size=80, d_model=16, num_heads=2, num_layers=1, d_kv=8, d_ff=32)
    fields = {"model_type": "t5", "feed_forward_proj": "gated-silu", "tie_word_embeddings": False}
    config.write_text(json.dumps({**sizes, **fields}))
    assert run(["convert", str(source), str(tmp_path / "out"), f"--config={config}"]) == 0
    assert load_params(tmp_path / "out")[0].mlp_activations == ("silu", "linear")


def test_what_is_there_stays_unless_told(tmp_path, capsys):
    source, output = str(DATA / "hf_t5_1_0"), tmp_path / "out"
    save_params(output, CONFIG, random_params(0))
    assert run(["convert", source, str(output)]) == 1
    assert "is there already: choose another, or give --overwrite." in capsys.readouterr().err
    assert load_params(output)[0] == CONFIG
    assert run(["convert", source, str(output), "--overwrite"]) == 0
    assert load_params(output)[0] == load_params(source)[0]

    mine = tmp_path / "thesis"
    mine.mkdir()
    (mine / "chapter.txt").touch()
    for place in (mine, mine / "chapter.txt"):
        assert run(["convert", source, str(place), "--overwrite"]) == 1
        assert "holds no weights of specdec_jax: choose another." in capsys.readouterr().err
    assert os.listdir(mine) == ["chapter.txt"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run(["convert", source, str(empty)]) == 0


def test_a_failure_leaves_nothing(tmp_path, capsys, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(conversion, "save_params", fail)
    assert run(["convert", str(DATA / "hf_mt5"), str(tmp_path / "out")]) == 1
    assert "disk full" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_mistakes_are_one_sentence(tmp_path, capsys):
    source, output = str(DATA / "hf_t5_1_0"), str(tmp_path / "out")
    save_vocabulary(tmp_path / "large.model")
    (tmp_path / "bad.json").write_text('{"vocab_size": 3, "colour": 1}')
    for arguments, code, message in (
        ([str(tmp_path / "absent"), output], 1, "No checkpoint at"),
        ([str(tmp_path), output], 1, "is no checkpoint: expected config.json and params/"),
        ([source], 2, "required: OUTPUT"),
        ([source, output, "--dtype=int8"], 2, "invalid choice"),
        ([source, output, f"--config={tmp_path}/bad.json"], 1, "does not hold a config's"),
        ([source, output, f"--config={tmp_path}/no.json"], 1, "No such file"),
        ([source, output, f"--vocabulary={tmp_path}/large.model"], 1, "has 80 pieces, the model"),
        ([source, output, f"--vocabulary={tmp_path}/no.model"], 1, "No SentencePiece model at"),
    ):
        assert run(["convert", *arguments]) == code
        said = capsys.readouterr()
        assert message in said.err and said.err.count("\n") == 1, said.err
        assert not os.path.exists(output)
