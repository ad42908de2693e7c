"""Tests that `felixlike resume` asks before it runs a stored command of another user."""

from __future__ import annotations

import json
import os
import platform
import pty
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from felixlike import records
from felixlike.cli import authorship, main
from felixlike.costmodel.weights import shipped
from felixlike.records.schema import sealed

MODEL = """
import pathlib
from torch import nn

pathlib.Path(__file__).with_suffix(".ran").touch()

def small():
    return nn.Linear(8, 12).eval()
"""


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def store(file: Path, tmp_path: Path) -> Path:
    """Return a store with a command of this user."""
    path = tmp_path / "runs.sqlite"
    arguments = ["--shape", "input=2x8", "--trials", "0", "--store", str(path), "--quiet"]
    assert main(["tune", f"{file}:small", *arguments]) == 0
    file.with_suffix(".ran").unlink()
    return path


def _ran(file: Path) -> bool:
    return file.with_suffix(".ran").exists()


def _change(store: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Append a changed command with a right checksum, as anyone with write access to the file can."""
    with records.open(store) as connection:
        stored_command = json.loads(connection.commands()[-1])
        change(stored_command)
        with connection.file.transaction():
            connection.add_rows("commands", [sealed((json.dumps(stored_command),))])


def test_a_command_of_this_user_is_run(store: Path, file: Path) -> None:
    assert main(["resume", str(store), "--quiet"]) == 0
    assert _ran(file)


OTHERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "without a mark": lambda noted: noted.pop("mark"),
    "another seed": lambda noted: noted.update(seed=1),
    "another mark": lambda noted: noted.update(mark="0" * 64),
    "a mark of another kind": lambda noted: noted.update(mark=None),
    "a mark that is no ASCII": lambda noted: noted.update(mark="ä"),
    "of an older version": lambda noted: [noted.pop(name) for name in ("mark", "space", "precision")],
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_a_command_of_another_user_is_shown_and_not_run(
    change: Callable[[dict[str, Any]], Any], store: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _change(store, change)
    assert main(["resume", str(store), "--quiet"]) == 1
    assert not _ran(file)
    error = capsys.readouterr().err
    assert error.startswith(f"felixlike: {store}: ")
    assert f": felixlike tune {file}:small " in error
    assert "--shape=input=2x8 --target=cpu --trials=0" in error
    assert "--yes" in error


def test_yes_runs_the_command_and_signs_it_for_this_user(store: Path, file: Path) -> None:
    _change(store, OTHERS["without a mark"])
    assert main(["resume", str(store), "--quiet", "--yes"]) == 0
    assert _ran(file)
    assert main(["resume", str(store), "--quiet"]) == 0


def _moved(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return store.rename(store.with_name("moved.sqlite"))


def _other_machine(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(platform, "node", lambda: "another")
    return store


def _other_user(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(store.parent / "another"))
    return store


def _open_key(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (key,) = Path(platformdirs.user_data_dir("felixlike")).rglob("commands.key")
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o622)
    return store


@pytest.mark.parametrize("elsewhere", [_moved, _other_machine, _other_user, _open_key])
def test_a_signature_holds_for_one_path_machine_and_user(
    elsewhere: Callable[[Path, pytest.MonkeyPatch], Path], store: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["resume", str(elsewhere(store, monkeypatch)), "--quiet"]) == 1
    assert not _ran(file)


def test_without_a_key_file_the_command_is_not_run(
    store: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    assert authorship.mark(store, {}) == ""
    assert not authorship.is_ours("", store, {})
    assert main(["resume", str(store), "--quiet"]) == 1
    assert not _ran(file)


def test_a_user_without_a_home_has_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "runs.sqlite"

    def unknown(_: int) -> Any:
        raise KeyError("getpwuid(): uid not found")

    for name in ("XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert authorship.mark(store, {}) == ""
    assert not authorship.is_ours("", store, {})
    assert sorted(tmp_path.iterdir()) == before


def test_a_command_of_this_user_with_fewer_options_is_run(store: Path, file: Path) -> None:
    """As an earlier version of felixlike stored it."""

    def earlier(command: dict[str, Any]) -> None:
        del command["weights"], command["mark"]
        command["mark"] = authorship.mark(store, command)

    _change(store, earlier)
    assert main(["resume", str(store), "--quiet"]) == 0
    assert _ran(file)


@pytest.mark.parametrize(
    "wrong",
    [["--strategy", "nope"], ["--trials", "-1"], ["--target", "nope"], ["--planner", "nope"], ["--weights", "nope.pt"]],
)
def test_a_refused_command_is_not_the_one_to_resume(wrong: list[str], store: Path, file: Path) -> None:
    assert main(["tune", f"{file}:small", "--shape", "input=2x8", "--store", str(store), "--quiet", *wrong]) == 1
    with records.open(store) as opened:
        assert len(opened.commands()) == 1


def test_weights_are_resumed(store: Path, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copyfile(str(shipped("cpu")), tmp_path / "mine.pt")
    monkeypatch.chdir(tmp_path)
    arguments = ["--shape", "input=2x8", "--trials", "0", "--store", str(store), "--quiet", "--weights", "mine.pt"]
    assert main(["tune", f"{file}:small", *arguments]) == 0
    with records.open(store) as opened:
        assert json.loads(opened.commands()[-1])["weights"] == str(tmp_path / "mine.pt")
    (tmp_path / "mine.pt").unlink()
    assert main(["resume", str(store), "--quiet"]) == 1


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a model of another kind": (lambda noted: noted.update(model=["x"]), "model is a list"),
    "trials of another kind": (lambda noted: noted.update(trials=True), "trials is a bool"),
    "a shape of another kind": (lambda noted: noted.update(shape=[1]), "shape is "),
    "a dimension of another kind": (lambda noted: noted.update(dim=[1]), "dim is "),
    "a name missing": (lambda noted: noted.pop("target"), "'target'"),
    "hidden text": (lambda noted: noted.update(output="x\x1b[2K"), "unprintable"),
    "turned text": (lambda noted: noted.update(output="x\u202etxt"), "unprintable"),
}


@pytest.mark.parametrize(("change", "words"), WRONG.values(), ids=WRONG)
def test_invalid_commands_are_refused(
    change: Callable[[dict[str, Any]], Any], words: str, store: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _change(store, change)
    assert main(["resume", str(store), "--yes"]) == 1
    assert words in capsys.readouterr().err
    assert not _ran(file)


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_resume_asks_on_a_terminal(answer: str, code: int, store: Path, file: Path) -> None:
    _change(store, OTHERS["without a mark"])
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "felixlike", "resume", str(store), "--quiet"],
        stdin=terminal,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    while b"Run it? [y/N] " not in shown:
        shown += os.read(controller, 65536)
    assert f"felixlike tune {file}:small".encode() in shown.replace(b"\r\n", b"")
    os.write(controller, f"{answer}\n".encode())
    assert process.wait(timeout=120) == code
    os.close(controller)
    assert _ran(file) == (code == 0)
