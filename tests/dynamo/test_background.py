"""Tests for graphs that another process tunes: its result is used, and it ends with the graph or its parent."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from felixlike._util.child_process import environment
from felixlike.api import optimize
from felixlike.dynamo import background, graph_sizes
from felixlike.dynamo.backend import CompiledGraph
from felixlike.dynamo.options import read_options

TUNER = """
import os, shutil, sys, time
print("ready", flush=True)
assert sys.stdin.readline() == "go\\n"
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
shutil.copy(sys.argv[1], sys.argv[2])
"""
"""Replaces `felixlike tune`. The test writes its result."""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 8)).eval()


class Tuners:
    """Records the commands of tuning processes. `result` is the file that they return, or None if they never end."""

    def __init__(self, result: Path | None) -> None:
        self.result, self.commands = result, list[tuple[str, ...]]()

    def command(self, module: str, *arguments: str) -> list[str]:
        self.commands.append((module, *arguments))
        output = arguments[arguments.index("--output") + 1]
        return [sys.executable, "-c", TUNER, str(self.result or "nothing"), output]

    @property
    def folder(self) -> Path:
        """Return the folder of the latest graph."""
        return Path(self.commands[-1][2]).parent


def _until(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def _compiled_graphs() -> list[CompiledGraph]:
    return [instance for instance in gc.get_objects() if type(instance) is CompiledGraph]


@pytest.fixture
def tuners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tuners:
    recorder = Tuners(None)
    monkeypatch.setattr(background, "python_command", recorder.command)
    return recorder


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"seconds": 30, "trials": 3, "store": str(tmp_path / "store.sqlite")}


def test_the_tuned_result_replaces_the_graph(tuners: Tuners, options: dict[str, Any], tmp_path: Path) -> None:
    model, x = _model(), torch.randn(4, 12)
    with torch.no_grad():
        optimize(_Graph(), (x,), trials=0, progress=False).save(tmp_path / "tuned")
        tuners.result = tmp_path / "tuned"
        options |= {"precision": "bfloat16", "tolerance": 0.02}
        compiled = torch.compile(model, backend="felixlike", options=options)
        torch.testing.assert_close(compiled(x), model(x), rtol=0.02, atol=0.02)
        _until(lambda: tuners.commands and not tuners.folder.exists())
        assert torch.equal(compiled(x), torch.full((4, 8), 7.0))
    module, *words = tuners.commands[0]
    assert (module, words[0]) == ("felixlike", "tune")
    expected = {"--seconds": "30.0", "--trials": "3", "--store": options["store"]}
    for name, value in (expected | {"--precision": "bfloat16", "--tolerance": "0.02"}).items():
        assert words[words.index(name) + 1] == value
    assert words[words.index("--in-background-of") + 1] == str(os.getpid())


def test_graphs_with_dynamic_sizes_are_tuned_for_all_of_them(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tuning process opens the exported graph, whose sizes are symbolic."""
    monkeypatch.setattr(graph_sizes, "RANGES", replace(graph_sizes.RANGES, batch=7))
    model, earlier = _model(), set(_compiled_graphs())
    compiled = torch.compile(model, backend="felixlike", options=options, dynamic=True)
    with torch.no_grad():
        compiled(torch.randn(4, 12))
        (graph,) = set(_compiled_graphs()) - earlier
        predicted = graph.call
        _until(lambda: graph.call is not predicted)
        for rows in (2, 3, 7):
            torch.testing.assert_close(compiled(x := torch.randn(rows, 12)), model(x))


class _Graph(nn.Module):
    """A result with wrong outputs, so that the test can tell it from the graph."""

    def forward(self, x: torch.Tensor) -> Any:
        return (x[:, :8] * 0 + 7,)


def _changed_weights(model: nn.Module, compiled: Any, x: torch.Tensor) -> None:
    next(model.parameters()).data.mul_(2)
    compiled(x)


def _dropped(model: nn.Module, compiled: Any, x: torch.Tensor) -> None:
    torch._dynamo.reset()
    gc.collect()


@pytest.mark.parametrize("change", [_changed_weights, _dropped])
def test_tuning_of_outdated_graphs_ends(change: Callable[..., None], tuners: Tuners, options: dict[str, Any]) -> None:
    model, x = _model(), torch.randn(4, 12)
    compiled = torch.compile(model, backend="felixlike", options=options)
    with torch.no_grad():
        compiled(x)
        _until(lambda: tuners.commands and (tuners.folder / "graph.pt2").exists())
        (first,) = {tuners.folder}
        change(model, compiled, x)
        del compiled
        _until(lambda: not first.exists())
    torch._dynamo.reset()
    gc.collect()
    _until(lambda: background._worker._current is None)


def test_a_graph_may_be_collected_while_its_process_starts(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A garbage collection may cancel the tuning in the thread that starts it."""

    class Module:
        def exported(self, examples: Any) -> Any:
            raise AssertionError("a graph that is not used any more was exported")

    class Graph:
        weights: Any = None
        call: Any = None

    graph = Graph()
    tuning = background.Tuning(graph, Module(), (), read_options(options, {}), options["store"])

    def command(*_: str) -> list[str]:
        nonlocal graph
        del graph
        gc.collect()
        return [sys.executable, "-c", "import sys; print('ready', flush=True); sys.stdin.readline()"]

    monkeypatch.setattr(background, "python_command", command)
    thread = threading.Thread(target=tuning.run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert tuning._process is not None
    assert tuning._process.returncode


def test_a_result_for_weights_that_have_changed_is_not_used(
    tuners: Tuners, options: dict[str, Any], tmp_path: Path
) -> None:
    model, x, earlier = _model(), torch.randn(4, 12), set(_compiled_graphs())
    compiled = torch.compile(model, backend="felixlike", options=options)
    with torch.no_grad():
        tuners.result = tmp_path / "tuned"
        compiled(x)
        (graph,) = set(_compiled_graphs()) - earlier
        model.get_submodule("0").get_parameter("weight").data.mul_(2)
        optimize(_Graph(), (x,), trials=0, progress=False).save(tuners.result)  # the tuner waits for this file
        _until(lambda: tuners.commands and not tuners.folder.exists())
        assert graph.call(x)[0].unique().numel() > 1
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
        torch._dynamo.reset()


SERVER = """
import atexit, os, sys, time, torch
from torch import nn
from felixlike.dynamo import background
torch.manual_seed(0)
model, x = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 8)).eval(), torch.randn(4, 12)
compiled = torch.compile(model, backend="felixlike", options={"seconds": 600, "store": sys.argv[1]})
with torch.no_grad():
    compiled(x)
while background._worker._current is None or background._worker._current._process is None:
    time.sleep(0.01)
if sys.argv[2] == "fork":
    child = os.fork()
    if not child:
        atexit._run_exitfuncs()  # all handlers that end what a process has started
        os._exit(0)
    os.waitpid(child, 0)
    assert background._worker._current._process.poll() is None
print(background._worker._current._process.pid, flush=True)
sys.stdin.readline()  # until the test has found the process, or has killed this one
"""


@pytest.mark.parametrize("way", ["exit", "fork"])
def test_tuning_processes_and_files_do_not_outlive_their_parent(way: str, tmp_path: Path) -> None:
    """The parent ends by itself, or is killed after a child of it has ended."""
    folders = {"TMPDIR": tmp_path / "tmp", "XDG_CACHE_HOME": tmp_path / "cache"}
    for folder in folders.values():
        folder.mkdir()
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path / "s.sqlite"), way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(**{name: str(folder) for name, folder in folders.items()}),
    )
    assert server.stdin is not None
    assert server.stdout is not None
    tuner = psutil.Process(int(server.stdout.readline()))
    if way != "exit":
        time.sleep(1.0)
        processes = [tuner, *tuner.children(recursive=True)]
        assert tuner.is_running()
        server.send_signal(signal.SIGKILL)
    else:
        processes = [tuner]
    server.stdin.close()
    server.wait(60)
    server.stdout.close()
    _until(lambda: not any(process.is_running() for process in processes))
    if way != "exit":  # the next process removes the files that the killed one left
        sweep = "from felixlike._util import scratch; scratch.discard(scratch.folder('any'))"
        subprocess.run([sys.executable, "-c", sweep], check=True, env=environment(TMPDIR=str(folders["TMPDIR"])))
    leftovers = [path for path in folders["TMPDIR"].iterdir() if path.name.startswith("felixlike")]
    assert not leftovers
