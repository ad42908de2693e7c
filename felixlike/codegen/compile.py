"""Scheduled functions and fused Relax modules → executables."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from felixlike import _tvm
from felixlike.codegen.cuda import compile_source, cuda_compiler, cuda_source
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
        return _tvm.tvm.compile(module, target=target)
    target = _tvm.with_host(target)
    with target, cuda_compiler(target, kernels), asynchronous_copies(module):
        return _tvm.tvm.compile(module, target=target)


def cuda_binary(module: Any, target: Any) -> bytes:
    """The machine code of a scheduled IRModule for a cuda target, with a GPU or without.

    Raises MissingCompiler and CompilationFailed."""
    module = lower(module, target)
    with asynchronous_copies(module):
        compiled = _tvm.tvm.compile(module, target=_tvm.with_host(target))
    return compile_source(cuda_source(compiled), str(target.attrs["arch"]))


def compile_relax(module: Any, target: Any, *, graphs: bool = True) -> tuple[Any, Any]:
    """Lower a fused Relax module and compile it.  Returns (lowered module, VM executable).

    graphs: on GPUs, the kernels between the one that reads an input and the one that writes the output become a CUDA
    graph at the first call, which later calls start at once, in memory that is theirs for good; unless calls decide
    sizes.

    The second half of TVM's own pipelines (relax/backend/cpu_generic/pipeline.py, relax/backend/cuda/pipeline.py): the
    first half, legalising and fusing, must have been done, so that what was tuned is what is compiled."""
    kind = kind_of(target)
    if not kind.on_host:
        target = _tvm.with_host(target)
    module = default_schedules(module, target)
    pipeline = _tvm.relax_pipeline(kind.name)
    with target, nullcontext() if kind.on_host else cuda_compiler(target):
        lowered = lone_output(_tvm.transform.Sequential(pipeline.dataflow_lower_passes(target))(module))
        captured = {"relax.backend.use_cuda_graph": True} if graphs and kind.binds_threads and _static(module) else {}
        with _tvm.transform.PassContext(config=captured):
            lowered = _tvm.transform.Sequential(pipeline.finalize_passes(target))(lowered)
        ready = lower(lowered, target)
        with asynchronous_copies(ready):
            return lowered, _tvm.tvm.compile(ready, target=target, relax_pipeline=None)


def _static(module: Any) -> bool:
    """Whether no size of a Relax module's functions is left to its calls."""
    functions = [func for func in module.functions.values() if isinstance(func, _tvm.relax.Function)]
    return not any(_tvm.relax.analysis.defined_symbolic_vars(func) for func in functions)


def default_schedules(module: Any, target: Any) -> Any:
    """An IRModule whose unscheduled PrimFuncs have TVM's default GPU schedule (dlight); for CPUs the module itself.

    Plain loops cannot run on a GPU: nothing in them is bound to threads."""
    if not kind_of(target).binds_threads:
        return module
    dlight = _tvm.dlight()
    gpu = dlight.gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    own = _tvm.map_functions(module, _tvm.s_tir.renew_defs)  # dlight changes functions in place
    with target:
        return dlight.ApplyDefaultSchedule(*rules)(own)
