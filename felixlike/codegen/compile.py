"""Compile scheduled functions and fused Relax modules to executables."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from felixlike import _tvm
from felixlike.codegen.cuda import compile_source, cuda_compiler, cuda_source
from felixlike.codegen.forget_result import forget_result
from felixlike.codegen.hidden_masks import hidden_masks
from felixlike.codegen.lone_output import lone_output
from felixlike.codegen.names_in_buffers import names_in_buffers
from felixlike.codegen.passes import asynchronous_copies
from felixlike.codegen.pipeline import lower
from felixlike.codegen.stream_outputs import most_bytes, stream_outputs
from felixlike.hardware import kind_of
from felixlike.hardware.occupancy import Kernel


def compile_primfuncs(
    module: Any, target: Any, *, kernels: list[Kernel] | None = None, checks_arguments: bool = True
) -> Any:
    """Compile an IRModule of scheduled PrimFuncs, after the passes of the target kind (`codegen/pipeline.py`).

    CUDA code is compiled by NVRTC, or by nvcc if that library is missing, for the target's architecture.

    Args:
        module: An IRModule of scheduled PrimFuncs.
        target: A TVM target.
        kernels: A list to which the resources of each CUDA kernel are appended.
        checks_arguments: Whether functions for CPUs compare the types, sizes and strides of the tensors that they are
            called with. Without that they compile in 0.7 of the time, and must be called with fitting tensors.

    Returns:
        An Executable.

    Raises:
        MissingCompiler: If there is no CUDA compiler.
        CompilationFailed: If the CUDA compiler fails.
    """
    module = lower(module, target)
    if kind_of(target).on_host:
        _tvm.prepare_launch()
        with nullcontext() if checks_arguments else _without_argument_checks(module):
            return _tvm.tvm.compile(module, target=target, tir_pipeline=_last_pass(target))
    target = _tvm.with_host(target)
    with target, cuda_compiler(target, kernels), asynchronous_copies(module):
        return _tvm.tvm.compile(module, target=target)


def cuda_binary(module: Any, target: Any) -> bytes:
    """Compile a scheduled IRModule to a cubin. No GPU is needed.

    Args:
        module: An IRModule of scheduled PrimFuncs.
        target: A cuda target.

    Raises:
        MissingCompiler: If there is no CUDA compiler.
        CompilationFailed: If the CUDA compiler fails.
    """
    module = lower(module, target)
    with asynchronous_copies(module):
        compiled = _tvm.tvm.compile(module, target=_tvm.with_host(target))
    return compile_source(cuda_source(compiled), str(target.attrs["arch"]))


def compile_relax(module: Any, target: Any, *, graphs: bool = True) -> tuple[Any, Any]:
    """Lower a fused Relax module and compile it; see `lower_relax` and `compile_lowered`.

    Returns:
        (lowered module, VM executable).
    """
    lowered = lower_relax(module, target, graphs=graphs)
    return lowered, compile_lowered(lowered, target)


def lower_relax(module: Any, target: Any, *, graphs: bool = True) -> Any:
    """Lower a fused Relax module until only its kernels are left to compile.

    This is the second half of TVM's own pipelines (relax/backend/cpu_generic/pipeline.py,
    relax/backend/cuda/pipeline.py). The first half, legalizing and fusing, must have been done, so that the tuned
    functions are the compiled ones.

    Args:
        module: A fused Relax module.
        target: A TVM target.
        graphs: Whether to use CUDA graphs on GPUs. The kernels between the one that reads an input and the one that
            writes the output are then captured at the first call and launched together by later calls. The graph keeps
            its memory. Dynamic sizes exclude graphs.

    Returns:
        The lowered module.
    """
    kind = kind_of(target)
    if not kind.on_host:
        target = _tvm.with_host(target)
    module = default_schedules(module, target)
    pipeline = _tvm.relax_pipeline(kind.name)
    with target:
        lowered = lone_output(_tvm.transform.Sequential(pipeline.dataflow_lower_passes(target))(module))
        captured = {"relax.backend.use_cuda_graph": True} if graphs and kind.binds_threads and _static(module) else {}
        with _tvm.transform.PassContext(config=captured):
            return forget_result(_tvm.transform.Sequential(pipeline.finalize_passes(target))(lowered))


def compile_lowered(lowered: Any, target: Any) -> Any:
    """Compile a Relax module of `lower_relax`.

    Args:
        lowered: The lowered module.
        target: A TVM target.

    Returns:
        The VM executable.
    """
    kind = kind_of(target)
    if kind.on_host:
        _tvm.prepare_launch()
    else:
        target = _tvm.with_host(target)
    with target, nullcontext() if kind.on_host else cuda_compiler(target):
        ready = lower(lowered, target)
        with asynchronous_copies(ready):
            last = _last_pass(target)
            return _tvm.tvm.compile(ready, target=target, relax_pipeline=None, tir_pipeline=last)


def _last_pass(target: Any) -> str:
    """Register TVM's pipeline with what changes between it and LLVM, and return its name."""
    most = most_bytes(target) if kind_of(target).on_host else None

    def finished(module: Any) -> Any:
        if most is not None:
            module = stream_outputs(module, most)
        return hidden_masks(names_in_buffers(module))

    return _tvm.with_last_pass(f"finished_{most}", finished)


def _without_argument_checks(module: Any) -> AbstractContextManager[Any]:
    """Return a context in which TVM compiles functions without checks of their arguments.

    TVM has one switch for these and for the assertions of the functions themselves. Functions with assertions keep all.
    """
    functions = (func for func in module.functions.values() if isinstance(func, _tvm.PrimFunc))
    if any(_tvm.found(func.body, _tvm.tirx.AssertStmt) for func in functions):
        return nullcontext()
    context: AbstractContextManager[Any] = _tvm.transform.PassContext(config={"tirx.disable_assert": True})
    return context


def _static(module: Any) -> bool:
    """Return whether a Relax module's functions have no dynamic sizes."""
    functions = [func for func in module.functions.values() if isinstance(func, _tvm.relax.Function)]
    return not any(_tvm.relax.analysis.defined_symbolic_vars(func) for func in functions)


def default_schedules(module: Any, target: Any) -> Any:
    """Return an IRModule whose unscheduled PrimFuncs have TVM's default GPU schedule (dlight).

    Plain loops cannot run on a GPU, since they are not bound to threads. For CPUs, the module is returned unchanged.

    Args:
        module: An IRModule.
        target: A TVM target.
    """
    if not kind_of(target).binds_threads:
        return module
    dlight = _tvm.dlight()
    gpu = dlight.gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    copies = _tvm.map_functions(module, _tvm.s_tir.renew_defs)  # dlight changes functions in place
    with target:
        return dlight.ApplyDefaultSchedule(*rules)(copies)
