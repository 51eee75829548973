"""examples/notebook.ipynb, in a kernel of its own, as a person runs it."""

from __future__ import annotations

import os

from tests.helpers.runs import PROJECT, status

NOTEBOOK = PROJECT / "examples" / "notebook.ipynb"


def printed(cell) -> str:
    texts = [out.get("text") or out["data"]["text/plain"] for out in cell["outputs"]]
    return "".join(text if isinstance(text, str) else "".join(text) for text in texts)


def test_every_cell_runs_and_shows_what_it_says(tmp_path, monkeypatch):
    """Kernels have an event loop of their own, no terminal and no file that a level is in."""
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), *filter(None, [
        os.environ.get("PYTHONPATH")])]))  # fmt: skip
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "keep outputs out of the file"
    for cell in notebook.cells:
        cell["source"] = cell["source"].replace("100_000", "40_000")
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    start, progress, metrics, act, evaluate = (
        printed(cell) for cell in notebook.cells if cell.cell_type == "code"
    )
    assert start == ""
    assert "of 40,000 frames, mean return" in progress
    assert progress.splitlines()[-1] == "Run('runs/notebook', done)"
    assert status(tmp_path / "runs" / "notebook")["state"] == "done"
    assert "episode_return_mean" in metrics
    assert float(act.split("return:")[1]) > 20
    assert "mean " in evaluate
