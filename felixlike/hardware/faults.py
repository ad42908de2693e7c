"""Translate GPU errors of CUDA and TVM into felixlike's errors.

Input: another library's message. Output: an error that says what happened and what to do, or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from felixlike.errors import FelixlikeError, GPUFailed, GPUOutOfMemory, KernelOverLimits, NoGPU, WrongArchitecture

_Kind = Callable[..., FelixlikeError]

_FAULTS: tuple[tuple[str, _Kind, str, str], ...] = (
    (
        r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUDA[^.]*out of memory",
        GPUOutOfMemory,
        "the GPU has no memory left",
        "see with nvidia-smi what else uses it, or take a smaller batch",
    ),
    (
        r"LAUNCH_OUT_OF_RESOURCES|too many resources requested",
        KernelOverLimits,
        "a kernel asks for more registers or threads than a multiprocessor has",
        "optimize the model on this GPU: its schedules were made for another one",
    ),
    (
        r"cuFuncSetAttribute|MAX_DYNAMIC_SHARED_SIZE|Failed to set the allowed dynamic shared memory",
        KernelOverLimits,
        "a kernel asks for more shared memory than a block may have",
        "optimize the model on this GPU: its schedules were made for another one",
    ),
    (
        r"NO_BINARY_FOR_GPU|no kernel image|INVALID_PTX|UNSUPPORTED_PTX|ERROR_INVALID_IMAGE|invalid device function",
        WrongArchitecture,
        "the code is for GPUs of another architecture, or made by a newer compiler than the driver knows",
        "optimize the model on this GPU; `felixlike doctor` names the driver's version and the compiler's",
    ),
    (
        r"CUDA_ERROR_NO_DEVICE|no CUDA-capable device",
        NoGPU,
        "there is no GPU",
        "see nvidia-smi, and CUDA_VISIBLE_DEVICES",
    ),
    (
        r"CUDA_ERROR_NOT_INITIALIZED|Cannot re-initialize CUDA",
        GPUFailed,
        "this process was forked from one that used the GPU",
        "start it anew instead (multiprocessing's spawn), or load the model after the fork",
    ),
    (
        r"LAUNCH_TIMEOUT|launch timed out",
        GPUFailed,
        "a kernel ran for so long that the driver stopped it",
        "see whether other programs keep the GPU busy; it has to be used from a new process",
    ),
    (
        r"ILLEGAL_ADDRESS|MISALIGNED_ADDRESS|LAUNCH_FAILED|ILLEGAL_INSTRUCTION|illegal memory access",
        GPUFailed,
        "a kernel broke off, of this model or of what ran before it",
        "start a new process; CUDA_LAUNCH_BLOCKING=1 shows which kernel it is",
    ),
)
"""(pattern, error class, what happened, what to do). The first match counts."""


def fault_of(error: BaseException | str, *, where: str) -> FelixlikeError | None:
    """Return felixlike's error for another library's error, or None if it is not about a GPU."""
    text = str(error)
    for pattern, kind, what, remedy in _FAULTS:
        match = re.search(pattern, text)
        if match is not None:
            return kind(f"{what} ({match.group(0)})", where=where, remedy=remedy)
    return None
