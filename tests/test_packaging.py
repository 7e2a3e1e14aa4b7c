"""A wheel works outside the checkout: the gin files and the assets travel with it."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = (
    "setup.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "MANIFEST.in",
    "specdec_jax",
    "gin",
)

LOOK = """
import json, pathlib, sys
import specdec_jax
from specdec_jax import gin_jobs, pretrained, resources
flags = ["--gin_file=runs/train.gin", "--gin_file=gin/models/debian_target.gin"]
gin_jobs.configure(gin_jobs.parse_flags([*flags, "--gin.RUN_DIR='x'"]))
print(json.dumps({
    "package": specdec_jax.__file__,
    "gin": resources.gin_search_paths(),
    "pairs": pretrained.available(),
    "held_out": len(pretrained.held_out()),
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Builds from a copy, so that nothing of a build stays in the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=ignore)
        else:
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out)]
    subprocess.run([*pip, str(source)], check=True, capture_output=True)
    [path] = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def files_under(folder: Path, pattern: str = "*") -> set[str]:
    found = folder.rglob(pattern)
    return {
        str(p.relative_to(folder)) for p in found if p.is_file() and "__pycache__" not in p.parts
    }


def test_everything_of_the_package_is_in_the_wheel(installed):
    here, there = ROOT / "specdec_jax", installed / "specdec_jax"
    assert files_under(here / "assets") == files_under(there / "assets")
    assert files_under(here, "*.py") == files_under(there, "*.py")
    assert (there / "py.typed").is_file()
    assert files_under(ROOT / "gin", "*.gin") == files_under(there / "gin", "*.gin")
    assert files_under(ROOT / "gin", "*.gin")


def test_nothing_else_is_in_the_wheel(installed):
    top = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert top == {"specdec_jax"}


def test_it_works_outside_the_checkout(installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    run = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert seen["package"].startswith(str(installed))
    assert all(path.startswith(str(installed)) for path in seen["gin"])
    assert seen["held_out"] >= 50
    assert seen["pairs"] == sorted(
        path.parent.name for path in (ROOT / "specdec_jax/assets").glob("*/target")
    )


def test_the_metadata(installed):
    [info] = installed.glob("*.dist-info")
    metadata = (info / "METADATA").read_text("utf-8")
    assert "Name: specdec_jax" in metadata.replace("specdec-jax", "specdec_jax")
    assert "Requires-Python: >=3.11" in metadata
    for extra in ("seqio", "t5x", "test", "report", "notebook", "all"):
        assert f"Provides-Extra: {extra}\n" in metadata
    core = [
        line for line in metadata.splitlines() if "Requires-Dist" in line and "extra" not in line
    ]
    assert not any("tensorflow" in line or "seqio" in line for line in core)
    assert "specdec = specdec_jax.main:run" in (info / "entry_points.txt").read_text()
    assert any(path.name == "LICENSE" for path in info.rglob("*"))
