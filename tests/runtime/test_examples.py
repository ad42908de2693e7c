"""Tests for the examples, which call an exported library from C++ and from Python without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from felixlike.api import Optimized, optimize
from felixlike.errors import OutputNotWritable

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def tuned() -> tuple[Optimized, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 8)).eval()
    x = torch.randn(4, 12)
    return optimize(model, x, trials=0, progress=False), x


@pytest.fixture(scope="module")
def library(tuned: tuple[Optimized, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "model.so"
    tuned[0].export_library(path)
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("no C++ compiler is installed")
    path = tmp_path_factory.mktemp("built") / "run"
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([str(EXAMPLES / "build"), str(path)], check=True, env=environment, capture_output=True, timeout=240)
    return path


def test_cpp_gives_the_same_outputs(
    tuned: tuple[Optimized, torch.Tensor], library: Path, program: Path, tmp_path: Path
) -> None:
    fast, x = tuned
    x.numpy().tofile(tmp_path / "x.bin")
    command = [str(program), str(library), str(tmp_path / "x.bin"), "4x12", str(tmp_path / "y.bin")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    output = np.fromfile(tmp_path / "y.bin", dtype=np.float32).reshape(4, 8)
    np.testing.assert_array_equal(output, fast(x).numpy())


def test_cpp_refuses_another_shape(library: Path, program: Path, tmp_path: Path) -> None:
    np.zeros((5, 12), dtype=np.float32).tofile(tmp_path / "x.bin")
    command = [str(program), str(library), str(tmp_path / "x.bin"), "5x12", str(tmp_path / "y.bin")]
    process = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert process.returncode == 1
    assert "shape[0] mismatch" in process.stderr
    assert not (tmp_path / "y.bin").exists()


def test_python_without_torch_gives_the_same_outputs(
    tuned: tuple[Optimized, torch.Tensor], library: Path, tmp_path: Path
) -> None:
    fast, x = tuned
    np.save(tmp_path / "x.npy", x.numpy())
    blocked = tmp_path / "blocked"
    for name in ("torch", "tvm", "felixlike"):  # importing them fails, as if they were not installed
        (blocked / name).mkdir(parents=True)
        (blocked / name / "__init__.py").write_text(f"raise ImportError('{name} is not installed')")
    command = [sys.executable, str(EXAMPLES / "run.py"), str(library), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    environment = {**os.environ, "PYTHONPATH": str(blocked)}
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=60)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), fast(x).numpy())


def test_exporting_to_a_directory_is_refused(tuned: tuple[Optimized, torch.Tensor], tmp_path: Path) -> None:
    with pytest.raises(OutputNotWritable, match="directory") as error:
        tuned[0].export_library(tmp_path)
    assert error.value.where == str(tmp_path)
