"""Tests for the finding of `doctor` if TVM cannot be loaded."""

from __future__ import annotations

import sys

import pytest

from felixlike import _tvm
from felixlike.cli import doctor
from felixlike.errors import VersionMismatch


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            VersionMismatch("apache-tvm is 0.20", where="installed packages", remedy="install 0.27"),
            "apache-tvm is 0.20",
        ),
        (ImportError("libtvm.so: cannot open shared object file"), "cannot open shared object file"),
    ],
)
def test_a_tvm_that_does_not_load_is_a_problem(error: Exception, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(_tvm, "load", fail)
    (finding,) = doctor._tvm_versions()
    assert finding.problem
    assert finding.value == "does not load"
    assert said in finding.problem


def test_an_egglog_that_does_not_load_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._guarded("smooth formulas", doctor._smooth_formulas, "").problem == ""
    monkeypatch.setitem(sys.modules, "egglog", None)
    finding = doctor._guarded("smooth formulas", doctor._smooth_formulas, "install it again")
    assert finding.value == "failed"
    assert "egglog" in finding.problem
