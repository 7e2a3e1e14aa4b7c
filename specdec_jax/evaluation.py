"""What a pair is worth: the quality of its text, and how well its draft guesses.

Quality is scored on the greedy output, which is the target's own; the acceptance rate
is measured at temperature 0 and 1 on what the pair writes itself.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from specdec_jax.generate import TASKS, Settings, batches, check_lengths, decode, read
from specdec_jax.metrics import METRICS
from specdec_jax.pretrained import Pair
from specdec_jax.sampling import Sampling


class Acceptance(NamedTuple):
    """How a draft did at one temperature."""

    temperature: float
    alpha: float  # guesses accepted / guesses judged
    tokens_per_call: float  # tokens per target call and row


class Evaluation(NamedTuple):
    """A task's report."""

    task: str
    examples: int
    gamma: int
    scores: dict[str, float]  # of the greedy output
    copy: dict[str, float]  # what copying the sources would score
    acceptance: tuple[Acceptance, ...]
    predictions: list[str]  # greedy


def check_metrics(tasks: Iterable[str]) -> None:
    """Raises where a package is missing that scores one of these tasks, before any work."""
    for task in tasks:
        METRICS[TASKS[task].metric](["a text"], ["a text"])


def evaluate(
    pair: Pair,
    task: str,
    sources: Sequence[str],
    references: Sequence[str],
    settings: Settings,
    *,
    temperatures: Sequence[float] = (0.0, 1.0),
    progress: Callable[[int], None] = lambda rows: None,
) -> Evaluation:
    """Decodes a task's sources at each temperature and scores the greedy output.

    Args:
      pair: target and draft.
      task: one of `generate.TASKS`, which names its metric.
      sources: without the task's prefix.
      references: one for each source.
      settings: gamma, lengths, batch size, seed; task and temperature are set here.
      temperatures: 0 among them.
      progress: called with the number of rows done.

    Raises:
      ImportError: the metric's package is not installed.
      ValueError: no sources, or not as many references.
    """
    if len(sources) != len(references) or not sources:
        raise ValueError(
            f"{task} needs sources and as many references, not {len(sources)} and "
            f"{len(references)}."
        )
    gamma = settings.gamma
    if not isinstance(gamma, int):
        raise ValueError("alpha is measured at a fixed gamma: give a number, not auto.")
    score = METRICS[TASKS[task].metric]
    copy = score(sources, references)
    settings = dataclasses.replace(settings, task=task, prefix="")
    check_lengths(pair, sources, settings)
    # Sources of like length share a batch, so that little of it is padding.
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    acceptance, predictions = [], [""] * len(sources)
    for temperature in temperatures:
        tokens = calls = examined = accepted = 0
        now = dataclasses.replace(settings, sampling=Sampling(temperature))
        places = iter(order)
        for batch in batches(pair, [sources[i] for i in order], now):
            for row in read(pair, batch, decode(pair, batch, now)):
                tokens += len(row.tokens)
                calls += row.rounds
                examined += row.examined
                accepted += row.accepted
                place = next(places)
                if temperature == 0:
                    predictions[place] = row.prediction
            progress(len(batch.lines))
        acceptance.append(
            Acceptance(temperature, accepted / max(examined, 1), tokens / max(calls, 1))
        )
    return Evaluation(
        task,
        len(sources),
        gamma,
        score(predictions, references),
        copy,
        tuple(acceptance),
        predictions,
    )


def table(reports: Sequence[Evaluation]) -> str:
    """The reports as a Markdown table, as model cards show them."""
    lines = [
        "| task | examples | score | copying the source | temperature | α | tokens per call |",
        "|---|---|---|---|---|---|---|",
    ]
    for report in reports:
        quality = ", ".join(f"{name} {value:.1f}" for name, value in report.scores.items())
        copied = ", ".join(f"{name} {value:.1f}" for name, value in report.copy.items())
        for i, at in enumerate(report.acceptance):
            first = (report.task, str(report.examples), quality, copied) if i == 0 else ("",) * 4
            cells = (*first, f"{at.temperature:g}", f"{at.alpha:.3f}", f"{at.tokens_per_call:.2f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
