"""Test that the notebooks on dynamic shapes run from the first cell to the last, with few and small sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def _run(name: str) -> dict[str, Any]:
    """Run the cells of a notebook and return its global names."""
    pytest.importorskip("matplotlib", reason="the notebook draws pictures")
    cells = json.loads((_NOTEBOOKS / f"{name}.ipynb").read_text())["cells"]
    assert all(not cell.get("outputs") for cell in cells), "clear the outputs before you commit the notebook"
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    return names


def test_ftuners_figures_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTUNER_FOLDER", str(tmp_path))
    monkeypatch.setenv("FTUNER_LAYER", "64 96")
    monkeypatch.setenv("FTUNER_SIZES", "7 13")
    monkeypatch.setenv("FTUNER_COUNTS", "1 4")
    names = _run("ftuner")
    assert len(names["agreements"]) == len(names["one"]) == len(names["two"]) == 2
    assert np.isfinite([*names["one"], *names["two"], *names["taken"]]).all()
    for picture in ("sia", "two", "compiling"):
        assert (tmp_path / f"{picture}.png").stat().st_size > 1000


def test_dietcodes_model_predicts_between_two_timings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIETCODE_FOLDER", str(tmp_path))
    monkeypatch.setenv("DIETCODE_LAYER", "64 96")
    monkeypatch.setenv("DIETCODE_HEIGHTS", "4")
    monkeypatch.setenv("DIETCODE_TILES", "4")
    monkeypatch.setenv("DIETCODE_LENGTH", "16")
    names = _run("dietcode")
    assert len(names["errors"]) == 2
    assert np.isfinite(names["errors"]).all()
    assert "T" in names["layer"].explain()
    assert (tmp_path / "throughput.png").stat().st_size > 1000
