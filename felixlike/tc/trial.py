"""A comprehension tried out: random inputs, and how long a call takes.

In: a program, sizes. Out: torch tensors; seconds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from felixlike._util.wording import choose_from
from felixlike.errors import InvalidOption
from felixlike.tc.call import Given
from felixlike.tc.instance import instance
from felixlike.tc.program import Program
from felixlike.tc.scalars import is_float, limits

_CALLS, _SECONDS = 200, 1.0
"""Most calls that are timed, and for how long."""


def random_inputs(
    program: Program, sizes: Mapping[str, int], otherwise: int, *, seed: int
) -> tuple[list[Any], dict[str, Any]]:
    """A tensor for each parameter, and one for each output that is accumulated into.

    sizes: by name; otherwise: of dimensions that are not among them. Floats are standard normal; integers may index
    every dimension that there is. Raises InvalidOption for unknown sizes, TCRangeError where the program has no ranges
    for these."""
    import torch

    for name in sizes:
        if name not in program.sizes:
            raise InvalidOption(
                f"there is no size {name!r}", where=program.name, remedy=choose_from(name, program.sizes)
            )
    random = torch.Generator().manual_seed(seed)
    given = [
        Given(
            tuple(dim if isinstance(dim, int) else sizes.get(dim, otherwise) for dim in parameter.dims), parameter.dtype
        )
        for parameter in program.parameters
    ]
    made = instance(program, given)
    least = min([size for tensor in given for size in tensor.shape], default=otherwise)

    def filled(shape: tuple[int, ...], dtype: str) -> Any:
        if is_float(dtype):
            return torch.randn(shape, dtype=getattr(torch, dtype), generator=random)
        high = 2 if dtype == "bool" else min(least, limits(dtype)[1])
        return torch.randint(0, max(1, high), shape, generator=random).to(getattr(torch, dtype))

    inputs = [filled(tensor.shape, tensor.dtype) for tensor in given]
    return inputs, {o.name: filled(made.ranges.shape(o.name), o.dtype) for o in program.given}


def seconds_of(call: Callable[..., Any], inputs: Sequence[Any], given: Mapping[str, Any]) -> float:
    """The median time of a call, after one that is not timed."""
    taken: list[float] = []
    call(*inputs, out=given or None)
    while len(taken) < _CALLS and (math.fsum(taken) < _SECONDS or len(taken) < 3):
        started = time.perf_counter()
        call(*inputs, out=given or None)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)
