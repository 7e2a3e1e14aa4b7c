"""Weight directories: exact round trips, and errors that say what was expected."""

import dataclasses
import json
import os
import stat
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_jax import checkpoints, replacing
from specdec_jax.t5 import T5, T5Config

CONFIG = T5Config(
    vocab_size=32, emb_dim=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=2,
    head_dim=4, mlp_dim=12,
)  # fmt: skip


@pytest.fixture(scope="module")
def params():
    tokens = jnp.zeros((1, 1), jnp.int32)
    return T5(CONFIG).init(jax.random.key(0), tokens, tokens)["params"]


def same(a, b):
    return jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), a, b))


def test_round_trip_is_exact(tmp_path, params):
    path = tmp_path / "deep" / "weights"
    checkpoints.save_params(path, CONFIG, params, extra={"step": 7})
    config, loaded = checkpoints.load_params(path)
    assert config == CONFIG and isinstance(config.mlp_activations, tuple)
    assert same(params, loaded)
    assert {x.dtype for x in jax.tree.leaves(loaded)} == {jnp.dtype("float32")}
    fields = json.loads((path / "config.json").read_text())
    assert fields["emb_dim"] == 8 and fields["about"] == {"step": 7}


def test_bfloat16_storage(tmp_path, params):
    checkpoints.save_params(tmp_path / "half", CONFIG, params, dtype="bfloat16")
    checkpoints.save_params(tmp_path / "full", CONFIG, params)
    _, kept = checkpoints.load_params(tmp_path / "half", dtype=None)
    _, widened = checkpoints.load_params(tmp_path / "half")
    assert {x.dtype for x in jax.tree.leaves(kept)} == {jnp.dtype("bfloat16")}
    assert {x.dtype for x in jax.tree.leaves(widened)} == {jnp.dtype("float32")}
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), params)
    assert same(rounded, widened)


def test_saving_replaces_and_leaves_nothing_beside(tmp_path, params):
    path = tmp_path / "weights"
    checkpoints.save_params(path, CONFIG, params)
    doubled = jax.tree.map(lambda x: 2 * x, params)
    checkpoints.save_params(path, CONFIG, doubled)
    assert same(checkpoints.load_params(path)[1], doubled)
    assert os.listdir(tmp_path) == ["weights"]


def test_a_failed_save_keeps_the_old_weights(tmp_path, params, monkeypatch):
    path = tmp_path / "weights"
    checkpoints.save_params(path, CONFIG, params)

    write_text = Path.write_text

    def fail(path, *args, **kwargs):
        if path.name == "config.json":
            raise OSError("disk full")
        return write_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="disk full"):
        checkpoints.save_params(path, CONFIG, jax.tree.map(lambda x: 2 * x, params))
    assert same(checkpoints.load_params(path)[1], params)
    assert os.listdir(tmp_path) == ["weights"]


def test_a_failed_rename_keeps_the_old_weights(tmp_path, params, monkeypatch):
    path = tmp_path / "weights"
    checkpoints.save_params(path, CONFIG, params)
    rename = os.rename

    def fail(source, target):
        if str(source).endswith(".partial") and str(target) == str(path):
            raise OSError("not now")
        rename(source, target)

    monkeypatch.setattr(checkpoints.os, "rename", fail)
    with pytest.raises(OSError, match="not now"):
        checkpoints.save_params(path, CONFIG, params)
    assert os.listdir(tmp_path) == ["weights"]


def test_cut_weights_are_one_sentence(tmp_path):
    path = tmp_path / "weights"
    wide = dataclasses.replace(CONFIG, vocab_size=2048)  # small ones are stored with the index
    rng = np.random.default_rng(0)
    shapes = checkpoints.expected_params(wide)
    checkpoints.save_params(path, wide, jax.tree.map(lambda x: rng.normal(size=x.shape), shapes))
    files = [file for file in (path / "params").rglob("d/*") if file.is_file()]
    largest = max(files, key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    with pytest.raises(
        ValueError,
        match=r"weights/params' is damaged or incomplete: (decoder|token_embedder)/.*\.$",
    ):
        checkpoints.load_params(path)


def test_tidy_clears_up_after_a_kill(tmp_path, params):
    path = tmp_path / "best"
    checkpoints.save_params(path, CONFIG, params)
    (tmp_path / ".best.abc.partial").mkdir()
    (tmp_path / ".other.abc.partial").mkdir()
    replacing.tidy(path)
    assert sorted(os.listdir(tmp_path)) == [".other.abc.partial", "best"]
    path.rename(tmp_path / ".best.abc.partial.old")  # killed between the two renames
    (tmp_path / ".best.abc.partial").mkdir()
    replacing.tidy(path)
    assert sorted(os.listdir(tmp_path)) == [".other.abc.partial", "best"]
    assert same(checkpoints.load_params(path)[1], params)


def test_reading_writes_nothing(tmp_path, params):
    path = tmp_path / "weights"
    checkpoints.save_params(path, CONFIG, params)

    def snapshot():
        return {
            os.path.join(d, f): os.stat(os.path.join(d, f)).st_mtime_ns
            for d, dirs, files in os.walk(path)
            for f in [*dirs, *files]
        }

    before = snapshot()
    directories = [path, *(p for p in path.rglob("*") if p.is_dir())]
    try:
        for directory in directories:
            directory.chmod(stat.S_IRUSR | stat.S_IXUSR)
        assert same(checkpoints.load_params(path)[1], params)
    finally:
        for directory in directories:
            directory.chmod(stat.S_IRWXU)
    assert snapshot() == before


def test_errors_name_what_is_wrong(tmp_path, params):
    with pytest.raises(FileNotFoundError, match="No checkpoint at"):
        checkpoints.load_params(tmp_path / "absent")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.bin").touch()
    with pytest.raises(
        FileNotFoundError, match=r"is no checkpoint: expected config.json.*model.bin"
    ):
        checkpoints.load_params(tmp_path / "other")

    path = tmp_path / "weights"
    checkpoints.save_params(path, CONFIG, params)
    config_file = path / "config.json"
    for text in ("{", "[]", '{"vocab_size": 3, "colour": 1}'):
        config_file.write_text(text)
        with pytest.raises(ValueError, match="config.json' does not hold a config's fields"):
            checkpoints.load_params(path)

    deeper = dataclasses.asdict(dataclasses.replace(CONFIG, num_decoder_layers=3, mlp_dim=16))
    config_file.write_text(json.dumps(deeper))
    with pytest.raises(ValueError, match="lack decoder/layers_2/") as error:
        checkpoints.load_params(path)
    assert "lack decoder/layers_2/" in str(error.value)
    assert "mlp/wi_0/kernel is (8, 12), expected (8, 16)" in str(error.value)
    assert "and 4 more" in str(error.value)

    config_file.write_text(json.dumps(dataclasses.asdict(CONFIG)))
    (path / "params" / "manifest.ocdbt").unlink()
    with pytest.raises(ValueError, match="not readable as an Orbax checkpoint"):
        checkpoints.load_params(path)


def test_parameters_that_do_not_fit_are_not_saved(tmp_path, params):
    odd = {**params, "novel": {"kernel": np.ones(3)}}
    with pytest.raises(ValueError, match="have unknown novel/kernel"):
        checkpoints.save_params(tmp_path / "weights", CONFIG, odd)
    assert os.listdir(tmp_path) == []


def test_nothing_written_names_where_it_was_written(tmp_path, params):
    checkpoints.save_params(tmp_path / "model", CONFIG, params)
    files = [path for path in (tmp_path / "model").rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if os.fsencode(tmp_path) in path.read_bytes()]
