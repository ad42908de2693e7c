"""Tests for `felixlike tc`, which runs and tunes a definition in a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from felixlike.cli import main
from felixlike.tc import trial

_PROGRAM = """# a product, and what is accumulated into
def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }
def more(float(N,4) A, int32(N) I) -> (O, P) { O(i) += A(i, j) P(i) = A(I(i), 0) }
def wrong(float(N) A) -> (O) { O(i) = A(i) + Q(i) }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mm.tc"
    path.write_text(_PROGRAM, encoding="utf-8-sig")  # as editors of Windows save it
    return path


def test_a_file_is_run_and_tuned(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tc", str(file), "--name", "mm", "--size", "M=8", "--size", "K=16", "--size", "N=32"]
    assert main([*arguments, "--tune", "--trials", "2", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "C: float32[8, 32]" in printed
    assert "of tuning (" in " ".join(printed.split())
    assert printed.splitlines()[-1].endswith("per call, tuned")


def test_accumulated_outputs_and_indices_get_generated_inputs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tc", str(file), "--name", "more", "--size", "N=8", "--explain"]) == 0
    printed = capsys.readouterr().out
    assert "O: float32[8]" in printed
    assert "checked in every call: 0 <= I(i) <= 7" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--name", "wrong"], "undefined variable `Q`"),
        ([], "3 definitions: mm, more, wrong"),
        (["--name", "mm", "--size", "Q=3"], "size 'Q'"),
        (["--name", "mm", "--size", "M=0"], "--size: .*'M=0'"),
        (["--name", "mm", "--size", f"M={'9' * 5000}"], "--size: .*with a positive size"),
        (["--name", "mm", "--store", "runs.sqlite"], "--store is for --tune"),
    ],
)
def test_errors_of_definitions_and_sizes_are_reported(
    file: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tc", str(file), *arguments]) == 1
    assert re.search(words, " ".join(capsys.readouterr().err.split()))


def test_sizes_beyond_the_memory_are_reported(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "free_memory_bytes", lambda: 2**30)
    assert main(["tc", str(file), "--name", "mm", "--size", "M=16384", "--size", "N=16384"]) == 1
    assert "mm: the inputs and outputs need 1.0 GiB, but only 1.0 GiB are available" in capsys.readouterr().err


def test_a_missing_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tc", str(tmp_path / "none.tc")]) == 1
    assert "none.tc" in capsys.readouterr().err.replace("\n", "")


def test_the_schedule_tree_and_c_are_printed_and_nothing_is_run(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tc", str(file), "--name", "mm", "--size", "M=8", "--schedule-tree", "--fusion", "Min"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# mm, M = 8, K = 64, N = 64, fusion Min\n")
    assert "coincident: [ 1, 1, 0 ]" in printed
    assert "per call" not in printed
    assert main(["tc", str(file), "--name", "mm", "--size", "M=8", "--c"]) == 0
    printed = capsys.readouterr().out
    assert "      C[m][n] = 0.0f;" in printed
    assert "per call" not in printed
    assert main(["tc", str(file), "--name", "mm", "--fusion", "Most"]) == 1
    assert "'Most'" in capsys.readouterr().err
