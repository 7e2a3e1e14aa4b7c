"""Pairs of language models: trained on lines of text, on disk, and generating."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from specdec_jax import checkpoints, conversion, data, gin_jobs, pretrained, train
from specdec_jax.errors import UserError
from specdec_jax.generate import Settings, generate
from specdec_jax.lm import LMConfig
from specdec_jax.model import LMModel
from specdec_jax.optimization import Optimizer, Schedule
from specdec_jax.t5 import T5Config
from tests.tiny_pair import TEXT, save_vocabulary

CONFIG = LMConfig(vocab_size=80, emb_dim=16, num_heads=2, num_layers=1, head_dim=8, mlp_dim=32)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines of text, a tab among them, and a vocabulary."""
    path = tmp_path_factory.mktemp("text")
    for split in ("train", "validation"):
        (path / f"lines-{split}.txt").write_text("\n".join(TEXT * 12) + "\na\tb\n", "utf-8")
    save_vocabulary(path / "spiece.model")
    return path


def _train(run: Path, text: Path, seed: int, steps: int) -> train.TrainResult:
    return train.train(
        str(run),
        model=CONFIG,
        tasks=[data.Task("lines", "", str(text), file="{name}-{split}.txt", source=False)],
        vocabulary_path=str(text / "spiece.model"),
        optimizer=Optimizer("adamw", learning_rate=2e-2),
        schedule=Schedule(total_steps=steps, warmup_steps=3),
        seed=seed,
        tokens_per_batch=1024,
        num_buckets=1,
        max_target=80,
        round_size=64,
        eval_every=1000,
        eval_batches=1,
        log_every=100,
        save_every=1000,
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """A trained target; a trained draft, and an untrained one."""
    path = tmp_path_factory.mktemp("pair")
    trained = {"target": (0, 60), "draft": (1, 60), "untrained": (2, 1)}
    for name, (seed, steps) in trained.items():
        result = _train(path / f"run_{name}", text, seed, steps)
        assert result.finished
        shutil.copytree(path / f"run_{name}" / "last", path / name)
    shutil.copy(text / "spiece.model", path / "spiece.model")
    return path


def _run(pair: Path, draft: str | None) -> tuple[list[str], float]:
    settings = Settings(prefix="", gamma=3, max_new_tokens=16, batch_size=4)
    loaded = pretrained.load(pair, draft=draft)
    assert isinstance(loaded.target, LMModel)
    rows = [row for batch in generate(loaded, [t[:15] for t in TEXT], settings) for row in batch]
    examined, accepted = sum(r.examined for r in rows), sum(r.accepted for r in rows)
    return [row.prediction for row in rows], accepted / examined


@pytest.mark.slow
def test_a_trained_draft_guesses_better_than_an_untrained_one(pair: Path) -> None:
    predictions, alpha = _run(pair, None)
    same, chance = _run(pair, str(pair / "untrained"))
    assert predictions == same and any(predictions)
    assert alpha > 2 * chance and alpha > 0.2


@pytest.mark.slow
def test_training_without_sources_learns(pair: Path) -> None:
    lines = (pair / "run_target" / "metrics.jsonl").read_text().splitlines()
    losses = [x for line in lines for x in json.loads(line).get("losses", [])]
    assert losses[-1] < losses[0] - 1.0


def test_lines_of_text_are_targets_without_a_source(text: Path) -> None:
    sources, targets = data.read_pairs(str(text / "lines-train.txt"), source=False)
    assert set(sources) == {""} and targets[0] == TEXT[0] and targets[-1] == "a\tb"


@pytest.mark.slow
def test_early_exit_is_refused(pair: Path) -> None:
    with pytest.raises(ValueError, match="Early exit needs a T5 as target"):
        pretrained.load(pair, draft="early_exit:1")


@pytest.mark.slow
def test_a_config_on_disk_says_its_kind(pair: Path, tmp_path: Path) -> None:
    fields = json.loads((pair / "target" / "config.json").read_text())
    assert fields["kind"] == "lm"
    config, params = checkpoints.load_params(pair / "target")
    assert config == CONFIG
    assert conversion.describe(config) == "a language model, 1 layers of 16, 80 ids"
    checkpoints.save_params(tmp_path / "again", config, params, dtype="bfloat16")
    assert checkpoints.load_config(tmp_path / "again") == CONFIG

    file = tmp_path / "config.json"
    file.write_text(json.dumps({"vocab_size": 8}))
    assert checkpoints.parse_config(file) == T5Config(8)
    file.write_text(json.dumps({"vocab_size": 8, "kind": "rnn"}))
    with pytest.raises(ValueError, match="there is no kind 'rnn'"):
        checkpoints.parse_config(file)


@pytest.mark.parametrize(("name", "parameters"), [("97m", 97_242_240), ("6m", 6_063_360)])
def test_the_sizes_of_table_3(name: str, parameters: int) -> None:
    file = f"models/lm_gpt_{name}.gin"
    flags = gin_jobs.GinFlags((file,), (), ())
    gin_jobs.configure(flags, reads=("MODEL",))
    import gin

    config: Any = gin.query_parameter("%MODEL").scoped_configurable_fn()
    shapes = jax.tree.leaves(checkpoints.expected_params(config))
    assert sum(int(np.prod(x.shape)) for x in shapes) == parameters


def test_a_plan_refuses_a_language_model() -> None:
    with pytest.raises(UserError, match="is no T5: plans are for encoder-decoders alone"):
        gin_jobs.model_config("lm_gpt_6m")
