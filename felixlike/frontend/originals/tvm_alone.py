"""Evaluate a Relax module as the user passed it, compiled by TVM without felixlike's rewrites, rules and passes.

Input: an IRModule with "main", before `rewrites.pipeline.fuse`. Output: an `Original`. Only TVM can run such a
module, so the reference shares TVM's operators and code generation with the compiled module. It has the module's own
precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from felixlike import _tvm
from felixlike._util.torch_modes import alone
from felixlike.frontend.originals.original import moved_by_a_rounding
from felixlike.hardware import host_target, quickly_compiled


class RelaxOriginal:
    """Evaluate a Relax module with TVM's default pipeline, on this machine's CPU."""

    exact = False

    def __init__(self, module: Any) -> None:
        self._module = module

    def name(self, *, wide: bool) -> str:
        """Return the name of the evaluator."""
        return "TVM's own build of the module as given"

    def memory(self, *, wide: bool) -> int:
        """Return 0: constants are shared with the module."""
        return 0

    def outputs(self, inputs: Sequence[Any], *, wide: bool = False, moved: int | None = None) -> Any:
        """Evaluate the module. Its constants are not perturbed.  Raises ValueError for float64, which TVM cannot do."""
        if wide:
            raise ValueError("a Relax module cannot be evaluated in float64")
        tensors = [tensor.clone() for tensor in inputs]
        if moved is not None:
            moved_by_a_rounding(tensors, moved)
        return _nested(self._main(*tensors))

    @cached_property
    def _main(self) -> Any:
        """Compile the module and return its "main". LLVM must not vectorize loops (`codegen/hidden_masks.py`)."""
        target = quickly_compiled(host_target())
        with alone(), target:  # TVM's operator library is not safe in several threads
            executable = _tvm.tvm.compile(self._module, target=target)
        return _tvm.relax.VirtualMachine(executable, _tvm.device_of(target))["main"]


def _nested(value: Any) -> Any:
    """Convert TVM's tensors, and arrays of them, to torch tensors."""
    import torch

    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, _tvm.runtime.Tensor):
        return torch.utils.dlpack.from_dlpack(value)
    return [_nested(part) for part in value]
