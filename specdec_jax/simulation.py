"""Real sizes without real weights: random parameters, and guesses accepted at a given rate.

Everything that takes time is done as in a real decode, the draft's calls, the target's, the
sampling and the test of every guess; only whether a guess stands is drawn, with probability
alpha. That measures the walltime side of section 3 where no weights or data are at hand. It
says nothing of what alpha a draft would have, and what it writes is noise.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from jax import Array

from specdec_jax import baselines, measuring
from specdec_jax.benchmark_table import BenchmarkRow
from specdec_jax.checkpoints import expected_params
from specdec_jax.costs import Decoders, measure_costs
from specdec_jax.decoding import autoregressive_decode, speculative_decode
from specdec_jax.drafters.model import ModelDrafter
from specdec_jax.findings import Finding
from specdec_jax.generate import Batch
from specdec_jax.gin_jobs import model_config
from specdec_jax.model import T5Model, t5_model
from specdec_jax.paper_figures import TABLE_2, Table2Row
from specdec_jax.record import Record
from specdec_jax.sampling import Sampling, UniformNoise, draw_noise
from specdec_jax.speed_findings import speed_findings
from specdec_jax.terminal import JobProgress
from specdec_jax.types import DecodeResult, Draft, Params, Verdict
from specdec_jax.verification import ExactRule, leading

_NO_EOS = -1  # every row writes all its tokens


@dataclasses.dataclass(frozen=True)
class GivenRule:
    """Accepts each guess with probability alpha, whatever p and q. For timing: not exact.

    It does what `ExactRule` does, and decides otherwise.

    Attributes:
      alpha: in [0, 1].
    """

    alpha: float

    num_drafts = 1
    draw_noise = staticmethod(draw_noise)

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be in [0, 1], not {self.alpha}.")

    def __call__(self, p: Array, draft: Draft, noise: UniformNoise, **rest: Any) -> Verdict:
        """See `VerifyRule`."""
        exact = ExactRule()(p, draft, noise, **rest)
        stands = draft.valid & (noise.test[:, : draft.tokens.shape[1]] < self.alpha)
        return exact._replace(num_accepted=leading(stands))


@dataclasses.dataclass(frozen=True)
class Simulation:
    """The part of a reproduction that measures the paper's rows at sizes of one's own.

    Attributes:
      target: a name or file of gin/models, the target's sizes.
      drafts: of the paper's rows, by their names there, the sizes to measure them with:
        (("small", "t5_1_1_small"), ...).
      input_length: tokens of a source.
      new_tokens: tokens that every row writes.
      batch_size: rows decoded together.
      num_batches: timed batches.
      repeats: timed runs of each, each way; their median counts.
      dtype: of weights and activations.
      seed: of parameters, sources and of which guesses stand.
    """

    target: str
    drafts: Sequence[tuple[str, str]]
    input_length: int = 128
    new_tokens: int = 64
    batch_size: int = 1
    num_batches: int = 2
    repeats: int = 3
    dtype: str = "float32"
    seed: int = 0

    name = "speed"

    def findings(self, run_dir: Path) -> list[Finding]:
        """Table 2's rows of these drafts, measured."""
        asked = [(row, size) for row in TABLE_2 for name, size in self.drafts if name == row.draft]
        record = Record(run_dir / self.name, dataclasses.asdict(self))
        done = {(row.task, row.draft, row.temperature) for row in record.rows}
        models: tuple[str, Decoders] | None = None
        with JobProgress(len(asked)) as progress:
            progress.skip(len(record.rows))
            for row, size in asked:
                if (row.task, row.draft, row.temperature) in done:
                    continue
                if models is None or models[0] != size:  # one draft at a time in memory
                    models = size, self._models(size, models[1] if models else None)
                record.add(self._measure(models[1], row))
                progress.add(rows=1, tokens=0, examined=0, accepted=0)
        record.finish()
        sizes = ", ".join(f"{name} = {size}" for name, size in self.drafts)
        note = (
            f"Random weights, target {self.target}, drafts {sizes}, {self.dtype}, sources of "
            f"{self.input_length} tokens, {self.new_tokens} written; α is the paper's, given to "
            "the decode, so that only the walltime is measured."
        )
        return speed_findings(record.rows, {row.task: row.task for row in record.rows}, note=note)

    def _models(self, draft: str, others: Decoders | None) -> Decoders:
        if others is None:
            return random_pair(self.target, draft, self.dtype, self.seed)
        small, small_params = random_t5(draft, self.dtype, self.seed + 1)
        return others._replace(drafter=ModelDrafter(small), draft_params=small_params)

    def _batches(self, vocab_size: int) -> list[Batch]:
        rows, found = self.batch_size, []
        for number in range(self.num_batches):
            key = jax.random.fold_in(jax.random.key(self.seed), number)
            inputs, keys = random_sources(rows, self.input_length, vocab_size, key)
            found.append(Batch([""] * rows, [True] * rows, inputs, keys))
        return found

    def _measure(self, models: Decoders, row: Table2Row) -> BenchmarkRow:
        settings: dict[str, Any] = {
            "max_new_tokens": self.new_tokens,
            "sampling": Sampling(row.temperature),
            "eos_id": _NO_EOS,
        }
        target, rule = models[:2], GivenRule(row.alpha)

        def speculate(batch: Batch) -> DecodeResult:
            return speculative_decode(
                *models, batch.inputs, batch.keys, gamma=row.gamma, rule=rule, **settings
            )

        def alone(batch: Batch) -> DecodeResult:
            return autoregressive_decode(*target, batch.inputs, batch.keys, **settings)

        ways = {
            measuring.SPECULATIVE: speculate,
            measuring.OURS: alone,
            **baselines.ways(*target, **settings),  # no assisted one: its draft would be noise
        }
        work = self._batches(models.target.vocab_size)
        costs = measure_costs(
            models,
            work[0].inputs,
            work[0].keys,
            gammas=[row.gamma],
            max_new_tokens=self.new_tokens,
            sampling=Sampling(row.temperature),
            repeats=self.repeats,
        )
        return measuring.as_row(
            measuring.race(ways, work, repeats=self.repeats, seed=self.seed),
            costs,
            task=row.task,
            draft=row.draft,
            temperature=row.temperature,
            gamma=row.gamma,
            batch_size=self.batch_size,
            seed=self.seed,
            same_tokens=False,
        )


def random_pair(target: str, draft: str, dtype: str = "float32", seed: int = 0) -> Decoders:
    """A target and a draft of random weights, by the names of their sizes; as `random_t5`."""
    small, small_params = random_t5(draft, dtype, seed + 1)
    return Decoders(*random_t5(target, dtype, seed), ModelDrafter(small), small_params)


def random_sources(
    rows: int, length: int, vocab_size: int, key: Array | None = None
) -> tuple[Array, Array]:
    """Sources without meaning, int32[rows, length], and a key for each, key[rows]."""
    key = jax.random.key(0) if key is None else key
    return jax.random.randint(key, (rows, length), 3, vocab_size), jax.random.split(key, rows)


def random_t5(name: str, dtype: str, seed: int) -> tuple[T5Model, Params]:
    """A T5 of random weights, drawn leaf by leaf in `dtype`: nothing is ever held twice.

    Args:
      name: a file, or the name of one of gin/models.
      dtype: "float32" or "bfloat16".
      seed: of the weights.
    """
    config = dataclasses.replace(model_config(name), dtype=dtype)
    model = t5_model(config)
    leaves, tree = jax.tree.flatten(expected_params(config))
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = [
        # About as large as trained ones: activations stay finite, logits differ.
        (0.02 * jax.random.normal(key, leaf.shape, dtype) + (1.0 if leaf.ndim == 1 else 0.0))
        for key, leaf in zip(keys, leaves, strict=True)
    ]
    return model, model.prepare(jax.tree.unflatten(tree, drawn))
