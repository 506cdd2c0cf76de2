"""examples/notebook.ipynb: each cell is executed and its output is checked."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"

Cell = dict[str, Any]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a kernel with this interpreter. Neither it nor the notebook's client uses the user's own files."""
    spec = tmp_path / "jupyter" / "kernels" / "this-python"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "this", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    return spec.name


@pytest.fixture
def executed(tmp_path: Path, runs: Path, kernel: str) -> list[Cell]:
    """Return the notebook's code cells with their outputs."""
    runs.parent.mkdir()
    (runs.parent / "digits").symlink_to(ROOT / "examples" / "digits")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(runs.parent)}}
    NotebookClient(notebook, timeout=200, kernel_name=kernel, resources=where).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: Cell, kind: str = "text/plain") -> str:
    """Return the printed output of a cell, then its value."""
    printed = [output["text"] for output in cell["outputs"] if output["output_type"] == "stream"]
    values = [output["data"][kind] for output in cell["outputs"] if kind in output.get("data", {})]
    return "".join(printed + values)


@pytest.mark.slow
def test_every_cell_has_the_expected_output(executed: list[Cell], runs: Path) -> None:
    cells = iter(executed)
    imports, train, submitted, watched, waited, after, results, logs, again = (next(cells) for _ in range(9))
    failed, sweep, slopes, digits, accuracy, handle = cells
    assert [shown(cell) for cell in (imports, train)] == ["", ""]
    assert re.search(r"<b>train-[-0-9]+</b>.*(joining|running)", shown(submitted, "text/html"))
    (drawn,) = watched["outputs"]  # in place: one output for all updates
    assert drawn["output_type"] == "display_data"
    assert all(words in drawn["data"]["text/html"] for words in ("succeeded", "<td>node1</td>", "<pre>[1."))
    assert shown(waited) == "'succeeded'"
    page = shown(after, "text/html")
    assert "succeeded" in page
    assert all(f"<td>node{node}</td>" in page for node in (0, 1))
    assert shown(results).count("'slope': 3.0, 'offset': 1.0") == 2
    assert [line.partition(":")[0] for line in shown(logs).splitlines()] == [
        f"[1.0] step {step}" for step in (20, 40, 60, 80, 100)
    ]
    assert shown(again) == "'all workers of round 1 succeeded'"
    assert shown(failed) == "rank 0 on node0: ArithmeticError('the loss is above 10')\n"
    assert shown(sweep, "text/html").count("<td>succeeded</td>") == 2
    assert "<td>sweep-001</td>" in shown(sweep, "text/html")
    assert "lr=0.1, steps=50" in shown(sweep, "text/html")
    assert 0 < json.loads(shown(slopes))[0] < json.loads(shown(slopes))[1] < 3.1
    assert "round 1, 2 ranks: epoch 10/10" in shown(digits)
    assert float(shown(accuracy)) > 0.9
    assert "succeeded" in shown(handle, "text/html")
    assert sorted(path.name.partition("-")[0] for path in runs.iterdir()) == [
        "digits",
        "diverge",
        "sweep",
        "sweep",
        "train",
    ]


def test_it_is_stored_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count) for cell in code] == [([], None)] * len(code)
    assert notebook.metadata.kernelspec.name == "python3"
