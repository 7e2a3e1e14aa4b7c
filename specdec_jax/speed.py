"""Measured side by side: the speculative decode and the target alone.

Compilation is never in a time: whatever has not run before runs once untimed. The
draft's own time always is: a speculative decode is timed as a whole.
"""

import dataclasses
import functools
import operator
import statistics
import time
from collections.abc import Callable

import jax
import numpy as np

from specdec_jax.analysis import decode_improvement
from specdec_jax.costs import measure_costs
from specdec_jax.generate import (
    Batch,
    Settings,
    decode,
    decode_plain,
    decoders,
    learn,
    settle,
)
from specdec_jax.pretrained import Pair
from specdec_jax.types import DecodeResult


def timed(decode: Callable[[], DecodeResult]) -> tuple[DecodeResult, float]:
    """Runs a decode to its end -> its result, and the seconds it took."""
    start = time.perf_counter()
    result = jax.block_until_ready(decode())
    return result, time.perf_counter() - start


@dataclasses.dataclass
class Comparison:
    """Decodes batches both ways, interleaved, and keeps what it saw.

    Attributes:
      pair: what decodes.
      settings: how.
      repeats: timed runs of each kind; a batch's time is their median.
    """

    pair: Pair
    settings: Settings
    repeats: int = 3

    def __post_init__(self) -> None:
        self.rows = 0
        self.identical = 0
        self.differences: list[str] = []
        self.compile_seconds = 0.0
        self.tokens: list[int] = []  # per batch
        self.plain_tokens: list[int] = []
        self.seconds: list[float] = []
        self.plain_seconds: list[float] = []
        self._examined = self._accepted = self._rounds = 0
        self._shapes: set[tuple[int, ...]] = set()
        self._last: Batch | None = None

    def add(self, batch: Batch) -> DecodeResult:
        """Decodes a batch both ways; returns the speculative result."""
        self.settings = settle(self.pair, batch, self.settings)
        speculate = functools.partial(decode, self.pair, batch, self.settings)
        alone = functools.partial(decode_plain, self.pair, batch, self.settings)
        if batch.inputs.shape not in self._shapes:
            self._shapes.add(batch.inputs.shape)
            self.compile_seconds += timed(speculate)[1] + timed(alone)[1]
        runs = [(timed(speculate), timed(alone)) for _ in range(self.repeats)]
        (result, _), (plain, _) = runs[0]
        self.seconds.append(statistics.median(run[0][1] for run in runs))
        self.plain_seconds.append(statistics.median(run[1][1] for run in runs))
        self._last = batch
        self._count(batch, jax.device_get(result), jax.device_get(plain))
        self.settings = learn(self.settings, result)
        return result

    def _count(self, batch: Batch, result: DecodeResult, plain: DecodeResult) -> None:
        real = np.flatnonzero(batch.has_text)
        self.tokens.append(int(result.lengths[real].sum()))
        self.plain_tokens.append(int(plain.lengths[real].sum()))
        self._rounds += int(result.rounds[real].sum())
        self._examined += int(result.examined[real].sum())
        self._accepted += int(result.accepted[real].sum())
        for row in map(int, real):
            self.rows += 1
            difference = first_difference(self.pair, result, plain, row)
            if difference is None:
                self.identical += 1
            else:
                self.differences.append(f"row {self.rows}: {difference}")

    @property
    def alpha(self) -> float:
        """The acceptance rate: guesses accepted / guesses judged."""
        return self._accepted / self._examined if self._examined else float("nan")

    @property
    def tokens_per_call(self) -> float:
        """Tokens per target call and row."""
        return sum(self.tokens) / self._rounds if self._rounds else float("nan")

    @property
    def rates(self) -> list[float]:
        """Tokens per second of every batch, speculative."""
        return list(map(operator.truediv, self.tokens, self.seconds))

    @property
    def plain_rates(self) -> list[float]:
        """Tokens per second of every batch, of the target alone."""
        return list(map(operator.truediv, self.plain_tokens, self.plain_seconds))

    @property
    def tokens_per_second(self) -> float:
        """The median over the batches, speculative."""
        return statistics.median(self.rates)

    @property
    def plain_tokens_per_second(self) -> float:
        """The median over the batches, of the target alone."""
        return statistics.median(self.plain_rates)

    @property
    def speedup(self) -> float:
        """The ratio of the two medians."""
        return self.tokens_per_second / self.plain_tokens_per_second

    def verdict(self) -> str:
        """Whether both ways gave the same tokens, in one sentence."""
        if self.settings.rule == "lenient":
            return "The lenient rule is not exact: the output may differ from the target's alone."
        if self.settings.sampling.temperature > 0 and self.settings.rule != "gumbel":
            return (
                "Sampled above temperature 0: both are samples of the same distribution, "
                "not the same sample."
            )
        same = f"identical to the target alone: {self.identical} of {self.rows}"
        return "\n".join([same, *(f"differs in {line}" for line in self.differences)])

    def speeds(self) -> str:
        """Both speeds and their ratio, and why, where it is below 1."""
        batches = len(self.seconds)
        over = f"medians over {batches} batches, each " if batches > 1 else ""
        line = (
            f"speculative {self.tokens_per_second:.0f} tokens/s, the target alone "
            f"{self.plain_tokens_per_second:.0f} tokens/s: {self.speedup:.2f}X "
            f"({over}the median of {self.repeats} runs; the draft's time is inside, "
            f"{self.compile_seconds:.1f} s of compilation and first runs are outside)"
        )
        return line if self.speedup >= 1 else f"{line}\n{self.reason()}"

    def reason(self) -> str:
        """Why it is as fast as it is: Theorem 3.8 of such decodes, with costs measured here."""
        assert self._last is not None
        if self.settings.num_beams > 1:
            return "Beam search reads num_beams + gamma num_draft_beams tokens a call: try fewer."
        gamma = self.settings.gamma if isinstance(self.settings.gamma, int) else 7
        # What lies between is no straight line on a CPU: advice is of what was measured.
        gammas = sorted({min(3, gamma), gamma})
        costs = measure_costs(
            decoders(self.pair),
            self._last.inputs,
            self._last.keys,
            gammas=gammas,
            max_new_tokens=self.settings.max_new_tokens,
            sampling=self.settings.sampling,
        )
        length = max(1, round(sum(self.plain_tokens) / max(self.rows, 1)))
        expected = {
            g: decode_improvement(
                self.alpha,
                g,
                costs.draft,
                costs.verification[g],
                tokens=[length] * len(self._last.lines),
                prefill=costs.prefill,
                draft_prefill=costs.draft_prefill,
            )
            for g in gammas
        }
        best = max(expected, key=lambda g: expected[g])
        advice = (
            f"gamma {best} would give about {expected[best]:.2f}X."
            if expected[best] > 1
            else "--gamma=auto decodes plainly where no gamma pays."
        )
        return (
            f"alpha {self.alpha:.2f} at gamma {gamma}, with c {costs.draft:.2f} and "
            f"T({gamma + 1})/T(1) {costs.verification[gamma]:.1f} measured here: expected "
            f"{expected[gamma]:.2f}X; {advice}"
        )


def first_difference(pair: Pair, result: DecodeResult, plain: DecodeResult, row: int) -> str | None:
    """Where a row of two results parts, with both log probabilities; None if nowhere."""
    parts = np.flatnonzero(result.tokens[row] != plain.tokens[row])
    if not parts.size:
        return None
    at = int(parts[0])
    ids = int(result.tokens[row, at]), int(plain.tokens[row, at])
    here, alone = pair.vocabulary.pieces(ids)
    return (
        f"token {at + 1} is {here!r} (log p {result.log_probs[row, at]:.4f}), "
        f"{alone!r} ({plain.log_probs[row, at]:.4f}) by the target alone"
    )
