"""Test that the wheel contains the package's data files and that the quick start runs from it outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

_QUICK_START = """
import torch
import felixlike as fx
from felixlike import costmodel
model, example_inputs = torch.nn.Linear(16, 32).eval(), torch.randn(4, 16)
fast = fx.optimize(model, example_inputs, trials=0, progress=False)
torch.testing.assert_close(fast(example_inputs), model(example_inputs).detach())
assert "fused_matmul_add" in str(fast.report)
fast.save("model.flx")
assert torch.equal(fx.load("model.flx")(example_inputs), fast(example_inputs))
twice = fx.tc.define("def twice(float(N) A) -> (B) { B(i) = A(i) + A(i) }")
assert twice(torch.ones(3)).tolist() == [2.0] * 3
print(fx.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    if "hatchling" in completed.stderr and "No matching distribution" in completed.stderr:
        pytest.skip("pip has nowhere to get hatchling from, which makes the wheel")
    assert completed.returncode == 0, completed.stderr
    (path,) = folder.glob("felixlike-*.whl")
    return path


def test_the_wheel_contains_the_data_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
        (entries,) = (archive.read(name).decode() for name in names if name.endswith("/entry_points.txt"))
    there = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "felixlike").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there == {name for name in names if ".dist-info/" not in name}
    data = ("py.typed", "costmodel/data/cpu.pt", "costmodel/data/cuda.pt", "hardware/machines.toml", "tc/grammar.lark")
    assert {f"felixlike/{name}" for name in data} <= names
    required_python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    stated = next(line for line in metadata.splitlines() if line.startswith("Requires-Python: "))
    assert set(stated.removeprefix("Requires-Python: ").split(",")) == set(required_python.split(","))
    assert "felixlike = felixlike.cli:main" in entries
    assert "[torch_dynamo_backends]" in entries


def test_the_quick_start_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", _QUICK_START]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=250
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(tmp_path / "site" / "felixlike" / "__init__.py")
