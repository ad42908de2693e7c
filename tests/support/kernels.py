"""Compile and run the kernels of sketches whose constants are packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from felixlike import _tvm, codegen
from felixlike.measure.packing import cut
from felixlike.symbolic import Sketch


def halves(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return numbers as PyTorch rounds them to bfloat16."""
    rounded: npt.NDArray[np.float32] = torch.from_numpy(array).bfloat16().float().numpy()
    return rounded


def arrays(func: Any) -> list[npt.NDArray[np.float32]]:
    """Return contents for the parameters of a function, the output included."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal([int(e) for e in p.shape]).astype("float32") for p in func.params]


def answer(sketch: Sketch, point: tuple[int, ...], arrays: list[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Return what the kernel of a point computes of packed constants."""
    kernel, packings = cut(sketch.schedule(point).mod["main"])
    arguments: list[Any] = list(arrays)
    for packing in packings:
        assert packing.dtype == "bfloat16"
        packed = _tvm.runtime.empty(packing.shape, packing.dtype)
        packer = library({"pack": packing.function}, sketch.task.target)
        packer["pack"](_tvm.runtime.tensor(arrays[packing.parameter]), packed)
        arguments[packing.parameter] = packed
    return run(_tvm.IRModule({"main": kernel}), arguments, sketch.task.target)


def library(functions: dict[str, Any], target: Any) -> Any:
    """Compile scheduled functions, and return the library with them."""
    module = _tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in functions.items()})
    return codegen.compile_primfuncs(module, target, checks_arguments=False).jit()


def run(module: Any, arrays: list[Any], target: Any) -> npt.NDArray[np.float32]:
    """Return the last parameter after a call."""
    arguments = [_tvm.runtime.tensor(a) if isinstance(a, np.ndarray) else a for a in arrays]
    library({"main": module["main"]}, target)["main"](*arguments)
    answer: npt.NDArray[np.float32] = arguments[-1].numpy()
    return answer


def assembly(sketch: Sketch) -> str:
    """Return the assembly of a point's kernel."""
    kernel, _ = cut(sketch.schedule(sketch.sample(1, seed=0)[0].tolist()).mod["main"])
    module = _tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    return str(codegen.compile_primfuncs(module, sketch.task.target).mod.inspect_source("asm"))
