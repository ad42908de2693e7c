"""Test models with dynamic sizes for GPUs as far as possible without a GPU.

Threads are serialized to check outputs. Models are compiled and reported, and calls that need a driver raise errors.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from schedules import without_threads

import felixlike as fx
from felixlike import _tvm, codegen
from felixlike.codegen import nvrtc
from felixlike.dynamic import network, plan_operator
from felixlike.dynamic.batch import _whole, batch_of
from felixlike.dynamic.sources import read_network
from felixlike.errors import NoGPU, UnverifiedWarning
from felixlike.frontend import import_model
from felixlike.frontend.rewrites.pipeline import fuse_dynamic
from felixlike.hardware import quickly_compiled, resolve_target, target_device
from felixlike.hardware.gpu import gpu_at_hand
from felixlike.runtime.compile_model import lowered_model

_T = fx.Dim("T", range(1, 33))
_SM_90 = resolve_target("sm_90")


class _Block(torch.nn.Module):
    """A transformer layer: a lookup, dense layers, products with two dynamic sizes, softmax and a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(20, 16)
        self.all, self.norm = torch.nn.Linear(16, 48), torch.nn.LayerNorm(16)
        self.up, self.down = torch.nn.Linear(16, 40), torch.nn.Linear(40, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        q, k, v = (part.view(1, -1, 2, 8).transpose(1, 2) for part in self.all(x).chunk(3, -1))
        attended = torch.softmax(q @ k.transpose(2, 3) / 8**0.5, -1) @ v
        x = x + attended.transpose(1, 2).reshape(1, -1, 16)
        result: torch.Tensor = self.norm(x + self.down(torch.nn.functional.gelu(self.up(x))))
        return result


def _model() -> _Block:
    torch.manual_seed(0)
    return _Block().eval()


def _program() -> Any:
    dynamic = {"ids": {1: torch.export.Dim("T", min=1, max=32)}}
    return torch.export.export(_model(), (torch.randint(0, 20, (1, 9)),), dynamic_shapes=dynamic)


def test_a_model_is_correct_at_every_size_with_serialized_threads() -> None:
    source, dims = read_network(_program(), None)
    module, layers = fuse_dynamic(source.module, _SM_90)
    module, parts, pieces = network._planned(
        module,
        layers,
        dims,
        target_device(_SM_90),
        _SM_90,
        partial(plan_operator, device=target_device(_SM_90), target=_SM_90, measure=False),
    )
    assert not pieces
    assert sum(part.plan is not None for part in parts) == 5
    module = _tvm.map_functions(module, _serial)
    module = without_threads(codegen.default_schedules(module, _SM_90))
    module = _tvm.map_functions(module, lambda func: func.with_attr("tirx.is_scheduled", True))
    _, executable = codegen.compile_relax(module, quickly_compiled(resolve_target("cpu")))
    run = _tvm.relax.VirtualMachine(executable.jit(), _tvm.tvm.cpu())["main"]
    for size in (1, 2, 17, 32):
        ids = torch.randint(0, 20, (1, size))
        with torch.no_grad():
            expected = _model().double()(ids)
        assert (run(ids) - expected).abs().max() < 1e-5, size


def _serial(func: Any) -> Any:
    """Serialize the threads of a scheduled kernel, which exchange sums, and return other functions unchanged."""
    if "tirx.is_scheduled" not in (func.attrs or {}):
        return func
    return without_threads(_tvm.IRModule({"main": func}), twice=True)["main"]


@pytest.fixture
def compiler() -> None:
    if nvrtc.library() is None:
        pytest.skip('NVRTC is not on this machine: pip install "felixlike[cuda]"')


@pytest.fixture(scope="module")
def lowered() -> network.Lowered:
    return network.plan_source(*read_network(_program(), None), _SM_90, measure=False).lowered({})


@pytest.mark.usefixtures("compiler")
def test_a_model_compiles_without_spills(lowered: network.Lowered) -> None:
    binary = codegen.compile_source(codegen.cuda_source(lowered.executable), "sm_90")
    kernels = codegen.kernels_of(binary, "sm_90")
    assert len(kernels) >= len(lowered.parts)
    assert not [kernel for kernel in kernels if kernel.local_bytes]
    assert "cuda_graph" not in str(lowered.module["main"])  # sizes are known only at the call


def test_loading_a_gpu_model_without_a_gpu_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU model can be saved on this machine but loaded only where there is a GPU."""
    if gpu_at_hand() is not None:
        pytest.skip("there is a GPU here")
    monkeypatch.setattr("felixlike.runtime.callable.Compiled._virtual_machine", lambda _: {"main": None})
    source, dims = read_network(_program(), None)
    compiled = network.compile_source(source, dims, _SM_90, measure=False).compiled
    report = _report(compiled)
    optimized = fx.Optimized(compiled, report)
    optimized.save(tmp_path / "model.fx")
    with pytest.raises(NoGPU, match=r"model\.fx: "):
        fx.load(tmp_path / "model.fx")


def _report(compiled: Any) -> Any:
    from felixlike.report import Report

    return Report(compiled.name, (), 0, 0, 0.0, 0.0, 0.0, "", "", "", str(compiled.target), {}, 0)


class _NoMachine:
    """A virtual machine on a GPU that does not exist."""

    def __getitem__(self, name: str) -> Any:
        def run(*_: Any) -> Any:
            raise RuntimeError("no GPU computes anything here")

        return run


def test_optimize_compiles_and_reports_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a simulated GPU, the model is planned, compiled and reported, and a warning says that outputs were not
    compared.
    """
    if gpu_at_hand() is not None:
        pytest.skip("there is a GPU here")
    monkeypatch.setattr("felixlike.hardware.gpu.gpu_at_hand", lambda: ("made up", "sm_90"))
    monkeypatch.setattr("felixlike.runtime.callable.Compiled._virtual_machine", lambda _: _NoMachine())
    with pytest.warns(UnverifiedWarning, match="comparing failed"):
        optimized = fx.optimize(_program(), target="sm_90", rounds=0, progress=False)
    notes = [task.note for task in optimized.report.tasks]
    assert sum("uKernels in code" in note for note in notes) == 5
    assert notes.count("TVM's default schedule") == len(notes) - 5 > 0
    assert optimized.report.device == "made up"
    assert optimized.inputs[0].shape == (1, 32)


def test_optimizing_for_a_gpu_without_one_raises() -> None:
    if gpu_at_hand() is not None:
        pytest.skip("there is a GPU here")
    for optimize in (
        lambda: network.compile_network(_model(), ((1, _T),), "sm_90"),
        lambda: fx.optimize(_program(), target="cuda", rounds=0, progress=False),
    ):
        with pytest.raises(NoGPU, match="target: "):
            optimize()


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.dense = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.dense(torch.relu(self.convolution(image)).mean((2, 3)))
        return result


@pytest.mark.usefixtures("compiler")
def test_parts_of_a_batch_compile() -> None:
    """A network with convolutions is compiled for a few batch sizes on GPUs as well."""
    model = _Net().eval()
    source, dims = read_network(model, ((fx.Dim("N", range(1, 7)), 3, 9, 9),))
    batch = batch_of(model, source, dims)
    assert batch is not None
    assert batch.sizes == (1, 4)
    for size in batch.sizes:
        fixed_model, inputs = batch.fixed(size)
        _, executable = lowered_model(import_model(fixed_model, inputs, _SM_90))
        binary = codegen.compile_source(codegen.cuda_source(executable), "sm_90")
        assert codegen.kernels_of(binary, "sm_90")


def test_timing_parts_on_a_gpu_synchronizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call on a GPU ends only when the GPU has finished."""
    synchronized: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", synchronized.append)

    class Part:
        def __init__(self, device: str) -> None:
            self.device = torch.device(device)

        def __call__(self, image: torch.Tensor) -> torch.Tensor:
            return image

    source, _ = read_network(_Net().eval(), ((fx.Dim("N", range(1, 7)), 3, 9, 9),))
    for device in ("cpu", "meta"):
        _whole(source.signature, Part(device), [torch.zeros(1)])  # type: ignore[arg-type]
    assert synchronized == [torch.device("meta")]
