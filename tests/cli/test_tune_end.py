"""Tests for the end of `felixlike tune`: the model is saved first, and closed pipes and signals do not prevent it."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import felixlike as fx
from felixlike import api
from felixlike._util.interrupts import joined
from felixlike.cli import main
from felixlike.errors import (
    FallbackWarning,
    NondeterministicModelWarning,
    OutputNotWritable,
    SearchFailedWarning,
    UnverifiedWarning,
    VerificationFailed,
)

MODEL = """
from torch import nn

def small():
    return nn.Linear(8, 12).eval()
"""

COMMAND = (sys.executable, "-m", "felixlike", "tune")


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    """Return arguments that name a model and an output in a new folder."""
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    (tmp_path / "out").mkdir()
    return [f"{file}:small", "--shape", "input=2x8", "--output", str(tmp_path / "out" / "model.flx")]


# -- in new processes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code", "lines", "trials"),
    [("2>&1 | head -n 1", 141, 1, 1), (">&-", 0, 0, 0), ("> /dev/full", 1, 0, 0)],
)
def test_the_model_is_saved_although_stdout_fails(
    script: str, code: int, lines: int, trials: int, given: list[str], tmp_path: Path
) -> None:
    if "|" in script:  # more than a pipe holds, so that the reader ends before the report is written
        (tmp_path / "model.py").write_text(MODEL + "print('x' * 70000)\n")
    command = " ".join([*COMMAND, *given, "--trials", str(trials), "--strategy", "random"])
    process = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} {script}"], capture_output=True, timeout=240, check=False
    )
    assert (process.returncode, process.stdout.count(b"\n")) == (code, lines)
    assert b"Traceback" not in process.stderr
    assert fx.load(tmp_path / "out" / "model.flx").report.trials == trials


def test_a_signal_during_the_search_saves_the_best_so_far(given: list[str], tmp_path: Path) -> None:
    """The signal arrives twice in a row, as GNU timeout sends it. Ctrl-C is tested in `usage/test_use_command.py`."""
    process = subprocess.Popen(
        [*COMMAND, *given, "--seconds", "500", "--space", "all", "--strategy", "random"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "best" in line:  # a round has started
            break
    process.terminate()
    process.terminate()
    out, error = process.communicate(timeout=240)
    assert (process.returncode, "Traceback" in error) == (143, False)
    assert "Ctrl-C again" in error
    assert "Saved to" in out
    report = fx.load(tmp_path / "out" / "model.flx").report
    assert report.stopped == "interrupted"
    assert report.error < 1e-4


KILLED = """
import os, signal
import torch
from torch import nn

class Net(nn.Linear):
    def forward(self, input):
        if input.dtype is torch.float64:  # where it is compared: as when there is no memory for that
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(input)

def small():
    return Net(8, 12).eval()
"""


def test_the_model_is_saved_before_it_is_verified(given: list[str], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(KILLED)
    process = subprocess.run([*COMMAND, *given, "--trials", "0"], capture_output=True, timeout=240, check=False)
    assert process.returncode == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.unverified.flx"]
    saved = fx.load(tmp_path / "out" / "model.unverified.flx")
    assert saved.report.tasks
    assert "not verified" in saved.report.note
    assert saved(torch.ones(2, 8)).shape == (2, 12)


def test_the_unverified_copy_is_removed_after_verification(given: list[str], tmp_path: Path) -> None:
    assert main(["tune", *given, "--trials", "0", "--quiet"]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.flx"]
    report = fx.load(tmp_path / "out" / "model.flx").report
    assert report.note == ""
    assert report.error < 1e-5


# -- in this process, with a mocked search ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned() -> fx.Optimized:
    return fx.optimize(nn.Linear(8, 12).eval(), torch.randn(2, 8), trials=0, progress=False)


@pytest.fixture
def run(given: list[str], tuned: fx.Optimized, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return run(at_the_end, *arguments), which runs the command and calls `at_the_end` after a mocked search."""

    def command(at_the_end: Callable[[], Any], *arguments: str) -> int:
        def optimize(*_: Any, **__: Any) -> fx.Optimized:
            with joined() as interrupts, interrupts.search():
                pass
            at_the_end()
            return tuned

        monkeypatch.setattr(api, "optimize", optimize)
        return main(["tune", *given, *arguments])

    return command


def test_the_model_is_saved_before_anything_is_printed(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(io.TextIOWrapper):
        def write(self, text: str) -> int:
            saved.append((tmp_path / "out" / "model.flx").exists())
            raise BrokenPipeError

    saved: list[bool] = []
    monkeypatch.setattr(sys, "stdout", Late(io.BytesIO(), encoding="ascii"))
    assert run(lambda: None) == 141
    assert set(saved) == {True}


def test_a_removed_output_folder_is_replaced(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model goes to the current directory without overwriting a file, or to the temporary directory."""
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    for folder in (here, temporary):
        folder.mkdir()
    (here / "model.flx").write_text("another one")
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert run(lambda: shutil.rmtree(tmp_path / "out")) == 1
    out, error = capsys.readouterr()
    assert error.startswith(f"felixlike: {tmp_path}/out/model.flx ")
    assert f"{here}/model-2.flx" in error
    assert f"Saved to {here}/model-2.flx" in out.replace("\n", "")
    assert (here / "model.flx").read_text() == "another one"
    assert isinstance(fx.load(here / "model-2.flx"), fx.Optimized)
    (tmp_path / "out").mkdir()

    def vanish() -> None:
        shutil.rmtree(tmp_path / "out")
        shutil.rmtree(here)

    assert run(vanish, "--quiet") == 1
    assert f"{temporary}/model.flx" in capsys.readouterr().err
    assert isinstance(fx.load(temporary / "model.flx"), fx.Optimized)


def test_a_link_of_another_user_is_not_followed(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dangling link in the temporary directory has the name that the model would get."""
    temporary, victim = tmp_path / "temporary", tmp_path / "victim"
    temporary.mkdir()
    (temporary / "model.flx").symlink_to(victim)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def vanish() -> None:
        shutil.rmtree(tmp_path / "out")
        shutil.rmtree(here)

    assert run(vanish, "--quiet") == 1
    assert not victim.exists()
    assert f"{temporary}/model-2.flx" in capsys.readouterr().err
    assert isinstance(fx.load(temporary / "model-2.flx"), fx.Optimized)


def test_an_error_is_printed_if_no_folder_is_writable(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Any, path: Any) -> None:
        raise OutputNotWritable("there is no room for it", where=str(path))

    monkeypatch.setattr(fx.Optimized, "save", fail)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert run(lambda: None) == 1
    assert capsys.readouterr().err.endswith("out/model.flx: there is no room for it.\n")
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("output", [True, False])
def test_a_wrong_model_is_saved_as_unverified(
    output: bool, run: Callable[..., int], given: list[str], tuned: fx.Optimized, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        error = VerificationFailed("it is off by 5.0e-01", where="Net", remedy="look at .optimized")
        error.optimized = tuned
        raise error

    output_path = Path(given[-1])
    if not output:
        del given[-2:]
    assert run(fail) == 1
    error = capsys.readouterr().err
    assert not output_path.exists()
    if output:
        saved = output_path.with_name("model.unverified.flx")
        assert error.startswith("felixlike: it is off by 5.0e-01. ")
        assert str(saved) in error
        assert isinstance(fx.load(saved), fx.Optimized)
    else:
        assert error.startswith("felixlike: it is off by 5.0e-01. ")
        assert ".flx" not in error


@pytest.mark.parametrize(
    ("kind", "code"),
    [(UnverifiedWarning, 0), (NondeterministicModelWarning, 0), (FallbackWarning, 0), (SearchFailedWarning, 1)],
)
def test_warnings_are_printed_as_sentences(
    kind: type[Warning], code: int, run: Callable[..., int], given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(lambda: warnings.warn(kind("Net: odd."), stacklevel=1)) == code
    assert capsys.readouterr().err == "felixlike: Net: odd.\n"
    assert Path(given[-1]).exists()


def test_warnings_of_other_packages_are_not_printed(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(DeprecationWarning, match="of torch's"):
        assert run(lambda: warnings.warn("one of torch's", DeprecationWarning, stacklevel=1)) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_during_saving_is_delayed(
    number: signal.Signals,
    code: int,
    run: Callable[..., int],
    given: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save = fx.Optimized.save

    def save_after_signal(optimized: fx.Optimized, path: Any) -> None:
        signal.raise_signal(number)
        save(optimized, path)

    monkeypatch.setattr(fx.Optimized, "save", save_after_signal)
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert run(lambda: None) == code
    assert Path(given[-1]).exists()
    assert "Saved to" in capsys.readouterr().out
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_missing_compiler_is_reported_before_the_search(
    run: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    searched: list[int] = []
    assert run(lambda: searched.append(1)) == 1
    assert "C compiler" in capsys.readouterr().err
    assert not searched


def test_a_signal_before_the_search_exits(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(given[0].partition(":")[0])
    file.write_text(f"import os\ndef small(): os.kill({os.getpid()}, {int(signal.SIGTERM)})")
    assert main(["tune", *given]) == 143
    assert capsys.readouterr().err == "felixlike: terminated\n"
