"""Tests for calls on CUDA streams and CUDA graphs, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from felixlike import _tvm, codegen
from felixlike.codegen.compile import _static
from felixlike.errors import GPUOutOfMemory
from felixlike.frontend import import_model
from felixlike.runtime import compile_model, stream_serializer


class Stream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log

    def wait_stream(self, other: Stream) -> None:
        self._log.append(f"{self.name} waits for {other.name}")


def test_a_call_waits_for_the_call_before_it_on_another_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    one, two = Stream("one", log), Stream("two", log)
    order = stream_serializer.Streams(torch.device("cuda", 0))
    for current, waits in (
        (one, []),
        (one, []),
        (two, ["two waits for one"]),
        (two, []),
        (one, ["one waits for two"]),
    ):
        log.clear()
        monkeypatch.setattr(stream_serializer, "_current", lambda _, current=current: current)
        order()
        assert log == waits


class Three(nn.Module):
    """A model whose middle kernels neither read an input nor write an output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8 * 64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        return torch.softmax(self.last(y.flatten(1)), -1)


def lowered_text(*, graphs: bool, target: str = "sm_90") -> str:
    imported = import_model(Three().eval(), (torch.randn(1, 3, 8, 8),), target)
    lowered, executable = codegen.compile_relax(imported.module, imported.target, graphs=graphs)
    assert executable.mod is not None
    return str(lowered["main"])


def test_calls_on_a_gpu_are_serialized(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread at a time orders the streams and calls the entry function."""
    events: list[str] = []

    def main(x: int) -> int:
        events.append(f"call {serializer._lock.locked()}")
        return x + 1

    serializer: stream_serializer.StreamSerializer = stream_serializer.StreamSerializer(main, torch.device("cuda", 0))
    monkeypatch.setattr(
        stream_serializer.Streams, "__call__", lambda self: events.append(f"order {serializer._lock.locked()}")
    )
    assert serializer(3) == 4
    assert events == ["order True", "call True"]
    assert not serializer._lock.locked()


def test_kernels_in_the_middle_become_a_cuda_graph() -> None:
    text = lowered_text(graphs=True)
    assert text.count("vm.builtin.cuda_graph.run_or_capture") == 1
    assert text.count("vm.builtin.cuda_graph.get_cached_alloc") == 1
    outside = text.count("fused_conv2d_add_relu(") + text.count("softmax(")
    assert outside == 2  # the first and the last kernel; two more are in the graph
    assert "fused_conv2d1_add_relu(" not in text


def test_without_graphs_every_kernel_is_called_separately() -> None:
    text = lowered_text(graphs=False)
    assert "cuda_graph" not in text
    assert "fused_conv2d1_add_relu(" in text
    assert "cuda_graph" not in lowered_text(graphs=True, target="cpu")


def test_a_saved_library_calls_the_cuda_graph(tmp_path: Path) -> None:
    """Without a driver, the test looks for the call in the saved library."""
    imported = import_model(Three().eval(), (torch.randn(1, 3, 8, 8),), "sm_90")
    _, executable = codegen.compile_relax(imported.module, imported.target)
    file = tmp_path / "model.so"
    executable.export_library(str(file))
    assert b"vm.builtin.cuda_graph.run_or_capture" in file.read_bytes()


def test_dynamic_sizes_disable_cuda_graphs() -> None:
    """A CUDA graph is captured for one size."""
    relax = _tvm.relax
    for rows, static in ((_tvm.tirx.Var("rows", "int64"), False), (4, True)):
        x = relax.Var("x", relax.TensorType((rows, 16), "float32"))
        module = _tvm.IRModule({"main": relax.Function([x], x, x.ty)})
        assert _static(module) is static


def test_cuda_errors_in_a_call_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile_model(import_model(nn.ReLU(), (torch.randn(4, 8),)))
    x = torch.randn(4, 8)
    compiled(x)

    def broken(*_: object) -> None:
        raise RuntimeError("cuMemAlloc failed with error: CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(compiled._here, "main", broken)
    with pytest.raises(RuntimeError, match="cuMemAlloc failed") as plain:
        compiled(x)
    assert type(plain.value) is RuntimeError
    monkeypatch.setattr(compiled, "device", torch.device("cuda", 0))
    with pytest.raises(GPUOutOfMemory, match="the GPU is out of memory"):
        compiled(x)
