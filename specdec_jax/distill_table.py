"""Distillations side by side, as a table.

    python -m specdec_jax.distill_table RUN_DIR ...

A row is a run at its best validation; the first one is where they began. scripts/
compare_objectives.sh makes such runs.
"""

import os
import sys
from collections.abc import Mapping, Sequence

from specdec_jax.training_run import read_log


def table(run_dirs: Sequence[str | os.PathLike[str]]) -> str:
    """A Markdown table of alpha on the target's samples, of runs by their directories' names.

    Args:
      run_dirs: of `distill.distill`, which began with the same weights.

    Raises:
      FileNotFoundError: a directory holds no log.
      ValueError: a run has not validated, or validated something else than the first.
    """
    runs = {os.path.basename(os.path.normpath(path)): _validations(path) for path in run_dirs}
    start = next(iter(runs.values()))[0]
    rows = [("before", start)]
    for name, validations in runs.items():
        best = max(validations, key=lambda scores: scores["mean"])
        if best.keys() != start.keys():
            raise ValueError(f"The run {name} has other tasks than the first one.")
        rows.append((name, best))
    tasks = [name.split("/")[0] for name in start if name.endswith("/target/alpha")]
    head = ["objective", "mean α", *(f"{task}: α at 1, at 0" for task in tasks)]
    lines = [head, ["---"] * len(head), *([name, *_cells(s, tasks)] for name, s in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _validations(run_dir: str | os.PathLike[str]) -> list[dict[str, float]]:
    found = [line["validation"] for line in read_log(run_dir) if "validation" in line]
    if not found or "mean" not in found[0]:
        raise ValueError(f"{os.fspath(run_dir)} has no validation in its log.")
    return found


def _cells(scores: Mapping[str, float], tasks: Sequence[str]) -> list[str]:
    """Alpha: the mean at temperature 1, and of each task at 1 and at 0."""
    both = ((scores[f"{t}/target/alpha"], scores[f"{t}/target/agreement"]) for t in tasks)
    return [f"{scores['mean']:.3f}", *(f"{one:.3f}, {zero:.3f}" for one, zero in both)]


def main(argv: Sequence[str]) -> int:
    """Prints the table of some runs; a mistake is one sentence and exit status 1."""
    if not argv:
        print("distill_table: give the runs' directories.", file=sys.stderr)
        return 2
    try:
        print(table(argv))
    except FileNotFoundError as error:
        print(f"distill_table: {error.filename} is not there.", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"distill_table: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
