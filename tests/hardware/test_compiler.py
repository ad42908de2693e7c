"""Choice of the C compiler."""

import shutil

import pytest

from felixlike.hardware import COMPILERS, c_compiler


def test_the_variable_cc_has_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "my-cc")
    assert c_compiler() == "my-cc"


def test_the_first_installed_compiler_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in ("clang", "c++") else None)
    assert c_compiler() == "/bin/clang"
    assert COMPILERS.index("clang") < COMPILERS.index("c++")


def test_no_compiler_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert c_compiler() is None


@pytest.mark.parametrize("named", ["ccache my-cc", "my-cc -m64", " /usr/bin/ccache my-cc -O2 "])
def test_launchers_and_options_in_cc_are_left_out(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("CC", named)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name == "gcc" else None)
    assert c_compiler() == "my-cc"


def test_a_compiler_with_a_space_in_its_path_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/opt/my tools/cc")
    monkeypatch.setattr(shutil, "which", lambda name: name)
    assert c_compiler() == "/opt/my tools/cc"
