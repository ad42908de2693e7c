"""Test that the notebook on dynamic shapes runs from the first cell to the last, with few and small sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def test_the_notebook_draws_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="the notebook draws pictures")
    monkeypatch.setenv("DYNAMIC_FOLDER", str(tmp_path))
    monkeypatch.setenv("DYNAMIC_SIZES", "13 53")
    monkeypatch.setenv("DYNAMIC_COUNTS", "1 128")
    cells = json.loads((Path(__file__).resolve().parents[2] / "notebooks/dynamic.ipynb").read_text())["cells"]
    assert all(not cell.get("outputs") for cell in cells), "clear the outputs before you commit the notebook"
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert len(names["agreements"]) == len(names["one"]) == len(names["two"]) == 2
    assert np.isfinite([*names["one"], *names["two"], *names["taken"]]).all()
    for picture in ("sia", "two", "compiling"):
        assert (tmp_path / f"{picture}.png").stat().st_size > 1000
