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
        "the GPU is out of memory",
        "check with nvidia-smi which processes use it, or use a smaller batch",
    ),
    (
        r"LAUNCH_OUT_OF_RESOURCES|too many resources requested",
        KernelOverLimits,
        "a kernel needs more registers or threads than a multiprocessor has",
        "optimize the model on this GPU: its schedules were made for another one",
    ),
    (
        r"cuFuncSetAttribute|MAX_DYNAMIC_SHARED_SIZE|Failed to set the allowed dynamic shared memory",
        KernelOverLimits,
        "a kernel needs more shared memory than a block can have",
        "optimize the model on this GPU: its schedules were made for another one",
    ),
    (
        r"NO_BINARY_FOR_GPU|no kernel image|INVALID_PTX|UNSUPPORTED_PTX|ERROR_INVALID_IMAGE|invalid device function",
        WrongArchitecture,
        "the code was compiled for another GPU architecture, or by a compiler newer than the driver supports",
        "optimize the model on this GPU; `felixlike doctor` shows the versions of the driver and the compiler",
    ),
    (
        r"CUDA_ERROR_NO_DEVICE|no CUDA-capable device",
        NoGPU,
        "no GPU was found",
        "check nvidia-smi and CUDA_VISIBLE_DEVICES",
    ),
    (
        r"CUDA_ERROR_NOT_INITIALIZED|Cannot re-initialize CUDA",
        GPUFailed,
        "this process was forked from one that used the GPU",
        "start processes with multiprocessing's spawn method, or load the model after the fork",
    ),
    (
        r"LAUNCH_TIMEOUT|launch timed out",
        GPUFailed,
        "the driver stopped a kernel that ran too long",
        "check whether other programs use the GPU, and start a new process",
    ),
    (
        r"ILLEGAL_ADDRESS|MISALIGNED_ADDRESS|LAUNCH_FAILED|ILLEGAL_INSTRUCTION|illegal memory access",
        GPUFailed,
        "a kernel aborted, either of this model or of code that ran before it",
        "start a new process; CUDA_LAUNCH_BLOCKING=1 shows which kernel failed",
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
