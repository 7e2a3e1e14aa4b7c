"""The paper's tables and figures, as one job configured by gin (gin/runs/reproduce_*.gin).

    RUN_DIR/findings/*.json   each table, figure, timeline and walk, as data
    RUN_DIR/report.html       all of it on one page; report.md and tables/*.csv beside it
    RUN_DIR/environment.json  versions, devices, threads, flags
    RUN_DIR/<part>/           what a part keeps to go on after an interruption

A reproduction is a list of parts; each gives its findings, which are not made again while
they lie in RUN_DIR. Levels differ in their gin file alone.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import jax

from specdec_jax import benchmark, findings, partitioning, report
from specdec_jax.errors import UserError
from specdec_jax.findings import Finding
from specdec_jax.generate import Settings
from specdec_jax.pretrained import Pair
from specdec_jax.rate_findings import (
    measure_lenience,
    measure_rates,
    table_of_lenience,
    table_of_rates,
)
from specdec_jax.record import write_environment
from specdec_jax.sampling import Sampling
from specdec_jax.speed_findings import speed_findings
from specdec_jax.tasks import Task
from specdec_jax.terminal import JobProgress, say
from specdec_jax.timeline import timeline
from specdec_jax.walks import walk

LEVELS = ("embedded", "simulated", "paper")
USAGE = """the paper's tables and figures, and a report of them.

    specdec reproduce --level=embedded --run_dir=runs/embedded

--level=embedded    the shipped pair, here, in minutes
--level=simulated   T5's real sizes with random weights and the paper's alpha: walltime alone
--level=paper       fine-tuned T5 1.1 checkpoints on the paper's tasks: gin/runs/reproduce_paper.gin
--run_dir=DIR       where everything goes; what lies there is not made again
--only=A,B          some parts of the level alone
--gin_file, --gin.NAME=VALUE, --gin_search_paths   as of the other jobs
"""


def gin_flags(arguments: Sequence[str]) -> list[str]:
    """The command's flags as those of a gin job.

    Raises:
      UserError: no level, or one that there is not.
    """
    flags, levels = [], []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "--level":
            if value not in LEVELS:
                raise UserError(f"--level is {', '.join(LEVELS)}, not {value!r}.")
            levels.append(f"--gin_file=runs/reproduce_{value}.gin")
        elif name == "--run_dir":
            flags.append(f"--gin.RUN_DIR={value!r}")
        elif name == "--only":
            flags.append(f"--gin.ONLY={[part for part in value.split(',') if part]!r}")
        else:
            flags.append(argument)
    if not levels and not any(flag.startswith("--gin_file=") for flag in flags):
        raise UserError(f"Give --level={'|'.join(LEVELS)} and --run_dir=DIR.")
    return levels + flags


class Part(Protocol):
    """One of the things that a reproduction does."""

    @property
    def name(self) -> str:
        """What `--only` calls it."""

    def findings(self, run_dir: Path) -> list[Finding]:
        """Makes them; what it keeps to go on later lies under RUN_DIR/<name>."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A pair and a task that it is measured on.

    Attributes:
      task: what to decode.
      model: a pair, by its name or directory.
      settings: lengths, prefix, batch size and seed.
      drafts: that are timed: names, of `pretrained.DRAFTS`.
      like: the paper's task that this one is set beside, "EnDe" or "CNN/DM"; None: none.
      dtype: of weights and activations.
      model_parallel: see `partitioning.load_pair`.
    """

    task: Task
    model: str
    settings: Settings
    drafts: Sequence[str] = ("model",)
    like: str | None = None
    dtype: str = "float32"
    model_parallel: int = 1

    def load(self, draft: str) -> Pair:
        """The pair with a draft; on one device, or on a mesh."""
        devices = jax.local_devices()[: max(self.model_parallel, 1)]
        return partitioning.load_pair(
            self.model,
            draft=draft,
            dtype=self.dtype,
            model_parallel=self.model_parallel,
            devices=devices,
        )

    def lines(self, most: int) -> tuple[list[str], list[str | None]]:
        """The first sources and what should come of them."""
        examples = self.task.examples()[:most]
        return [one.inputs for one in examples], [one.targets for one in examples]


@dataclasses.dataclass(frozen=True)
class Speed:
    """Table 2 and appendix A.3.

    Attributes:
      subjects: what is measured.
      temperatures: of the sampling.
      gammas: guesses a round.
      max_examples: so many of each task.
      repeats: timed runs of each batch, each way.
    """

    subjects: Sequence[Subject]
    temperatures: Sequence[float] = (0.0, 1.0)
    gammas: Sequence[int] = (3, 7)
    max_examples: int = 20
    repeats: int = 5

    name = "speed"

    def findings(self, run_dir: Path) -> list[Finding]:
        """Every draft, temperature and gamma on every subject."""
        rows = []
        for subject in self.subjects:
            say(f"speed: {subject.task.name}")
            rows += benchmark.benchmark(
                run_dir=str(run_dir / self.name / subject.task.name),
                model=subject.model,
                task=subject.task,
                settings=subject.settings,
                drafts=subject.drafts,
                temperatures=self.temperatures,
                gammas=self.gammas,
                max_examples=self.max_examples,
                repeats=self.repeats,
                dtype=subject.dtype,
                model_parallel=subject.model_parallel,
                num_devices=max(subject.model_parallel, 1),
            )
        note = f"{self.max_examples} sources a task, median of {self.repeats} runs each."
        return speed_findings(rows, _like(self.subjects), note)


@dataclasses.dataclass(frozen=True)
class Rates:
    """Table 3.

    Attributes:
      subjects: what is measured.
      drafts: names, beside each subject's own; alpha of them costs no timing.
      max_examples: so many of each task.
      batch_size: alpha does not depend on it, and larger batches are faster.
    """

    subjects: Sequence[Subject]
    drafts: Sequence[str] = ()
    max_examples: int = 40
    batch_size: int = 20

    name = "rates"

    def findings(self, run_dir: Path) -> list[Finding]:
        """Alpha of every draft on every subject."""
        asked = [
            (subject, draft)
            for subject in self.subjects
            for draft in dict.fromkeys((*subject.drafts, *self.drafts))
        ]
        rates = []
        with JobProgress(len(asked)) as progress:
            for subject, draft in asked:
                lines, targets = subject.lines(self.max_examples)
                pair = subject.load(draft)
                settings = dataclasses.replace(subject.settings, batch_size=self.batch_size)
                rates.append(
                    measure_rates(pair, draft, subject.task.name, lines, targets, settings)
                )
                progress.add(rows=1, tokens=0, examined=0, accepted=0)
        return table_of_rates(rates, _like(self.subjects))


@dataclasses.dataclass(frozen=True)
class Lenience:
    """The table of appendix A.5.

    Attributes:
      subjects: what is measured, with the first of its drafts.
      leniences: l; 1 is exact.
      max_examples: so many of each task.
      batch_size: of the decodes.
    """

    subjects: Sequence[Subject]
    leniences: Sequence[float] = (1.0, 0.5, 0.3, 0.1)
    max_examples: int = 40
    batch_size: int = 20

    name = "lenience"

    def findings(self, run_dir: Path) -> list[Finding]:
        """Alpha by lenience."""
        rows = []
        with JobProgress(len(self.subjects)) as progress:
            for subject in self.subjects:
                pair, (lines, _) = subject.load(subject.drafts[0]), subject.lines(self.max_examples)
                settings = dataclasses.replace(subject.settings, batch_size=self.batch_size)
                rows += measure_lenience(pair, subject.task.name, lines, self.leniences, settings)
                progress.add(rows=1, tokens=0, examined=0, accepted=0)
        return table_of_lenience(rows)


@dataclasses.dataclass(frozen=True)
class Traces:
    """Figure 1 as walks through decodes, and Figure 5, a decode's calls along time.

    Attributes:
      subjects: of each, the example at `place` is shown, with the first of its drafts.
      place: the example.
      gamma: guesses a round.
    """

    subjects: Sequence[Subject]
    place: int = 0
    gamma: int = 7

    name = "traces"

    def findings(self, run_dir: Path) -> list[Finding]:
        """Two walks a subject, greedy and sampled, and the timeline of the first."""
        found: list[Finding] = []
        for number, subject in enumerate(self.subjects):
            lines, _ = subject.lines(self.place + 1)
            if len(lines) <= self.place:
                raise UserError(f"{subject.task.name} has no example {self.place}.")
            settings = dataclasses.replace(subject.settings, gamma=self.gamma, batch_size=1)
            pair, line, task = subject.load(subject.drafts[0]), lines[self.place], subject.task.name
            if number == 0:
                found.append(timeline(pair, line, settings))
            found.append(walk(pair, line, settings, f"walk_{task}", f"A decode: {task}"))
            sampled = dataclasses.replace(settings, sampling=Sampling(1.0))
            title = f"A decode at temperature 1: {task}"
            found.append(walk(pair, line, sampled, f"walk_{task}_sampled", title))
        return found


def _like(subjects: Sequence[Subject]) -> dict[str, str | None]:
    return {subject.task.name: subject.like for subject in subjects}


def reproduce(*, run_dir: str, parts: Sequence[Part], only: Sequence[str] = ()) -> Path:
    """Runs the parts that RUN_DIR does not hold yet, and writes the report.

    Args:
      run_dir: where everything goes.
      parts: what to do.
      only: the names of some of them; empty: all.

    Returns:
      The report's path.

    Raises:
      UserError: there is no such part; RUN_DIR holds another reproduction; or as parts raise.
    """
    names = [part.name for part in parts]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise UserError(f"There is no part {unknown[0]!r} here; there are {', '.join(names)}.")
    directory = Path(run_dir)
    directory.mkdir(parents=True, exist_ok=True)
    done = _Done(directory)
    for part in parts:
        if only and part.name not in only:
            continue
        if done.holds(part):
            say(f"{part.name}: done before")
            continue
        say(f"{part.name} ...")
        made = part.findings(directory)
        for finding in made:
            findings.save(directory, finding)
        done.add(part)
    write_environment(directory)
    page = report.report(directory)
    say(f"{page}")
    return page


class _Done:
    """Which parts a run directory holds, and how they were asked for."""

    def __init__(self, run_dir: Path):
        self._file = run_dir / "parts.json"
        text = self._file.read_text("utf-8") if self._file.exists() else "{}"
        self._parts: dict[str, Any] = json.loads(text)

    def holds(self, part: Part) -> bool:
        """Whether the part was done; refused where it was asked for otherwise."""
        if part.name not in self._parts:
            return False
        if self._parts[part.name] != _asked(part):
            raise UserError(
                f"{self._file.parent} holds {part.name} of another model, task or setting: give "
                "another RUN_DIR."
            )
        return True

    def add(self, part: Part) -> None:
        """Notes that a part is done."""
        self._parts[part.name] = _asked(part)
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(self._parts, indent=1) + "\n", "utf-8")
        partial.replace(self._file)


def _asked(part: Part) -> Any:
    """A part's settings, as JSON gives them back."""
    return json.loads(json.dumps(part, default=_fields))


def _fields(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return str(value)
