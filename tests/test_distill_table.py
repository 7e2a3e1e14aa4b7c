"""The table of distillations, and the script that makes what it shows."""

import json
import os
import subprocess
import sys
from pathlib import Path

from specdec_jax import distill_table, gin_jobs

ROOT = Path(__file__).parent.parent


def log(directory, *means, task="ende"):
    """A run's metrics: a validation of each mean, with lines of training between them."""
    directory.mkdir()
    with open(directory / "metrics.jsonl", "w") as f:
        for step, mean in enumerate(means):
            scores = {
                f"{task}/references/alpha": 0.1, f"{task}/references/agreement": 0.1,
                f"{task}/target/alpha": mean, f"{task}/target/agreement": mean / 2, "mean": mean,
            }  # fmt: skip
            f.write(json.dumps({"step": 2 * step, "validation": scores}) + "\n")
            f.write(json.dumps({"step": 2 * step + 1, "loss": 1.0}) + "\n")
    return str(directory)


def test_a_row_is_a_run_at_its_best_and_the_first_where_they_began(tmp_path, capsys):
    runs = [log(tmp_path / "forward_kl", 0.5, 0.7, 0.6), log(tmp_path / "total", 0.5, 0.625)]
    assert distill_table.main([*runs[:1], runs[1] + "/"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| objective | mean α | ende: α at 1, at 0 |",
        "| --- | --- | --- |",
        "| before | 0.500 | 0.500, 0.250 |",
        "| forward_kl | 0.700 | 0.700, 0.350 |",
        "| total | 0.625 | 0.625, 0.312 |",
    ]


def test_mistakes_are_told_in_one_sentence(tmp_path, capsys):
    run = log(tmp_path / "run", 0.5)
    other, empty = log(tmp_path / "other", 0.5, task="restore"), log(tmp_path / "empty")
    for arguments, status, message in (
        ([], 2, "give the runs' directories"),
        ([str(tmp_path / "none")], 1, "none/metrics.jsonl is not there"),
        ([empty], 1, "empty has no validation in its log"),
        ([run, other], 1, "other has other tasks than the first one"),
    ):
        assert distill_table.main(arguments) == status
        assert message in capsys.readouterr().err


def test_the_script_distils_by_each_objective_and_shows_the_table(tmp_path):
    """With stand-ins for the commands, which write their arguments down."""
    for name in ("specdec", "python"):
        (tmp_path / name).write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            f"open({str(tmp_path / 'called')!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
        )
        (tmp_path / name).chmod(0o755)
    command = ["bash", str(ROOT / "scripts/compare_objectives.sh"), "OUT", "--gin.TEMPERATURE=0.5"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(command, env=environment, check=True)
    *jobs, shown = map(json.loads, (tmp_path / "called").read_text().splitlines())
    import gin

    seen = []
    for subcommand, *flags in jobs:
        assert subcommand == "distill"
        gin_jobs.configure(gin_jobs.parse_flags(flags))
        assert gin.query_parameter("%TEMPERATURE") == 0.5
        assert gin.query_parameter("%TEACHER_DIR") == "OUT/teacher"
        seen.append(gin.query_parameter("%OBJECTIVE"))
        assert gin.query_parameter("%RUN_DIR") == f"OUT/{seen[-1]}"
    gin.clear_config()
    assert seen == ["forward_kl", "reverse_kl", "total_variation", "jensen_shannon"]
    assert shown == ["-m", "specdec_jax.distill_table", *(f"OUT/{name}" for name in seen)]
