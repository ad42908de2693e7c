"""Run a comprehension on random inputs and time it.

Input: a program, sizes. Output: torch tensors; seconds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from felixlike._util.wording import choose_from
from felixlike.errors import InvalidOption
from felixlike.hardware.probe import free_memory_bytes
from felixlike.tc.call import Given
from felixlike.tc.instance import instance
from felixlike.tc.program import Program
from felixlike.tc.scalars import is_float, limits

_CALLS, _SECONDS = 200, 1.0
"""Upper limits on timed calls and on their total time in seconds. Chosen by hand."""


def random_inputs(
    program: Program, sizes: Mapping[str, int], otherwise: int, *, seed: int
) -> tuple[list[Any], dict[str, Any]]:
    """Return a random tensor for each parameter, and one by name for each output that is accumulated into.

    Floats are standard normal. Integers are valid indices of every dimension.

    Args:
        program: The program.
        sizes: Sizes by name.
        otherwise: Size of dimensions missing from `sizes`.
        seed: Seed of the random generator.

    Raises:
        InvalidOption: A name in `sizes` is unknown, or the tensors need more memory than is available.
        TCRangeError: No ranges can be inferred for these sizes.
    """
    import torch

    for name in sizes:
        if name not in program.sizes:
            raise InvalidOption(f"unknown size {name!r}", where=program.name, remedy=choose_from(name, program.sizes))
    random = torch.Generator().manual_seed(seed)
    signature = [
        Given(
            tuple(dim if isinstance(dim, int) else sizes.get(dim, otherwise) for dim in parameter.dims), parameter.dtype
        )
        for parameter in program.parameters
    ]
    made = instance(program, signature)
    tensors = [(tensor.shape, tensor.dtype) for tensor in signature]
    tensors += [(made.ranges.shape(output.name), output.dtype) for output in program.outputs]
    needed = sum(math.prod(shape) * getattr(torch, dtype).itemsize for shape, dtype in tensors)
    free = free_memory_bytes()
    if free is not None and needed > free:
        raise InvalidOption(
            f"the inputs and outputs need {needed / 2**30:.1f} GiB, but only {free / 2**30:.1f} GiB are available",
            where=program.name,
            remedy="use smaller sizes",
        )
    least = min([size for tensor in signature for size in tensor.shape], default=otherwise)

    def filled(shape: tuple[int, ...], dtype: str) -> Any:
        if is_float(dtype):
            return torch.randn(shape, dtype=getattr(torch, dtype), generator=random)
        high = 2 if dtype == "bool" else min(least, limits(dtype)[1])
        return torch.randint(0, max(1, high), shape, generator=random).to(getattr(torch, dtype))

    inputs = [filled(tensor.shape, tensor.dtype) for tensor in signature]
    return inputs, {o.name: filled(made.ranges.shape(o.name), o.dtype) for o in program.given}


def seconds_of(call: Callable[..., Any], inputs: Sequence[Any], given: Mapping[str, Any]) -> float:
    """Return the median time of a call in seconds, after one warm-up call."""
    times: list[float] = []
    call(*inputs, out=given or None)
    while len(times) < _CALLS and (math.fsum(times) < _SECONDS or len(times) < 3):
        started = time.perf_counter()
        call(*inputs, out=given or None)
        times.append(time.perf_counter() - started)
    return statistics.median(times)
