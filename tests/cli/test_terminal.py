"""Tests for the command's output: pipes, closed streams, encodings, Ctrl-C, usage and help."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.stores import TASK, record, timed

from felixlike import records
from felixlike._encoding import HANDLER
from felixlike.cli import doctor, main, show
from felixlike.errors import InvalidArtefact

COMMAND = (sys.executable, "-m", "felixlike")
COMMANDS = ("tune", "resume", "show", "watch", "merge", "export", "import", "compact", "compare", "explain", "doctor")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("store") / "runs.sqlite"
    with records.open(path) as connection:
        connection.append(TASK, record(timed(2e-6)))
    return str(path)


def command(script: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash in which $F is the command."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; F='{' '.join(COMMAND)}'; {script}"],
        capture_output=True,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )


# -- in new processes: few, since each takes seconds ------------------------------------------------------------------


@pytest.mark.parametrize("script", ["$F show {store}", "$F --help", "$F", "PYTHONUNBUFFERED=1 $F", "$F tun 2>&1"])
def test_a_closed_pipe_prints_no_error(script: str, store: str) -> None:
    process = command(f"{{ sleep 0.3; {script.format(store=store)}; }} | true", PYTHONUNBUFFERED="")
    assert (process.returncode, process.stderr) == (2 if "tun" in script else 141, b"")


def test_a_command_finishes_without_a_reader(tmp_path: Path) -> None:
    """The model file prints to a closed pipe, and the command continues."""
    file, done = tmp_path / "model.py", tmp_path / "done"
    file.write_text(f"print('a' * 100000)\nprint('b' * 100000)\nopen({str(done)!r}, 'w')\ndef f(): 1 / 0")
    process = command(f"{{ sleep 0.3; $F tune {file}:f; }} | true")
    assert process.returncode == 1
    assert b"ZeroDivisionError" in process.stderr
    assert done.exists()


def test_unbuffered_output_is_written_immediately(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("import os\nprint('ready')\nos._exit(3)")
    process = command(f"PYTHONUNBUFFERED=1 $F tune {file}:f")
    assert (process.returncode, process.stdout) == (3, b"ready\n")


@pytest.mark.parametrize(
    ("environment", "signs"),
    [
        ({"PYTHONIOENCODING": "ascii"}, b"2 us"),
        ({"PYTHONIOENCODING": "latin-1"}, "2 µs".encode("latin-1")),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, b"2 us"),
        ({"PYTHONIOENCODING": "utf-8"}, "2 µs".encode()),
    ],
)
def test_characters_that_an_encoding_lacks_are_replaced(environment: dict[str, str], signs: bytes, store: str) -> None:
    process = command(f"$F show {store}", **environment)
    assert (process.returncode, process.stderr) == (0, b"")
    assert signs in process.stdout


@pytest.mark.parametrize(
    ("script", "code", "error"),
    [
        ("$F show {store} >&-", 0, b""),
        ("$F show nowhere 2>&-", 1, b""),
        ("$F show nowhere >&- 2>&- <&-", 1, b""),
        ("$F show {store} > /dev/full", 1, b"felixlike: No space left on device\n"),
    ],
)
def test_closed_and_full_streams(script: str, code: int, error: bytes, store: str) -> None:
    process = command(script.format(store=store))
    assert (process.returncode, process.stdout, process.stderr) == (code, b"", error)


def test_ctrl_c_prints_one_line(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("import sys, time\nprint('ready', flush=True)\ndef f(): time.sleep(60)")
    process = subprocess.Popen(
        [*COMMAND, "tune", f"{file}:f"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60)[1] == b"felixlike: interrupted\n"
    assert process.returncode == 130


def test_an_interrupt_in_exec_prints_one_line(tmp_path: Path) -> None:
    """Python records an interrupt in `exec` and would end the process by a signal."""
    file = tmp_path / "model.py"
    file.write_text("def f(): exec('raise KeyboardInterrupt')")
    process = command(f"$F tune {file}:f")
    assert (process.returncode, process.stderr) == (130, b"felixlike: interrupted\n")


# -- in this process --------------------------------------------------------------------------------------------------


class BrokenStream(io.TextIOWrapper):
    """A caller's stream whose pipe is closed."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_broken_stdout_of_the_calling_program(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    monkeypatch.setattr(sys, "stdout", BrokenStream(io.BytesIO(), encoding="utf-8"))
    assert main(["show", store]) == 141


@pytest.mark.parametrize("arguments", [["show", "{store}"], [], ["--help"], ["tune", "--help"], ["doctor"]])
def test_all_output_can_be_written_in_ascii(arguments: list[str], store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    if "--help" in arguments:
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
    else:
        assert main([a.format(store=store) for a in arguments]) == 0
    out.flush()
    assert out.buffer.getvalue().isascii()
    assert len(out.buffer.getvalue()) > 50


def test_names_in_files_cannot_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.sqlite"
    with records.open(path) as connection:
        connection.append(replace(TASK, name="\x1b]0;title\x07"), record(timed(2e-6)))
    assert main(["show", str(path)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert main(["show", "\x1b[2J"]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_an_error_handler_of_the_stream_is_not_replaced(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["show", store]) == 0
    assert out.errors == "replace" != HANDLER
    out.flush()
    assert b"2 ?s" in out.buffer.getvalue()


def test_standard_streams_may_be_none(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["show", store]) == 0
    assert main(["show", "nowhere"]) == 1
    assert sys.stdout is sys.stderr is None


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "felixlike: interrupted\n"),
        (InvalidArtefact("it is damaged", where="a.flx"), 1, "felixlike: a.flx: it is damaged.\n"),
        (PermissionError(13, "Permission denied", "a.flx"), 1, "felixlike: a.flx: Permission denied\n"),
        (OSError(28, "No space left on device"), 1, "felixlike: No space left on device\n"),
        (OSError("odd"), 1, "felixlike: odd\n"),
    ],
)
def test_errors_print_a_line_and_set_the_exit_code(
    raised: BaseException,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: Any) -> int:
        raise raised

    monkeypatch.setattr(show, "run", fail)
    monkeypatch.setattr(doctor, "run", fail)
    assert main(["show", "a.flx"]) == code
    assert capsys.readouterr().err == words
    if isinstance(raised, Exception):
        with pytest.raises(type(raised)):
            main(["show", "a.flx", "--traceback"])


def test_an_internal_error_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(show, "run", fail)
    with pytest.raises(ZeroDivisionError):
        main(["show", "a.flx"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tun"], r"'tun'.* one of tune, .*\(did you mean 'tune'\?\)"),
        (["frobnicate"], "'frobnicate'.* one of tune, resume, show"),
        (["tune"], "the following arguments are required: MODEL"),
        (["tune", "m.py:f", "--quite"], r"tune: error: .*--quite \(did you mean --quiet\?\)"),
        (
            ["tune", "m.py:f", "--output=x", "--sed=3"],
            r"tune: error: .*--sed=3 \(did you mean --seed\?\)",
        ),
        (["tune", "m.py:f", "--rounds", "x"], "argument --rounds: invalid int value: 'x'"),
        (["show", "a", "b"], "show: error: .* b "),
        (["--colour"], "the following arguments are required: COMMAND"),
    ],
)
def test_usage_errors(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: felixlike")
    assert re.search(words, err.replace("\n", " "))


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    for name in COMMANDS:
        assert f"    {name} " in listed
    monkeypatch.setattr(sys, "argv", ["felixlike"])
    assert main() == 0
    assert capsys.readouterr().out == listed


@pytest.mark.parametrize("width", ["20", "40", "60", "80", "200"])
@pytest.mark.parametrize(
    "name", ["tune", "resume", "show", "merge", "export", "import", "compact", "explain", "doctor"]
)
def test_help_of_every_command_at_every_width(
    name: str, width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: felixlike {name}"[: int(width) - 2])
    assert "--traceback" in out
    assert err == ""


@pytest.mark.parametrize("width", [None, 40, 60, 80])
def test_text_of_doctor_s_findings(golden: Callable[[str, str], None], width: int | None) -> None:
    from felixlike.cli.finding import Finding, findings_text

    findings = [
        Finding("Python", "3.11.7"),
        Finding("processor", "AMD EPYC 9R14 96-Core Processor: 2 cores, 512-bit vectors, L1 32 KiB, L2 1024 KiB"),
        Finding(
            "C compiler", "none", "saving a model needs one to link", "Install gcc; tuning works without.", fatal=False
        ),
        Finding("apache-tvm-ffi", "0.1.15", "0.1.14* is needed", "Install with the constraints file."),
    ]
    golden("doctor" if width is None else f"doctor_{width}", findings_text(findings, width=width))
    assert findings_text([]) == ""
