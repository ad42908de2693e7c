"""Tests for unusable home folders and failing disks: everything works, with at most one warning."""

from __future__ import annotations

import errno
import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import felixlike as fx
from felixlike.cli import main
from felixlike.errors import StorageWarning
from felixlike.tc import compiled

HOMES = ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")


def storage_warnings(folder: Path) -> list[str]:
    """Use everything that keeps files for later runs, and return the storage warnings. folder: for a model's file."""
    path = folder / "model.flx"
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(9, 7), nn.GELU()).eval(), torch.randn(3, 9)
    with warnings.catch_warnings(record=True) as told, torch.no_grad():
        warnings.simplefilter("always")
        fast = fx.optimize(model, (x,), trials=0, progress=False)
        again = fx.optimize(model, (x,), trials=0, progress=False)
        fast.save(path)
        for run in (fast, again, fx.load(path)):
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
        double = fx.tc.define("def f(float(N) A) -> (O) { O(i) = 2.0 * A(i) }")
        assert torch.equal(double(x[0]), 2 * x[0])
        assert torch.equal(fx.tc.define(double.program.source.text)(x[1]), 2 * x[1])
        assert [main(["cache"]), main(["show", str(path)]), main(["cache", "--clear"])] == [0, 0, 0]
    return [str(warning.message) for warning in told if warning.category is StorageWarning]


def _set_homes(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Set these variables and no other that names a home, as in a new process that has compiled nothing."""
    monkeypatch.setattr(compiled, "_memory", {})
    for name in HOMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_a_process_without_a_home_warns_once(tmp_path: Path) -> None:
    others = {name: value for name, value in os.environ.items() if name not in HOMES}
    process = subprocess.run(
        [sys.executable, __file__],
        cwd=tmp_path,
        env={**others, "HOME": "/proc/nobody"},
        check=True,
        capture_output=True,
        text=True,
        timeout=280,
    )
    (words,) = json.loads(process.stdout.splitlines()[-1])
    assert "Results are kept in memory" in words


@pytest.mark.parametrize(
    "environment",
    [
        {"HOME": "/dev/null"},
        {"XDG_CACHE_HOME": "/proc/nobody", "XDG_DATA_HOME": "/proc/nobody"},
        {"XDG_CACHE_HOME": "file", "XDG_DATA_HOME": "file"},
        {"HOME": "relative"},
    ],
    ids=str,
)
@pytest.mark.usefixtures("own_cache")
def test_an_unusable_home_warns_once(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    environment = {n: str(tmp_path / v) if v == "file" else v for n, v in environment.items()}
    if environment.get("HOME") == "relative":  # a relative HOME counts as not set
        environment["XDG_CACHE_HOME"] = str(tmp_path / "file")
    _set_homes(environment, monkeypatch)
    monkeypatch.chdir(tmp_path)
    (words,) = storage_warnings(tmp_path)
    assert "Results are kept in memory" in words


@pytest.mark.usefixtures("own_cache")
def test_a_missing_home_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _set_homes({"HOME": str(tmp_path / "new" / "home")}, monkeypatch)
    assert storage_warnings(tmp_path) == []
    assert (tmp_path / "new" / "home").is_dir()


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
@pytest.mark.usefixtures("own_cache")
def test_failing_locks_and_writes_warn_once(
    tmp_path: Path, refused: tuple[str, ...], number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        code = getattr(errno, number)
        raise OSError(code, os.strerror(code))

    for place in refused:
        owner, _, name = place.rpartition(".")
        monkeypatch.setattr(importlib.import_module(owner), name, refuse)
    _set_homes({"HOME": str(tmp_path)}, monkeypatch)
    (words,) = storage_warnings(tmp_path)
    assert ("cannot be locked" in words) == (refused == ("fcntl.flock",))


if __name__ == "__main__":
    print(json.dumps(storage_warnings(Path.cwd())))
