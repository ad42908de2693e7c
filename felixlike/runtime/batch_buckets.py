"""A model compiled for a few batch sizes that serves every size: the batch is cut into parts of those sizes.

In: the same model compiled for several batch sizes, and what a call of each takes. Out: `Chunked`, a `Compiled` that
covers a call's batch exactly, by the parts that take least together: 13 = 4 + 4 + 4 + 1. It is FTuner's combination of
uKernels (§IV) with whole networks for uKernels, of any number of kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from felixlike.frontend import Sizes, TensorSpec
from felixlike.runtime.callable import Compiled
from felixlike.runtime.serial_copy import on_this_thread

MOST_SIZE = 2**16
"""Of a batch."""


class Chunked(Compiled):
    """Inputs whose first dimension is the batch are cut along it, others are given to every part; outputs, whose first
    dimension it is too, are joined. A batch of one of the sizes is one call, without a copy.

    parts: the model by batch size.  seconds: of a call of each.  dim: name, least and largest of the batch."""

    def __init__(
        self, parts: Mapping[int, Compiled], seconds: Mapping[int, float], dim: tuple[str, int, int], *, key: str = ""
    ) -> None:
        """Raises ValueError for parts that do not fit together, or do not cover all sizes."""
        name, least, most = dim
        self.parts = {size: parts[size] for size in sorted(parts)}
        self.seconds = {size: float(seconds[size]) for size in self.parts}
        self.dim = dim
        self._cut = _batched(self.parts)
        self._last = _last_steps(self.seconds, least, most)
        first = next(iter(self.parts.values()))
        inputs = tuple(_at(spec, most) if cut else spec for spec, cut in zip(first.inputs, self._cut, strict=True))
        places = tuple(
            tuple(name if cut and not place else None for place in range(len(spec.shape)))
            for spec, cut in zip(inputs, self._cut, strict=True)
        )
        super().__init__(
            None,
            inputs=inputs,
            outputs=tuple(replace(_at(spec, most), order=()) for spec in first.outputs),  # each part sees to its own
            signature=first.signature,
            structure=first.structure,
            target=first.target,
            name=first.name,
            key=key,
            parallel=any(part.parallel for part in self.parts.values()),
            sizes=Sizes((dim,), places),
            unaligned=all(part.unaligned for part in self.parts.values()),
        )

    def steps(self, size: int) -> list[int]:
        """The batch sizes of the parts that a batch is cut into, largest first."""
        found = []
        while size:
            found.append(self._last[size])
            size -= found[-1]
        return sorted(found, reverse=True)

    def _virtual_machine(self) -> Any:
        mains = {size: part._virtual_machine()["main"] for size, part in self.parts.items()}
        return {"main": self._main(mains)}

    def _main(self, mains: Mapping[int, Callable[..., Any]]) -> Callable[..., Any]:
        """What stands for a virtual machine's function: tensors in, the result of one part or a list of tensors out."""
        import torch

        first = self._cut.index(True)
        known: dict[int, list[int]] = {}

        def main(*tensors: Any) -> Any:
            size = tensors[first].shape[0]
            steps = known.get(size)
            if steps is None:
                steps = known[size] = self.steps(size)
            if len(steps) == 1:
                return self.parts[size].in_order(mains[size](*tensors))
            results, start = [], 0
            for step in steps:
                part = self.parts[step]
                own = [
                    part.at_hand(place, tensor[start : start + step]) if cut else tensor
                    for place, (tensor, cut) in enumerate(zip(tensors, self._cut, strict=True))
                ]
                results.append(part._leaves(mains[step](*own)))
                start += step
            with on_this_thread():
                return [torch.cat(pieces) for pieces in zip(*results, strict=True)]

        return main

    def _leaves(self, result: Any) -> list[Any]:
        return result if type(result) is list else super()._leaves(result)


def _last_steps(seconds: Mapping[int, float], least: int, most: int) -> list[int]:
    """The size of one part of the best cover of each batch size."""
    found = _least_time(seconds, most)
    if not 1 <= least <= most or not all(found[least:]):
        raise ValueError(f"parts of {', '.join(map(str, seconds))} do not cover {least} to {most}")
    return found


def _least_time(seconds: Mapping[int, float], most: int) -> list[int]:
    """For every size a part of the cover that takes least, 0 where there is none."""
    best, last = [0.0], [0]
    for size in range(1, most + 1):
        least, step = math.inf, 0
        for part, own in seconds.items():
            if part <= size and best[size - part] + own < least:
                least, step = best[size - part] + own, part
        best.append(least)
        last.append(step)
    return last


def _at(spec: Any, size: int) -> Any:
    """A specification with another batch size."""
    return replace(spec, shape=(size, *spec.shape[1:]))


def _batched(parts: Mapping[int, Compiled]) -> list[bool]:
    """Which inputs have the batch for their first dimension.  Raises ValueError unless all outputs have, and all else
    is the same in all parts."""
    if len(parts) < 2 or min(parts) < 1:
        raise ValueError("there are not two parts")
    first, *others = parts.values()
    if any(_kind(part) != _kind(first) for part in others):
        raise ValueError("its parts are called in different ways")
    cut = [len({part.inputs[place].shape for part in parts.values()}) > 1 for place in range(len(first.inputs))]
    for size, part in parts.items():
        specs: list[tuple[TensorSpec, TensorSpec, bool]] = [
            *zip(part.inputs, first.inputs, cut, strict=True),
            *((own, other, True) for own, other in zip(part.outputs, first.outputs, strict=True)),
        ]
        if not all(_fits(own, other, size if batched else None) for own, other, batched in specs):
            raise ValueError(f"its part for {size} does not fit the others")
    if not any(cut):
        raise ValueError("no input has the batch")
    return cut


def _kind(part: Compiled) -> tuple[Any, Any, str]:
    return part.signature, part.structure, str(part.target)


def _fits(own: TensorSpec, other: TensorSpec, size: int | None) -> bool:
    """Whether a part's tensor is another's but for the batch, which is the part's."""
    if (own.name, own.dtype) != (other.name, other.dtype):
        return False
    if size is None:
        return own.shape == other.shape
    return bool(own.shape) and own.shape[0] == size and own.shape[1:] == other.shape[1:]


def described(compiled: Chunked) -> dict[str, Any]:
    """JSON data of how the parts go together."""
    return {
        "key": compiled.key,
        "dim": list(compiled.dim),
        "parts": [[size, seconds] for size, seconds in compiled.seconds.items()],
    }


def from_description(data: Any, part: Callable[[int], Compiled]) -> Chunked:
    """The inverse of `described`.  part: opens one by its size.  Raises ValueError for data that does not fit."""
    try:
        (name, least, most), key = data["dim"], data["key"]
        seconds = dict(data["parts"])
    except (KeyError, TypeError, ValueError):
        raise ValueError("it does not say what its parts are") from None
    numbers: Sequence[Any] = (least, most, *seconds)
    if not isinstance(name, str) or not isinstance(key, str) or any(type(n) is not int for n in numbers):
        raise ValueError("it does not say which sizes there are")
    if not all(isinstance(own, float) and 0.0 < own < math.inf for own in seconds.values()):
        raise ValueError("its parts take no time")
    if not 1 <= least <= most <= MOST_SIZE or not all(1 <= size <= most for size in seconds):
        raise ValueError("its sizes are out of range")
    return Chunked({size: part(size) for size in seconds}, seconds, (name, least, most), key=key)
