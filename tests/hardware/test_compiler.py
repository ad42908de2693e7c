"""Which C compiler is taken."""

import shutil

import pytest

from felixlike.hardware import COMPILERS, c_compiler


def test_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "my-cc")
    assert c_compiler() == "my-cc"


def test_else_the_first_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in ("clang", "c++") else None)
    assert c_compiler() == "/bin/clang"
    assert COMPILERS.index("clang") < COMPILERS.index("c++")


def test_there_may_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert c_compiler() is None
