"""The notebook on retraining runs completely with small settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from felixlike.costmodel import load, read_card

_NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "retraining.ipynb"


def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="the notebook draws pictures")
    for name, value in {"FOLDER": str(tmp_path), "CANDIDATES": "6", "STEPS": "8"}.items():
        monkeypatch.setenv(f"RETRAINING_{name}", value)
    cells = json.loads(_NOTEBOOK.read_text())["cells"]
    assert all(not cell.get("outputs") for cell in cells), "clear the outputs before you commit the notebook"
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert load("cpu", tmp_path / "mine.pt").pretrained
    assert read_card(tmp_path / "mine.pt")["workloads"] == 6
    for picture in ("learning.png", "ranks.png", "calibration.png"):
        assert (tmp_path / picture).stat().st_size > 1000
