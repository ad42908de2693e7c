"""Tests for the command: tune, show, resume, merge, explain, doctor and their error messages."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from pages import Read
from support.stores import fill

from felixlike._util import cache, scratch
from felixlike.cli import doctor, main
from felixlike.errors import OutputNotWritable
from felixlike.hardware import placement, probe
from felixlike.hardware.placement import Share

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
    assert "3 candidates in 1 round" in printed
    assert f"Saved to {output}" in printed.replace("\n", "")
    assert main(["show", str(output)]) == 0
    assert "the trials were used up" in " ".join(capsys.readouterr().out.split())
    assert main(["show", str(store)]) == 0
    assert "3 measurements of 1 workload." in capsys.readouterr().out


def test_a_store_has_a_page(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, page = tmp_path / "runs.sqlite", tmp_path / "page.html"
    assert main(["tune", f"{file}:with_inputs", "--trials", "3", "--space", "all", "--store", str(store)]) == 0
    assert main(["show", str(store), "--html", str(page)]) == 0
    assert str(page) in capsys.readouterr().out
    parsed = Read(page.read_text())
    assert not parsed.wrong
    assert not parsed.elsewhere()
    assert "the trials were used up" in parsed.text
    for words in ("Best latency over time", "The chosen schedule", "Untuned", "proposing"):
        assert words in parsed.text


def test_a_store_of_an_older_version_has_a_page(tmp_path: Path) -> None:
    before = OLD.read_bytes()
    assert main(["show", str(OLD), "--html", str(tmp_path / "page.html")]) == 0
    assert not Read((tmp_path / "page.html").read_text()).wrong
    assert OLD.read_bytes() == before


def test_quiet_prints_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", f"{file}:with_inputs", "--trials", "1", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tune", "{file}"], "{file}:factory"),
        (["tune", "{file}:large"], "{file}: .*'large'"),
        (["tune", "{file}:number"], "{file}: number .* an int"),
        (["tune", "nowhere.py:f"], "nowhere.py: "),
        (["tune", "nowhere.onnx"], "nowhere.onnx: "),
        (["tune", "{file}:small", "--shape", "input=2x-1"], "input"),
        (["tune", "{file}:small", "--output", "/nowhere/m.flx"], "directory /nowhere"),
        (["tune", "{file}:with_inputs", "--rounds", "-2"], "rounds.* -2"),
        (["tune", "{file}:with_inputs", "--precision", "tf32"], "tf32.*CPU"),
        (["show", "nowhere.flx"], "nowhere.flx: "),
        (["show", "{file}"], "{file}: .*damaged"),
        (["show", str(OLD), "--html", "/nowhere/page.html"], "directory /nowhere"),
        (["show", str(OLD), "--html", str(OLD)], f"{OLD}: .*another name"),
        (["resume", "nowhere.sqlite"], "nowhere.sqlite: "),
        (["resume", ":memory:"], "in memory: "),
        (["tune", "{file}:with_inputs", "--store", ""], "''"),
        (["tune", "{file}:with_inputs", "--store", "/dev/null"], "/dev/null: .*device"),
        (["tune", "{file}:with_inputs", "--output", "/dev/null"], "/dev/null: .*device"),
        (["resume", str(OLD)], f"{OLD}: .*`felixlike tune`.*felixlike tune MODEL --store STORE"),
        (["merge", "/dev/null", "nowhere.sqlite"], "/dev/null: .*device"),
        (["compact", "nowhere.sqlite"], "nowhere.sqlite: "),
        (["export", "nowhere.sqlite", "{file}.db"], "nowhere.sqlite: "),
        (["export", str(OLD), "{file}.db", "--best", "-1"], "--best.* -1"),
        (["import", "nowhere", "{file}.sqlite"], "nowhere.*database_workload.json"),
        (["tune", "{file}:small", "--output", "{file}"], "{file}: it would overwrite {file}"),
        (["tune", "{file}:small", "--output", "{file}.new", "--store", "{file}.new"], "it would overwrite {file}.new"),
        (["train", str(OLD), "--output", str(OLD)], f"{OLD}: it would overwrite"),
        (["show", "{file}.empty"], "{file}.empty: the file is empty: nothing was saved"),
        (["resume", "{file}.empty"], "{file}.empty: the file is empty: nothing was saved"),
        (["compare", "nowhere.sqlite.xz"], "nowhere.sqlite.xz: the file cannot be unpacked: No such file"),
        (["tune", "{file}:small", "--shape", f"x={'9' * 5000}"], "cannot parse the sizes"),
        (["collect", "--list", "--part", "²/3"], "expected --part I/N, got '²/3'"),
        (["collect", "--list", "--part", f"1/{'9' * 5000}"], "expected --part I/N"),
        (["collect", "--list", "--workloads", "{file}.workloads"], "{file}.workloads, line 1: invalid option"),
    ],
)
def test_errors_are_one_sentence_without_a_traceback(
    arguments: list[str], words: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(f"{file}.empty").touch()  # a store whose first process was killed
    Path(f"{file}.workloads").write_text(f"dense rows={'9' * 5000}\n")
    assert main([a.replace("{file}", str(file)) for a in arguments]) == 1
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("felixlike: ")
    assert re.search(words.replace("{file}", str(file)), error)
    assert "Traceback" not in error


def test_resume_measures_the_rest_of_the_limit(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert "5 measurements of 1 workload." in capsys.readouterr().out
    assert main(["resume", str(store)]) == 0  # the run's limit is the larger one now
    assert "after 5 candidates" in " ".join(capsys.readouterr().out.split())


def test_stores_are_merged_exported_imported_and_compacted(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, folder, other = (str(tmp_path / name) for name in ("runs.sqlite", "database", "other.sqlite"))
    assert main(["tune", f"{file}:with_inputs", "--trials", "3", "--space", "all", "--store", store, "--quiet"]) == 0
    assert main(["export", store, folder, "--best", "2"]) == 0
    assert "database: 2 measurements of 1 workload." in capsys.readouterr().out
    assert main(["import", folder, other]) == 0
    assert "other.sqlite: 2 new measurements of 1 workload, 6 known." in capsys.readouterr().out
    assert main(["merge", other, store, store]) == 0
    printed = capsys.readouterr().out
    assert "runs.sqlite: 3 new measurements, 0 known." in printed
    assert "runs.sqlite: 0 new measurements, 3 known." in printed
    assert main(["compact", other]) == 0
    assert "other.sqlite: 5 measurements, " in capsys.readouterr().out
    content = Path(store).read_bytes()
    Path(store).write_bytes(content[:-4096])
    assert main(["merge", str(tmp_path / "saved.sqlite"), store]) == 0
    assert re.search(f"{store}: .*damaged", capsys.readouterr().out)


def test_merge_skips_invalid_files_and_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("all.sqlite", "one.sqlite", "two.sqlite", "text", "nowhere.sqlite")
    target, one, two, text, nowhere = (str(tmp_path / name) for name in names)
    fill(Path(one), 5)
    fill(Path(two), 5, first=5)
    Path(text).write_text("no store\n" * 2000)
    assert main(["merge", target, text, one, nowhere, two, one, target]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        f"{one}: 5 new measurements, 0 known.",
        f"{two}: 5 new measurements, 0 known.",
        f"{one}: 0 new measurements, 5 known.",
    ]
    left_out = captured.err.splitlines()
    assert left_out[0].startswith(f"felixlike: skipped: {text}: ")
    assert left_out[1].startswith(f"felixlike: skipped: {nowhere}: ")
    assert left_out[2].startswith(f"felixlike: skipped: {target}: ")
    assert left_out[3:] == [f"felixlike: skipped 3 of 6 files; {target} has 10 measurements."]
    assert main(["merge", target, one, two]) == 0


def test_explain_lists_tasks_and_plots_a_column(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    capsys.readouterr()
    assert main(["explain", *model, "--pipeline"]) == 0
    assert capsys.readouterr().out.startswith("llvm, on cpu\ngraph: ConvertToDataflow, with_total_order, ")
    assert main(["explain", *model, "nothing"]) == 1
    assert "task 'nothing'" in capsys.readouterr().err
    assert main(["explain", *model, "fused_matmul_add_relu", "--sketch", "9"]) == 1
    assert re.search("fused_matmul_add_relu: sketch 9 .*1 sketch", capsys.readouterr().err)
    assert main(["explain", *model, "fused_matmul_add_relu", "--variable", "t0"]) == 1
    assert re.search("--variable: .*--plot", capsys.readouterr().err)
    assert main(["explain", *model, "--plot", str(plot)]) == 1
    assert re.search("--plot: .*TASK", capsys.readouterr().err)


def test_doctor_succeeds_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for name in ("Python", "apache-tvm", "LLVM", "processor", "GPU", "free memory", "3 sketches of a matrix product"):
        assert name in printed


@pytest.mark.parametrize(
    ("environment", "processors", "words"),
    [
        ({}, [{0}, {1}], ("2 per call, on processors 0 | 1; 2 of 2 cores", "", "")),
        (
            {"OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "true"},
            [{1}],
            (
                "OMP_NUM_THREADS=1, OMP_PROC_BIND=true",
                "OMP_NUM_THREADS leaves 1 ",
                "Unset OMP_NUM_THREADS, or set TVM_NUM_THREADS=2",
            ),
        ),
        (
            {"TVM_NUM_THREADS": "3"},
            [{0}, {1}, {0}],
            (
                "on processors 0 | 1 | 0; ",
                "TVM_NUM_THREADS exceeds",
                "Unset TVM_NUM_THREADS, or set TVM_NUM_THREADS=2",
            ),
        ),
        (
            {},
            [{0}, {0, 1}],
            ("on processors 0 | 0, 1", "share a core", "taskset"),
        ),
        ({}, [{0}], ("1 per call", "1 of 2 threads", "ulimit -u")),
    ],
)
def test_doctor_shows_the_processors_of_threads(
    environment: dict[str, str],
    processors: list[set[int]],
    words: tuple[str, str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in doctor._OF_THREADS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    cores = (frozenset({0}), frozenset({1}))
    for module in (placement, probe):
        monkeypatch.setattr(module, "usable_processors", lambda: cores)
        monkeypatch.setattr(module, "usable_cores", lambda: 2)
    monkeypatch.setattr(probe, "all_cores", lambda: 2)
    monkeypatch.setattr(placement, "placed", lambda: tuple(Share(i, frozenset(p)) for i, p in enumerate(processors)))
    finding = doctor._threads()
    assert words[0] in finding.value
    assert words[1] in finding.problem
    assert bool(finding.problem) == bool(words[1])
    assert words[2] in finding.remedy
    assert not finding.fatal


def test_doctor_names_the_described_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FELIXLIKE_DEVICE", "graviton2:3")
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "graviton2: 3 cores, 128-bit vectors, L1 64 KiB, L2 1024 KiB" in printed
    monkeypatch.setenv("FELIXLIKE_DEVICE", "graviton")
    assert main(["doctor"]) != 0
    assert re.search("FELIXLIKE_DEVICE: .*'graviton'.* zen3,", capsys.readouterr().err)


def test_doctor_checks_the_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = doctor._temporary_files()
    assert not finding.problem
    assert finding.value.startswith(f"{tempfile.gettempdir()}, ")
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC, f_bavail=2**18, f_frsize=4096))
    finding = doctor._temporary_files()
    assert finding.value.endswith(", 1.0 GiB free")
    assert "noexec" in finding.problem
    assert not finding.fatal

    def refuse(purpose: str) -> NoReturn:
        raise OutputNotWritable(f"no folder for {purpose}", where="TMPDIR")

    monkeypatch.setattr(scratch, "folder", refuse)
    finding = doctor._temporary_files()
    assert (finding.problem, finding.fatal) == ("no folder for doctor", True)


def test_doctor_checks_that_the_cache_is_private(own_cache: Path) -> None:
    before = os.umask(0o002)
    try:
        assert not doctor._cache().problem
    finally:
        os.umask(before)
    assert cache.write("kind", "name", b"content")
    own_cache.chmod(0o775)
    finding = doctor._cache()
    assert finding.problem.startswith("other users may write to it (mode 775)")
    assert "Remove it" in finding.remedy


def test_doctor_names_problems_and_remedies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = {"apache-tvm-ffi": "0.1.15", "torch": "2.13.0", "egglog": "13.2.0", "apache-tvm": "0.27.0.post1"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert main(["doctor"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r'older than 0\.1\.15, .*pip install "apache-tvm-ffi>=0\.1\.14,<0\.1\.15"', printed)
    assert "Install gcc" in printed


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("felixlike 0.")
