"""Tests for the command: model files, wrong arguments, terminals and signals."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

import felixlike as fx
from felixlike.cli import main

MODEL = """
import torch
from torch import nn

print("hello from the file")

def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU()).eval()

def with_inputs():
    return small(), (torch.ones(2, 16),)

def with_named_inputs():
    return small(), {"input": torch.ones(2, 16)}

class Model(nn.Linear):
    def __init__(self):
        super().__init__(16, 4)

class Sum(nn.Module):
    def forward(self, a, b):
        return a + b

def two():
    return Sum()

def ids():
    return nn.Embedding(10, 4)

def needs(size):
    return nn.Linear(size, 4)

def nothing():
    small()

def raises():
    return small().forward(1 / 0)

def quits():
    raise SystemExit(3)

number = 3
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "wrong.py").write_text("def f(:\n    pass\n")
    (tmp_path / "other.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "text.flx").write_text("hello")
    return "model.py"


GOOD: dict[str, str] = {
    "a factory": "tune model.py:small --shape 2x16 --trials 0 --output out.flx",
    "named shapes": "tune model.py:small --shape input=2x16 --trials 0 --output out.flx",
    "with a type": "tune model.py:small --shape input=2x16:float32 --rounds 0 --output out.flx",
    "inputs of the file": "tune model.py:with_inputs --rounds 0 --output out.flx",
    "named inputs of the file": "tune model.py:with_named_inputs --rounds 0 --output out.flx",
    "a class": "tune model.py:Model --shape 2x16 --seconds 0 --output out.flx",
    "a dot before it": "tune ./model.py:small --shape 2x16 --rounds 0 --output ./out.flx",
    "quiet": "tune model.py:with_inputs --rounds 0 --quiet --output out.flx",
}


@pytest.mark.parametrize("way", GOOD)
def test_models_are_tuned_and_shown(way: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(GOOD[way].split()) == 0
    printed = capsys.readouterr()
    assert ("Saved to" in printed.out) == (way != "quiet")
    assert "Traceback" not in printed.err
    assert fx.load("out.flx")(torch.ones(2, 16)).shape[0] == 2
    assert main(["show", "out.flx"]) == 0
    assert "Maximum relative error" in capsys.readouterr().out


# Arguments of the command, and words of the error message.
BAD: dict[str, tuple[str, str]] = {
    "a missing file": ("tune nowhere.py:f", "nowhere.py: "),
    "no function": ("tune model.py", "model.py:factory"),
    "a wrong name": ("tune model.py:smal --shape 2x16", "did you mean 'small'"),
    "no function at all": ("tune model.py:number --shape 2x16", "number is an int"),
    "one with arguments": ("tune model.py:needs --shape 2x16", "needs 1 argument: size"),
    "one without a result": ("tune model.py:nothing --shape 2x16", "return model"),
    "one that raises": ("tune model.py:raises --shape 2x16", "raises ZeroDivisionError"),
    "one that quits": ("tune model.py:quits --shape 2x16", "sys.exit(3)"),
    "a file with an error": ("tune wrong.py:f", "SyntaxError"),
    "a missing module": ("tune other.py:f", "nowhere_to_be_found"),
    "no shape": ("tune model.py:small", "--shape 1x3x224x224"),
    "too few shapes": ("tune model.py:two --shape 2x16", "one --shape for each"),
    "floats for ids": ("tune model.py:ids --shape input=2x4", "--shape ids=1x64:int64"),
    "a missing package": ("tune nowhere.net:f", "module nowhere"),
    "a wrong shape": ("tune model.py:small --shape 2,16", "write "),
    "a shape of nothing": ("tune model.py:small --shape 0x16", "size 0 is not positive"),
    "a shape of another input": ("tune model.py:small --shape y=2x16", "'y'"),
    "an unknown type": ("tune model.py:small --shape 2x16:float", "'float'"),
    "shapes half named": ("tune model.py:small --shape 2x16 --shape y=2", "name all of them"),
    "negative trials": ("tune model.py:with_inputs --trials -3", "expected trials to be an integer ≥ 0, got -3"),
    "a wrong target": ("tune model.py:with_inputs --target gpu", "'gpu'"),
    "a wrong space": ("tune model.py:with_inputs --space most", "'most' is not a design space"),
    "an output nowhere": ("tune model.py:with_inputs --output no/where.flx", "there is no directory"),
    "an output that is a folder": ("tune model.py:with_inputs --output .", "got a directory"),
    "a store that is none": ("tune model.py:with_inputs --store text.flx", "text.flx"),
    "a huge seed": ("tune model.py:with_inputs --seed 99999999999999999999", "99999999999999999999"),
    "show nothing": ("show nowhere", "nowhere: "),
    "show text": ("show text.flx", "."),
    "show a folder": ("show .", "directory"),
    "resume nothing": ("resume nowhere.sqlite", "nowhere.sqlite"),
    "merge nothing": ("merge all.sqlite nowhere.sqlite", "nowhere.sqlite"),
    "export nothing": ("export nowhere.sqlite folder", "nowhere.sqlite"),
    "compact nothing": ("compact nowhere.sqlite", "nowhere.sqlite"),
    "explain no task": ("explain model.py:with_inputs softmax", "task 'softmax'"),
    "explain no sketch": ("explain model.py:with_inputs fused_matmul_add_relu --sketch 99", "sketch 99 "),
}


@pytest.mark.parametrize("way", BAD)
def test_errors_are_one_line_without_a_traceback(way: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, words = BAD[way]
    assert main(arguments.split()) == 1
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if line.startswith("felixlike: ")]
    assert lines, printed.err
    assert words in lines[0]
    assert "Traceback" not in printed.err


USAGE: dict[str, tuple[str, str]] = {
    "a wrong command": ("tunee model.py:small", "did you mean 'tune'"),
    "a wrong option": ("tune model.py:small --trails 3", "did you mean --trials"),
    "no model": ("tune", "MODEL"),
    "no number": ("tune model.py:small --trials many", "many"),
    "no value": ("tune model.py:small --trials", "expected one argument"),
}


@pytest.mark.parametrize("way", USAGE)
def test_wrong_usage_exits_with_code_2(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, words = USAGE[way]
    with pytest.raises(SystemExit) as stop:
        main(arguments.split())
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("typed", ["--help", "--version", "tune --help", "doctor", "explain model.py:with_inputs"])
def test_help_version_doctor_and_explain_print_text(typed: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(typed.split())
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 0
    assert capsys.readouterr().out


# -- in new processes: few, since each takes seconds ------------------------------------------------------------------

COMMAND = f"{sys.executable} -m felixlike"


def test_reports_fit_an_ascii_terminal_of_forty_columns(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stdout", written := io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert main(["tune", "model.py:with_inputs", "--rounds", "0"]) == 0
    written.flush()
    assert isinstance(written.buffer, io.BytesIO)
    lines = written.buffer.getvalue().decode("ascii").splitlines()
    assert any("Maximum relative error" in line for line in lines)
    assert max(map(len, lines)) <= 40


def test_a_terminal_shows_a_live_line(file: str) -> None:
    """The command shows a live line in a terminal and restores the cursor at the end."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND.split(), "tune", "model.py:with_inputs", "--trials", "2", "--strategy", "random"],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(terminal)
    shown = b""
    while chunk := _read(controller):
        shown += chunk
    printed = process.communicate(timeout=60)[0]
    os.close(controller)
    assert process.returncode == 0
    assert b"candidate" in printed
    assert b"\x1b[?25l" not in shown or b"\x1b[?25h" in shown  # a cursor that was hidden is back
    assert b"Traceback" not in shown


def _read(controller: int) -> bytes:
    try:
        return os.read(controller, 65536)
    except OSError:  # the other end is closed
        return b""


def test_an_interrupted_run_is_saved_and_resumed(file: str) -> None:
    """Ctrl-C saves the best schedules so far, and `resume` continues the run."""
    arguments = "tune model.py:with_inputs --space all --strategy random --seconds 600 --store runs.sqlite"
    process = subprocess.Popen(
        [*COMMAND.split(), *arguments.split(), "--output", "out.flx"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not _measured("runs.sqlite"):
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors, errors
    assert b"interrupted" in printed + errors
    assert fx.load("out.flx")(torch.ones(2, 16)).shape == (2, 24)
    assert main(["resume", "runs.sqlite", "--trials", "1", "--output", "again.flx", "--quiet"]) == 0
    assert Path("again.flx").exists()


def _measured(store: str) -> bool:
    """Return whether the store holds a measurement."""
    import sqlite3

    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=1)) as connection:
            return bool(connection.execute("SELECT count(*) FROM measurements").fetchone()[0])
    except sqlite3.Error:
        return False
