"""Table 3 and the lenience table of appendix A.5: how many guesses stand."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from specdec_jax import acceptance
from specdec_jax.drafters.model import ModelDrafter
from specdec_jax.findings import Figure, Finding, Series, Table, Value
from specdec_jax.generate import Settings, batches, decode, decode_plain, with_text
from specdec_jax.paper_figures import paper_draft, table_3
from specdec_jax.pretrained import Pair
from specdec_jax.sampling import GREEDY, Sampling
from specdec_jax.types import DecodeResult
from specdec_jax.vocabulary import encode_sources

_SAMPLED = Sampling(1.0)
_GAMMA = 5  # at which guesses are counted


class Rates(NamedTuple):
    """alpha of one draft on one task."""

    task: str
    draft: str
    greedy: acceptance.Acceptance  # counted, at temperature 0
    sampled: acceptance.Acceptance  # at temperature 1
    own: acceptance.Estimate | None  # teacher-forced on the target's samples, temperature 1
    references: acceptance.Estimate | None  # on references


def measure_rates(
    pair: Pair, draft: str, task: str, lines: Sequence[str], targets: Sequence[str | None],
    settings: Settings,
) -> Rates:  # fmt: skip
    """Every estimate of alpha that the draft allows.

    Args:
      pair: what decodes.
      draft: its draft's name.
      task: the lines' name.
      lines: sources.
      targets: a reference for each line, or None.
      settings: lengths, batch size and seed; the rest is set here.
    """
    counted = {
        sampling: acceptance.of_decodes(
            _decodes(pair, lines, dataclasses.replace(settings, gamma=_GAMMA, sampling=sampling))
        )
        for sampling in (GREEDY, _SAMPLED)
    }
    own = references = None
    if isinstance(pair.drafter, ModelDrafter) and pair.partitioner is None:
        now = dataclasses.replace(settings, sampling=_SAMPLED)
        own = acceptance.of_betas(_betas(pair, lines, None, now))
        if all(targets):
            references = acceptance.of_betas(_betas(pair, lines, targets, now))
    return Rates(task, draft, counted[GREEDY], counted[_SAMPLED], own, references)


def _decodes(pair: Pair, lines: Sequence[str], settings: Settings) -> list[DecodeResult]:
    """Results of the lines that have text."""
    work = batches(pair, lines, settings)
    return [with_text(batch, decode(pair, batch, settings)) for batch in work]


def _betas(
    pair: Pair, lines: Sequence[str], targets: Sequence[str | None] | None, settings: Settings
) -> np.ndarray:
    """Beta at every prefix of the references, or of samples of the target's own."""
    found = []
    start = 0
    for batch in batches(pair, lines, settings):
        real = np.flatnonzero(batch.has_text)
        outputs = np.zeros((len(batch.inputs), settings.max_new_tokens), np.int32)
        if targets is None:
            outputs = np.asarray(decode_plain(pair, batch, settings).tokens)
        else:
            some = [targets[start + int(i)] or "" for i in real]
            outputs[real] = encode_sources(pair.vocabulary, some, settings.max_new_tokens)
        start += len(batch.lines)
        betas = acceptance.teacher_forced(
            pair.target,
            pair.target_params,
            pair.drafter,  # type: ignore[arg-type]  # a ModelDrafter, as `measure_rates` saw
            pair.draft_params,
            batch.inputs,
            outputs,
            sampling=settings.sampling,
        )
        found.append(np.asarray(betas)[real])
    return np.concatenate(found)


def table_of_rates(rates: Sequence[Rates], like: dict[str, str | None]) -> list[Finding]:
    """Table 3 beside the paper's, and alpha by place in the round."""
    cells: list[tuple[Value, ...]] = []
    for row in rates:
        paper = table_3(like.get(row.task), paper_draft(row.draft))
        theirs: tuple[Value, ...] = (None,) * 4
        if paper:
            theirs = (
                *(paper.greedy, row.greedy.alpha.value - paper.greedy),
                *(paper.sampled, row.sampled.alpha.value - paper.sampled),
            )
        cells.append(
            (
                *(row.task, row.draft),
                *(row.greedy.alpha.value, _interval(row.greedy.alpha)),
                *(row.sampled.alpha.value, _interval(row.sampled.alpha)),
                *(row.own.value if row.own else None, _interval(row.own)),
                *(row.references.value if row.references else None, _interval(row.references)),
                *theirs,
            )
        )
    rate, change = "{:.2f}", "{:+.2f}"
    table = Table(
        "table3",
        "Table 3: α of different drafts",
        (
            *("task", "draft", "α, T = 0", "95 %", "α, T = 1", "95 % "),
            *("Σ min(p, q), own samples", "95 %  ", "on references", "95 %   "),
            *("the paper's, T = 0", "difference", "the paper's, T = 1", "difference "),
        ),
        ("", "", rate, "", rate, "", rate, "", rate, "", rate, change, rate, change),
        tuple(cells),
        note=f"Counted: accepted over judged guesses at γ = {_GAMMA}. Σ min(p, q): the mean of "
        "Theorem 3.5's β, teacher-forced on the target's own samples and on references, at T = 1. "
        "Intervals are of resampled texts. The paper's are of T5-XXL on the task named in the gin "
        "file as the most alike.",
    )
    return [table, _by_position(rates)]


def _interval(estimate: acceptance.Estimate | None) -> str | None:
    return f"{estimate.low:.2f}-{estimate.high:.2f}" if estimate else None


def _by_position(rates: Sequence[Rates]) -> Figure:
    """Alpha by place in the round, of the first draft: is it the same for all, as Eq. 1 has it?"""
    series = []
    for row in rates:
        if row.draft != rates[0].draft:
            continue
        for label, found in (("T = 0", row.greedy), ("T = 1", row.sampled)):
            places = [place for place in found.by_position if place.total]
            series.append(
                Series(
                    f"{row.task}, {label}",
                    tuple(float(i) for i in range(1, len(places) + 1)),
                    tuple(place.value for place in places),
                    tuple(place.low for place in places),
                    tuple(place.high for place in places),
                    dashed=label == "T = 1",
                )
            )
    return Figure(
        "figure_positions",
        f"α by place in the round, draft: {rates[0].draft}",
        "place of the guess",
        "α of those judged",
        tuple(series),
        note="Section 3 takes α to be the same at every place.",
    )


class Lenient(NamedTuple):
    """What a lenience does on one task."""

    task: str
    temperature: float
    lenience: float
    alpha: acceptance.Estimate
    tokens_per_call: float


def measure_lenience(
    pair: Pair, task: str, lines: Sequence[str], leniences: Sequence[float], settings: Settings
) -> list[Lenient]:
    """Alpha by lenience, at temperatures 1 and 0; l = 1 is the exact rule."""
    found = []
    for sampling in (_SAMPLED, GREEDY):
        for lenience in leniences:
            lenient: dict[str, Any] = (
                {} if lenience == 1 else {"rule": "lenient", "lenience": lenience}
            )
            now = dataclasses.replace(settings, gamma=_GAMMA, sampling=sampling, **lenient)
            results = _decodes(pair, lines, now)
            tokens, rounds = (
                sum(int(getattr(result, name).sum()) for result in results)
                for name in ("lengths", "rounds")
            )
            alpha = acceptance.of_decodes(results).alpha
            found.append(
                Lenient(task, sampling.temperature, lenience, alpha, tokens / max(rounds, 1))
            )
    return found


def table_of_lenience(rows: Sequence[Lenient]) -> list[Finding]:
    """The table of appendix A.5: a line a task and temperature, a column a lenience."""
    leniences = list(dict.fromkeys(row.lenience for row in rows))
    of = {(row.task, row.temperature, row.lenience): row for row in rows}
    cells = tuple(
        (task, temperature)
        + tuple(of[task, temperature, one].alpha.value for one in leniences)
        + tuple(of[task, temperature, one].tokens_per_call for one in leniences)
        for task, temperature in dict.fromkeys((row.task, row.temperature) for row in rows)
    )
    number = ["{:.2f}"] * len(leniences)
    table = Table(
        "table_lenience",
        "Appendix A.5: α by lenience",
        (
            *("task", "temp"),
            *(f"α, l = {one:g}" for one in leniences),
            *(f"tokens a call, l = {one:g}" for one in leniences),
        ),
        ("", "{:g}", *number, *number),
        cells,
        note=f"γ = {_GAMMA}. l = 1 is exact; below it no token comes out with more than 1 / l "
        "times the target's probability, and at temperature 0 a guess is kept that is at least "
        "l times as likely as the target's own choice.",
    )
    return [table]
