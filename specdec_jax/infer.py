"""A file of sources -> predictions, as a job configured by gin (gin/runs/infer.gin)."""

import os
from pathlib import Path

from specdec_jax import pretrained
from specdec_jax.batch_job import split_lines
from specdec_jax.generate import Settings
from specdec_jax.terminal import say
from specdec_jax.text_run import TextRun


def infer(
    *,
    run_dir: str,
    model: str,
    draft: str | None,
    inputs: str,
    settings: Settings,
    output: str = "predictions.jsonl",
) -> str:
    """Decodes a file of sources, a line each; a run that was killed goes on.

    Args:
      run_dir: where the output goes.
      model: a pair, by its name or directory.
      draft: another draft, one of `pretrained.DRAFTS`; None is the pair's own.
      inputs: the file.
      settings: how.
      output: the file's name; JSONL rows as `specdec generate --output` writes them.

    Returns:
      The path of the output; nothing is decoded if it is there already.

    Raises:
      FileNotFoundError: no such file, pair or draft.
      UserError: the run was begun with other settings.
      ValueError: the settings don't go together.
    """
    path = os.path.join(run_dir, output)
    if os.path.exists(path):
        say(f"{path} is complete already; another RUN_DIR makes another.")
        return path
    lines, _ = split_lines(Path(inputs).read_bytes())
    run = TextRun(lambda: pretrained.load(model, draft=draft), lines, settings)
    names = {
        "model": model,
        "draft": draft,
        "checkpoint": pretrained.fingerprint(model, draft=draft),
    }
    run.to_file(path, names, overwrite=False)
    return path
