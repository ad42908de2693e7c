"""Test that the notebook on tensor comprehensions runs from the first cell to the last, with small settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "tensor_comprehensions.ipynb"


def test_every_cell_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COMPREHENSIONS_ROUNDS", "1")
    monkeypatch.setenv("COMPREHENSIONS_SIZE", "64")
    cells = json.loads(_NOTEBOOK.read_text())["cells"]
    assert all(not cell.get("outputs") for cell in cells), "clear the outputs before you commit the notebook"
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert "k in 0:K, reduced" in printed
    assert "i in 0:96 (round 2)" in printed
    assert printed.count("remedy") == 0
    assert printed.count("^") >= 3
    assert "1 function" in printed
    assert "ImplicitSumWarning" in printed
    assert printed.count("for (int i = 0; i < 64; i += 32)") == printed.count("coincident: [ 1, 1 ]") // 2 <= 1
    assert "gated_O_2" in printed.splitlines()[-1]
