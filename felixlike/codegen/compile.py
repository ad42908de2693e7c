"""Scheduled functions and fused Relax modules → executables."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from felixlike import tvmlib
from felixlike.codegen.cuda import cuda_compiler
from felixlike.codegen.lone_output import lone_output
from felixlike.codegen.passes import asynchronous_copies
from felixlike.codegen.pipeline import lower
from felixlike.hardware import kind_of
from felixlike.hardware.occupancy import Kernel


def compile_primfuncs(module: Any, target: Any, *, kernels: list[Kernel] | None = None) -> Any:
    """An IRModule of scheduled PrimFuncs as an Executable.  CUDA code is compiled by NVRTC, or by nvcc where that
    library is missing, for the architecture the target names.  First the passes of the target's kind are run
    (`codegen/pipeline.py`).

    kernels: gets what the CUDA compiler says of each kernel."""
    module = lower(module, target)
    if kind_of(target).on_host:
        return tvmlib.tvm.compile(module, target=target)
    target = tvmlib.with_host(target)
    with target, cuda_compiler(target, kernels), asynchronous_copies(module):
        return tvmlib.tvm.compile(module, target=target)


def compile_relax(module: Any, target: Any) -> tuple[Any, Any]:
    """Lower a fused Relax module and compile it.  Returns (lowered module, VM executable).

    The second half of TVM's own pipelines (relax/backend/cpu_generic/pipeline.py, relax/backend/cuda/pipeline.py): the
    first half, legalising and fusing, must have been done, so that what was tuned is what is compiled."""
    kind = kind_of(target)
    if not kind.on_host:
        target = tvmlib.with_host(target)
    module = default_schedules(module, target)
    pipeline = tvmlib.relax_pipeline(kind.name)
    with target, nullcontext() if kind.on_host else cuda_compiler(target):
        lowered = lone_output(tvmlib.transform.Sequential(pipeline.dataflow_lower_passes(target))(module))
        lowered = tvmlib.transform.Sequential(pipeline.finalize_passes(target))(lowered)
        ready = lower(lowered, target)
        with asynchronous_copies(ready):
            return lowered, tvmlib.tvm.compile(ready, target=target, relax_pipeline=None)


def default_schedules(module: Any, target: Any) -> Any:
    """An IRModule whose unscheduled PrimFuncs have TVM's default GPU schedule (dlight); for CPUs the module itself.

    Plain loops cannot run on a GPU: nothing in them is bound to threads."""
    if not kind_of(target).binds_threads:
        return module
    dlight = tvmlib.dlight()
    gpu = dlight.gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    with target:
        return dlight.ApplyDefaultSchedule(*rules)(module)
