"""The notebooks: run as they are, from the first cell to the last, and kept with their outputs."""

from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_ready_for_colab_and_shows_its_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    title, install, *rest = notebook.cells
    assert f"OWNER/specdec_jax/blob/main/notebooks/{path.name}" in title.source
    assert "%pip install" in install.source
    code = [cell for cell in rest if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code), "run it, and keep the outputs"
    assert sum(bool(cell.outputs) for cell in code) >= len(code) - 2
    text = path.read_text("utf-8")
    assert "Traceback" not in text
    for place in ("/home/", "/root/", "/Users/", "/tmp/", "site-packages"):
        assert place not in text, f"a path of the machine that ran it: {place}"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    assert all("Traceback" not in str(cell.get("outputs")) for cell in notebook.cells)
