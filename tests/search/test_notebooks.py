"""The notebooks on searching run completely with small settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def test_the_gradient_notebook_improves_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIENT_FOLDER", str(tmp_path))
    monkeypatch.setenv("GRADIENT_SEEDS", "6")
    names = _run("gradient")
    scores = names["scores"]
    assert scores[-1].mean() > scores[0].mean() + 0.5
    for picture in ("smooth.png", "descent.png"):
        assert (tmp_path / picture).stat().st_size > 1000


def test_the_strategies_notebook_compares_strategies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATEGIES_FOLDER", str(tmp_path))
    monkeypatch.setenv("STRATEGIES_CANDIDATES", "18")
    monkeypatch.setenv("STRATEGIES_NAMES", "gradient lfbo")
    names = _run("strategies")
    (series,) = names["found"].values()
    assert {name: len(curve) for name, curve in series.items()} == {"gradient": 18, "lfbo": 18}
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_the_notebook_on_felix_runs_its_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FELIX_FOLDER", str(tmp_path))
    monkeypatch.setenv("FELIX_CANDIDATES", "16")
    monkeypatch.setenv("FELIX_NAMES", "felix random")
    names = _run("felix")
    assert {name: len(series) for name, series in names["found"].items()} == {"felix": 16, "random": 16}
    assert set(names["scores"]) == {"felix"}
    assert 8 < len(names["scores"]["felix"]) <= 8 * 201
    lengths = [values[-1] for values in names["cut"].values()]
    assert lengths == sorted(lengths)
    assert lengths[-1] > lengths[0] + 1  # the integral with the paper's kernel grows with its bound
    for picture in ("smooth", "curves", "scores"):
        assert (tmp_path / f"{picture}.png").stat().st_size > 1000


def test_the_notebook_on_adatune_isolates_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADATUNE_FOLDER", str(tmp_path))
    monkeypatch.setenv("ADATUNE_CANDIDATES", "24")
    monkeypatch.setenv("ADATUNE_EPSILONS", "0.05")
    names = _run("adatune")
    assert set(names["shares"]) == {"ε = 0.05", "contextual"}
    assert {"rfei+sa+de", "rfei+csa+de", "rfei+csa+ae"} <= set(names["parts"])
    assert all(len(series) == 24 for series in (*names["shares"].values(), *names["parts"].values()))
    assert names["calls"]["deterministic"] == 500
    for picture in ("variation", "epsilon", "ablation"):
        assert (tmp_path / f"{picture}.png").stat().st_size > 1000
