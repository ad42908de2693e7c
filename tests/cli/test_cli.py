"""The command: tune, show, doctor; errors in a sentence."""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path

import pytest

from felixlike.cli import main

OLD = Path(__file__).parents[1] / "data" / "store_version_1.sqlite"

MODEL = """
import torch
from torch import nn

def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU()).eval()

def with_inputs():
    return small(), (torch.randn(2, 64),)

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_tune_and_show(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, store = tmp_path / "model.flx", tmp_path / "runs.sqlite"
    arguments = ["tune", f"{file}:small", "--shape", "input=2x64", "--trials", "3", "--space", "all"]
    assert main([*arguments, "--output", str(output), "--store", str(store)]) == 0
    printed = capsys.readouterr().out
    assert "3 candidates in 1 rounds" in printed
    assert f"Saved to {output}" in printed.replace("\n", "")
    assert main(["show", str(output)]) == 0
    assert "the trials were used up" in " ".join(capsys.readouterr().out.split())
    assert main(["show", str(store)]) == 0
    assert "3 measurements of 1 workloads" in capsys.readouterr().out


def test_quiet_is_silent_and_factories_may_bring_inputs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", f"{file}:with_inputs", "--trials", "1", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tune", "{file}"], "the file alone does not say which model"),
        (["tune", "{file}:large"], "there is no 'large' in the file"),
        (["tune", "{file}:number"], "number is not a function"),
        (["tune", "nowhere.py:f"], "there is no such file"),
        (["tune", "nowhere.onnx"], "there is no such file"),
        (["tune", "{file}:small", "--shape", "input=2x-1"], "input"),
        (["tune", "{file}:small", "--output", "/nowhere/m.flx"], "there is no directory"),
        (["tune", "{file}:with_inputs", "--rounds", "-2"], "rounds is -2"),
        (["show", "nowhere.flx"], "there is no such file"),
        (["show", "{file}"], "damaged or of another kind"),
        (["resume", "nowhere.sqlite"], "there is no such file"),
        (["resume", str(OLD)], "no `felixlike tune` has used it"),
        (["merge", "{file}.sqlite", "nowhere.sqlite"], "there is no such file"),
        (["compact", "nowhere.sqlite"], "there is no such file"),
        (["export", "nowhere.sqlite", "{file}.db"], "there is no such file"),
        (["export", str(OLD), "{file}.db", "--best", "-1"], "best is -1"),
        (["import", "nowhere", "{file}.sqlite"], "there is no database_workload.json that can be read"),
    ],
)
def test_problems_are_one_sentence(
    arguments: list[str], words: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([a.replace("{file}", str(file)) for a in arguments]) == 1
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("felixlike: ")
    assert words in error
    assert "Traceback" not in error


def test_resume_does_what_is_left(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, store = tmp_path / "model.flx", tmp_path / "runs.sqlite"
    assert (
        main(
            [
                "tune",
                f"{file}:with_inputs",
                "--trials",
                "2",
                "--space",
                "all",
                "--output",
                str(output),
                "--store",
                str(store),
            ]
        )
        == 0
    )
    output.unlink()
    capsys.readouterr()
    assert main(["resume", str(store)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "0 candidates in 0 rounds" in printed
    assert "after 2 candidates from the store; the trials were used up" in printed
    assert output.is_file()
    assert main(["resume", str(store), "--trials", "5", "--quiet"]) == 0
    assert main(["show", str(store)]) == 0
    assert "5 measurements of 1 workloads" in capsys.readouterr().out
    assert main(["resume", str(store)]) == 0  # the larger limit is the run's own now
    assert "after 5 candidates" in " ".join(capsys.readouterr().out.split())


def test_stores_are_merged_exported_imported_and_compacted(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, folder, other = (str(tmp_path / name) for name in ("runs.sqlite", "database", "other.sqlite"))
    assert main(["tune", f"{file}:with_inputs", "--trials", "3", "--space", "all", "--store", store, "--quiet"]) == 0
    assert main(["export", store, folder, "--best", "2"]) == 0
    assert "database: 2 measurements of 1 workloads." in capsys.readouterr().out
    assert main(["import", folder, other]) == 0
    assert "other.sqlite: 2 new measurements of 1 workloads, 6 known." in capsys.readouterr().out
    assert main(["merge", other, store, store]) == 0
    printed = capsys.readouterr().out
    assert "runs.sqlite: 3 new measurements, 0 known." in printed
    assert "runs.sqlite: 0 new measurements, 3 known." in printed
    assert main(["compact", other]) == 0
    assert "other.sqlite: 5 measurements, " in capsys.readouterr().out
    content = Path(store).read_bytes()
    Path(store).write_bytes(content[:-4096])
    assert main(["merge", str(tmp_path / "saved.sqlite"), store]) == 0
    assert "The file is not sound: it is damaged" in capsys.readouterr().out


def test_explain(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = [f"{file}:with_inputs"]
    assert main(["explain", *model]) == 0
    listed = capsys.readouterr().out
    assert "fused_matmul_add_relu" in listed
    plot = tmp_path / "plot.svg"
    assert main(["explain", *model, "fused_matmul_add_relu", "--column", "traffic_l1", "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    assert "traffic_l1 (bytes)" in printed
    assert f"Drawn in {plot}" in printed
    assert plot.stat().st_size > 1000
    assert main(["explain", *model, "nothing"]) == 1
    assert "there is no task 'nothing'" in capsys.readouterr().err
    assert main(["explain", *model, "fused_matmul_add_relu", "--sketch", "9"]) == 1
    assert "it has 1 sketches" in capsys.readouterr().err


def test_doctor_finds_this_machine_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for name in ("Python", "apache-tvm", "LLVM", "processor", "GPU", "free memory", "3 sketches of a product"):
        assert name in printed


def test_doctor_says_what_is_wrong_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = {"apache-tvm-ffi": "0.1.15", "torch": "2.13.0", "egglog": "13.2.0", "apache-tvm": "0.27.0.post1"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "0.1.14* is needed. Install with the constraints file" in printed
    assert "Install gcc; tuning works without" in printed


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("felixlike 0.")
