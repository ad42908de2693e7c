"""Test `python -m benchmarks.gpu` up to the first line that needs a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.operators import OPERATORS

from benchmarks.gpu import __main__ as command
from benchmarks.gpu.bench import Bench, torch_sides
from benchmarks.gpu.journal import Journal, Row
from benchmarks.gpu.page import page_text, write_page
from benchmarks.gpu.parts import PARTS, Part, packing_sketches


def bench_in(folder: Path, seconds: float = 60.0) -> Bench:
    return Bench(folder, rehearsal=True, end=time.monotonic() + seconds, points=1)


def part_of(name: str, row: Callable[[Bench, str, float], Row]) -> Part:
    return Part(name, 0.5, lambda: ("one", "two", "three"), row)


def test_parts_are_in_the_requested_order() -> None:
    names = ["points", "subgraphs", "precision", "networks", "search", "dynamic", "collecting"]
    assert [part.name for part in PARTS] == names
    assert len(PARTS[1].names()) == 10
    assert len(PARTS[0].names()) > 40


@pytest.mark.parametrize(
    ("part", "name", "keys"),
    [
        ("points", "softmax_3d", {"sketches", "understood", "outcomes", "kernels"}),
        ("points", "batch_matmul, bfloat16", {"sketches", "understood", "outcomes", "kernels"}),
        ("points", "conv1d", {"sketches", "understood", "outcomes", "kernels"}),
        ("subgraphs", "softmax", {"trials", "simulated_seconds", "called"}),
        ("precision", "batch matmul, tf32", {"off", "called", "on tensor cores"}),
        ("networks", "mlp", {"trials", "simulated_seconds", "called"}),
        ("search", "softmax, ours", {"seconds", "elapsed", "sketch", "point"}),
        ("search", "softmax, stock", {"seconds", "instructions"}),
        ("dynamic", "dense 768→768", {"stages", "ours", "cuBLAS", "programs", "tree", "error"}),
        ("collecting", "records", {"records", "tasks", "ended"}),
    ],
)
def test_every_part_rehearses(part: str, name: str, keys: set[str], tmp_path: Path) -> None:
    (selected,) = (p for p in PARTS if p.name == part)
    bench = bench_in(tmp_path)
    command.run_part(bench, replace(selected, least=0.0), name)
    row = bench.journal.rows(part)[name]
    assert "failed" not in row
    assert keys <= row.keys()
    assert not row.get("errors")
    assert part in write_page(bench.journal, tmp_path, rehearsal=True).read_text()


def test_points_include_sketches_that_pack_constant_weights(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    assert len(packing_sketches(bench.target, OPERATORS["conv1d"]())) >= 3
    assert not packing_sketches(bench.target, OPERATORS["conv2d_nhwc"]())  # weights are in copy order already
    assert not packing_sketches(bench.target, OPERATORS["softmax_3d"]())


def test_finished_rows_are_skipped_and_errors_are_recorded(tmp_path: Path) -> None:
    done: list[str] = []

    def row(_: Bench, name: str, seconds: float) -> Row:
        done.append(name)
        assert seconds > 0
        if name == "two":
            raise ValueError("no such kernel")
        return {"value": len(done)}

    journal = Journal(tmp_path / "journal.jsonl")
    journal.note("made up", "one", {"value": 7})
    journal.begin("made up", "two", 3.0)
    assert journal.unfinished("made up") == ("two", 3.0)
    command.run_part(bench_in(tmp_path), part_of("made up", row))
    assert done == ["two", "three"]
    rows = journal.rows("made up")
    assert rows["one"] == {"value": 7}
    assert rows["two"]["failed"] == "ValueError: no such kernel"
    assert journal.unfinished("made up") == ("", 0.0)


def test_no_row_starts_without_time(tmp_path: Path) -> None:
    command.run_part(bench_in(tmp_path, seconds=0.0), part_of("made up", lambda *_: {}))
    assert not (tmp_path / "journal.jsonl").exists()


def test_crashed_and_hanging_rows_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.begin("made up", "one", 0.1)
    crashed = subprocess.Popen([sys.executable, "-c", "import os; os._exit(3)"])
    assert command._watched(crashed, journal, "made up") == "its process ended with 3"
    monkeypatch.setattr(command, "_START", 0.1)
    hung = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert "a kernel that hangs" in command._watched(hung, journal, "made up")
    assert hung.returncode is not None


def test_the_command_continues_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three processes run. The second row crashes the first process."""
    script = tmp_path / "child.py"
    script.write_text(
        "import sys, os, pathlib\n"
        "from benchmarks.gpu.journal import Journal\n"
        "journal = Journal(pathlib.Path(sys.argv[1]) / 'journal.jsonl')\n"
        "for name in ('one', 'two', 'three'):\n"
        "    if name not in journal.rows('made up'):\n"
        "        journal.begin('made up', name, 1.0)\n"
        "        if name == 'two': os._exit(7)\n"
        "        journal.note('made up', name, {})\n"
    )
    real = subprocess.Popen

    def child(_: list[str]) -> subprocess.Popen[bytes]:
        return real([sys.executable, str(script), str(tmp_path)])

    monkeypatch.setattr(subprocess, "Popen", child)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    bench = bench_in(tmp_path)
    command._in_processes(bench, part_of("made up", lambda *_: {}), bench.end, "")
    rows = bench.journal.rows("made up")
    assert list(rows) == ["one", "two", "three"]
    assert rows["two"] == {"failed": "its process ended with 7"}


def test_the_whole_command_rehearses(tmp_path: Path) -> None:
    arguments = [
        "--rehearse",
        "--folder",
        str(tmp_path),
        "--only",
        "search",
        "--names",
        "softmax, stock",
        "--minutes",
        "3",
    ]
    completed = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env=None,
    )
    assert "search: softmax, stock: done" in completed.stdout
    page = json.loads((tmp_path / "page.json").read_text())
    assert page["machine"]["name"].startswith("no GPU: a rehearsal")
    assert list(page["parts"]["search"]) == ["softmax, stock"]


def test_sides_that_cannot_be_called_record_the_error(tmp_path: Path) -> None:
    import torch

    def broken() -> Callable[[], object]:
        raise RuntimeError("CUDA error: out of memory")

    sides = torch_sides(torch.nn.ReLU(), (torch.randn(4),), device="cpu", compiled=False)
    row = bench_in(tmp_path).timed({**sides, "broken": broken})
    assert row["called"] == ["eager", "eager TF32"]
    assert row["errors"] == {"broken": "RuntimeError: CUDA error: out of memory"}


def test_sides_are_timed_interleaved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    bench = replace(bench_in(tmp_path), rehearsal=False)
    row = bench.timed({"ours": lambda: lambda: None, "theirs": lambda: lambda: None}, seconds_a_side=0.01)
    assert row["ours"] > 0
    assert set(row["quartiles"]) == {"ours", "theirs"}


def test_the_page_has_ratios_and_failures() -> None:
    row = {"eager": 2e-3, "tuned": 1e-3, "trials": 9, "errors": {"torch.compile": "no Triton"}}
    searched = {"seconds": [2e-5, float("inf"), 1e-5], "elapsed": [1.0, 2.0, 3.5]}
    slower = {"seconds": [4e-5, 2e-5], "elapsed": [1.0, 8.0]}
    ranged = {"stages": ["a", "b"], "error": 3e-7, "ours": {"1": 1e-6, "2": 2e-6}, "cuBLAS": {"1": 2e-6, "2": 1e-6}}
    rows: dict[str, dict[str, Row]] = {
        "subgraphs": {"softmax": row, "matmul": {"failed": "it hung"}},
        "search": {"softmax, ours": searched, "softmax, stock": slower},
        "dynamic": {"dense": ranged},
    }
    text = page_text({"name": "A GPU", "driver": "580"}, rows)
    assert "# A GPU" in text
    assert "driver: 580" in text
    assert "| softmax | 2.0000 | 1.0000 | 2.00 | 9 |" in text
    assert "eager ÷ tuned, geometric mean of 1: **2.00**." in text
    assert "- matmul failed: it hung" in text
    assert "- softmax, torch.compile: no Triton" in text
    assert "| softmax | ours | 3 | 10.0 | 3.5 | 3.5 |" in text
    assert "| softmax | stock | 2 | 20.0 | never | never |" in text
    assert "| dense | 2 | 1 | 1 | 1.00 | 3.0e-07 | a; b |" in text


def test_the_page_lists_the_error_of_each_precision() -> None:
    off = {"eager": 2e-7, "eager TF32": 3e-4, "tuned": 2.5e-4}
    row: Row = {"eager TF32": 2e-5, "tuned": 1e-5, "off": off, "on tensor cores": ["dense"], "errors": {}}
    text = page_text({"name": "A GPU"}, {"precision": {"dense, tf32": row}})
    cells = "| dense, tf32 | – | 0.0200 | – | 0.0100 | 2.00 | 2.0e-07 | 3.0e-04 | – | 2.5e-04 | dense |"
    assert cells in text
    assert "spilling" not in text
    spilling = {**row, "on tensor cores": [], "kernels": [{"local_bytes": 8}]}
    text = page_text({"name": "A GPU"}, {"precision": {"dense, tf32": spilling}})
    assert "| none |" in text
    assert "Predicted to be best, but spilling: 1 kernel." in text


def test_rows_that_are_prepared_together_have_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows run at the same time. The second one crashes, the third one is not prepared in time."""
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\n"
        "import sys, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from pathlib import Path\n"
        "from benchmarks.gpu.journal import Journal\n"
        "from benchmarks.gpu.turns import Turns\n"
        "options = dict(zip(sys.argv[3::2], sys.argv[4::2]))\n"
        "name, folder = options['--row'], Path(options['--folder'])\n"
        "if name == 'two': sys.exit(7)\n"
        "if name == 'three': time.sleep(60)\n"
        "turns = Turns(Path(options['--turns']), folder.name)\n"
        "with turns.turn(), turns.turn():\n"
        "    Journal(folder / 'journal.jsonl').note('made up', name, {'held': turns.held})\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    bench = bench_in(tmp_path / "bench", seconds=4.0)
    command._together(bench, [replace(part_of("made up", lambda *_: {}), turn=0.5)], "", 1)
    rows = bench.journal.rows("made up")
    assert rows["one"] == {"held": True}
    assert rows["two"] == {"failed": "its process ended with 7"}
    assert rows["three"]["failed"].startswith("it was not prepared in")
