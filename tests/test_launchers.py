"""The launchers in scripts/: the jobs that they run, with stand-ins for the cluster's commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_jax import gin_jobs

ROOT = Path(__file__).parent.parent
ARGUMENTS = {
    "run_tpu_vm.sh": ["RUN"],
    "run_tpu_pod.sh": ["slice", "zone", "RUN"],
    "run_gpu_host.sh": ["RUN"],
    "run_slurm.sbatch": ["RUN"],
}


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Commands that run what they are given, or nothing; `python` writes down its arguments."""
    scripts = {
        "pip": "#!/bin/sh\n",
        "srun": '#!/bin/sh\nexec "$@"\n',
        "gcloud": '#!/bin/sh\nfor last; do :; done\nexec sh -c "${last#--command=}"\n',
        "python": f"#!{sys.executable}\nimport json, sys\n"
        f"json.dump(sys.argv[1:], open({str(tmp_path / 'called.json')!r}, 'w'))\n",
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text("")
    return tmp_path


@pytest.mark.parametrize("name", ARGUMENTS)
def test_it_runs_a_job_that_can_be_configured(name: str, tools: Path) -> None:
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    arguments = [*ARGUMENTS[name], "--gin.BATCH_SIZE=3"]
    command = ["bash", str(ROOT / "scripts" / name), *arguments]
    subprocess.run(command, cwd=tools, env=environment, check=True)
    module, *flags = json.loads((tools / "called.json").read_text())[1:]
    assert module == "specdec_jax.infer"
    gin_jobs.configure(gin_jobs.parse_flags(flags))
    import gin

    assert gin.query_parameter("%RUN_DIR") == "RUN" and gin.query_parameter("%BATCH_SIZE") == 3
    gin.clear_config()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_without_arguments_it_says_how(name: str, tools: Path) -> None:
    child = subprocess.run(
        ["bash", str(ROOT / "scripts" / name)], capture_output=True, text=True, cwd=tools
    )
    assert child.returncode and "usage: " in child.stderr
