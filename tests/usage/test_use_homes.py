"""Tests for unusable home folders and failing disks: everything works, with at most one warning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import errno, fcntl, importlib, json, os, sys, warnings
import torch
import felixlike as fx
from felixlike.cli import main

def refuse(*given, **named):
    raise OSError(number, os.strerror(number))

for place in sys.argv[2:]:
    owner, _, name, = place.rpartition(".")
    setattr(importlib.import_module(owner), name, refuse)
number = getattr(errno, sys.argv[1])
told = []
warnings.simplefilter("always")
warnings.showwarning = lambda message, category, *more: told.append([category.__name__, str(message)])

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.GELU()).eval()
x = torch.randn(3, 9)
with torch.no_grad():
    expected = model(x)
    fast = fx.optimize(model, (x,), trials=0, progress=False)
    again = fx.optimize(model, (x,), trials=0, progress=False)
    fast.save("model.flx")
    close = [torch.allclose(run(x), expected, atol=1e-5) for run in (fast, again, fx.load("model.flx"))]
    double = fx.tc.define("def f(float(N) A) -> (O) { O(i) = 2.0 * A(i) }")
    close.append(torch.equal(double(x[0]), 2 * x[0]))
    close.append(torch.equal(fx.tc.define(double.program.source.text)(x[1]), 2 * x[1]))
codes = [main(["cache"]), main(["show", "model.flx"]), main(["cache", "--clear"])]
print(json.dumps([close, codes, [told for told in told if told[0] == "StorageWarning"]]))
"""


def storage_warnings(folder: Path, environment: dict[str, str], *refused: str, number: str = "EIO") -> Any:
    """Run PROGRAM with these variables and failing functions, and return its storage warnings."""
    others = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")}
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, number, *refused],
        cwd=folder,
        env={**others, **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=280,
    )
    close, codes, caught = json.loads(process.stdout.splitlines()[-1])
    assert (set(close), set(codes)) == ({True}, {0}), process
    return caught


@pytest.mark.parametrize(
    "environment",
    [
        {"HOME": "/proc/nobody"},
        {"HOME": "/dev/null"},
        {"XDG_CACHE_HOME": "/proc/nobody", "XDG_DATA_HOME": "/proc/nobody"},
        {"XDG_CACHE_HOME": "file", "XDG_DATA_HOME": "file"},
        {"HOME": "relative"},
    ],
    ids=str,
)
def test_an_unusable_home_warns_once(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "file").touch()
    environment = {n: str(tmp_path / v) if v == "file" else v for n, v in environment.items()}
    if environment.get("HOME") == "relative":  # a relative HOME counts as not set
        environment["XDG_CACHE_HOME"] = str(tmp_path / "file")
    ((_, words),) = storage_warnings(tmp_path, environment)
    assert "Results are kept in memory" in words


def test_a_missing_home_is_created(tmp_path: Path) -> None:
    assert storage_warnings(tmp_path, {"HOME": str(tmp_path / "new" / "home")}) == []


@pytest.mark.parametrize(
    ("refused", "number"),
    [
        (("fcntl.flock",), "ENOSYS"),
        (("fcntl.flock",), "EACCES"),
        (("fcntl.flock",), "ENOLCK"),
        (("felixlike._util.private_files.write",), "EROFS"),
        (("felixlike._util.private_files.write", "fcntl.flock"), "ENOSPC"),
    ],
)
def test_failing_locks_and_writes_warn_once(tmp_path: Path, refused: tuple[str, ...], number: str) -> None:
    ((_, words),) = storage_warnings(tmp_path, {"HOME": str(tmp_path)}, *refused, number=number)
    assert ("cannot be locked" in words) == (refused == ("fcntl.flock",))
