"""Serve every batch size by a model compiled for a few batch sizes.

Inputs: the model compiled for several batch sizes, and the seconds per call of each. Output: `Chunked`, a `Compiled`
that splits a batch into parts of these sizes. The parts cover the batch exactly in the least total time: 13 = 4 + 4 + 4
+ 1. This is FTuner's combination of uKernels (§IV), with whole networks instead of uKernels and any number of sizes.
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
"""Maximum batch size. Chosen by hand."""


class Chunked(Compiled):
    """A model that splits its batch into parts of compiled sizes.

    Inputs whose first dimension is the batch are split along it; other inputs are passed to every part. Outputs must
    have the batch as their first dimension, and are concatenated. A batch of a compiled size is one call, without a
    copy, unless smaller parts take less time.

    Args:
        parts: The compiled model for each batch size.
        seconds: Seconds per call for each batch size.
        dim: Name, minimum and maximum of the batch size.
        key: See `Compiled`.

    Raises:
        ValueError: The parts do not match, or do not cover all batch sizes.
    """

    def __init__(
        self, parts: Mapping[int, Compiled], seconds: Mapping[int, float], dim: tuple[str, int, int], *, key: str = ""
    ) -> None:
        """Combine the parts; see the class."""
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
            outputs=tuple(
                replace(_at(spec, most), order=()) for spec in first.outputs
            ),  # each part restores its spec order
            signature=first.signature,
            structure=first.structure,
            target=first.target,
            name=first.name,
            key=key,
            parallel=any(part.parallel for part in self.parts.values()),
            sizes=Sizes((dim,), places) if least < most else None,
            unaligned=all(part.unaligned for part in self.parts.values()),
        )

    @property
    def whole(self) -> Compiled | None:
        """The part for the whole batch of a model that has one batch size; None for other models."""
        _, least, most = self.dim
        return self.parts.get(most) if least == most else None

    def steps(self, size: int) -> list[int]:
        """Return the sizes of the parts that a batch is split into, largest first."""
        sizes = []
        while size:
            sizes.append(self._last[size])
            size -= sizes[-1]
        return sorted(sizes, reverse=True)

    def _virtual_machine(self) -> Any:
        """Return a stand-in for a virtual machine, with one machine per part."""
        mains = {size: part._main(part._virtual_machine()) for size, part in self.parts.items()}
        return {"main": self._split(mains)}

    def _split(self, mains: Mapping[int, Callable[..., Any]]) -> Callable[..., Any]:
        """Return a stand-in for a virtual machine's function. It returns one part's result, or a list of tensors."""
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
                part_inputs = [
                    part.at_hand(place, tensor[start : start + step]) if cut else tensor
                    for place, (tensor, cut) in enumerate(zip(tensors, self._cut, strict=True))
                ]
                results.append(part._leaves(mains[step](*part_inputs)))
                start += step
            with on_this_thread():
                return [torch.cat(pieces) for pieces in zip(*results, strict=True)]

        return main

    def _leaves(self, result: Any) -> list[Any]:
        """Return the output tensors of a result."""
        return result if type(result) is list else super()._leaves(result)


def _last_steps(seconds: Mapping[int, float], least: int, most: int) -> list[int]:
    """Return the size of one part of the fastest cover of each batch size. Raise ValueError if one has no cover."""
    last = _least_time(seconds, most)
    if not 1 <= least <= most or not all(last[least:]):
        raise ValueError(f"parts for batch sizes {', '.join(map(str, seconds))} do not cover {least} to {most}")
    return last


def _least_time(seconds: Mapping[int, float], most: int) -> list[int]:
    """Return the size of one part of the fastest cover of each size from 0 to `most`; 0 without a cover."""
    best, last = [0.0], [0]
    for size in range(1, most + 1):
        least, step = math.inf, 0
        for part, part_seconds in seconds.items():
            if part <= size and best[size - part] + part_seconds < least:
                least, step = best[size - part] + part_seconds, part
        best.append(least)
        last.append(step)
    return last


def _at(spec: Any, size: int) -> Any:
    """Return a specification with another batch size."""
    return replace(spec, shape=(size, *spec.shape[1:]))


def _batched(parts: Mapping[int, Compiled]) -> list[bool]:
    """Return which inputs have the batch as their first dimension.

    Raise ValueError unless all outputs have it, and everything else is the same in all parts."""
    if len(parts) < 2 or min(parts) < 1:
        raise ValueError(f"expected parts for two or more positive batch sizes, got {', '.join(map(str, parts))}")
    first, *others = parts.values()
    if any(_kind(part) != _kind(first) for part in others):
        raise ValueError("the parts differ in inputs, outputs or target")
    cut = [len({part.inputs[place].shape for part in parts.values()}) > 1 for place in range(len(first.inputs))]
    for size, part in parts.items():
        specs: list[tuple[TensorSpec, TensorSpec, bool]] = [
            *zip(part.inputs, first.inputs, cut, strict=True),
            *((spec, other, True) for spec, other in zip(part.outputs, first.outputs, strict=True)),
        ]
        if not all(_fits(spec, other, size if batched else None) for spec, other, batched in specs):
            raise ValueError(f"the tensors of the part for batch size {size} do not match those of the other parts")
    if not any(cut):
        raise ValueError("no input has a batch dimension")
    return cut


def _kind(part: Compiled) -> tuple[Any, Any, str]:
    """Return what must be equal for all parts: signature, structure and target."""
    return part.signature, part.structure, str(part.target)


def _fits(spec: TensorSpec, other: TensorSpec, size: int | None) -> bool:
    """Return whether two parts' tensors differ at most in the batch, which must be `size` unless that is None."""
    if (spec.name, spec.dtype) != (other.name, other.dtype):
        return False
    if size is None:
        return spec.shape == other.shape
    return bool(spec.shape) and spec.shape[0] == size and spec.shape[1:] == other.shape[1:]


def described(compiled: Chunked) -> dict[str, Any]:
    """Return JSON data that describe the parts."""
    return {
        "key": compiled.key,
        "dim": list(compiled.dim),
        "parts": [[size, seconds] for size, seconds in compiled.seconds.items()],
    }


def from_description(data: Any, part: Callable[[int], Compiled]) -> Chunked:
    """Restore a model from the data of `described`.

    Args:
        data: JSON data.
        part: Opens the part of a batch size.

    Raises:
        ValueError: The data are malformed.
    """
    try:
        (name, least, most), key = data["dim"], data["key"]
        seconds = dict(data["parts"])
    except (KeyError, TypeError, ValueError):
        raise ValueError("dim, key or parts is missing or malformed") from None
    numbers: Sequence[Any] = (least, most, *seconds)
    if not isinstance(name, str) or not isinstance(key, str) or any(type(n) is not int for n in numbers):
        raise ValueError("dim, key or parts has a value of a wrong type")
    if not all(isinstance(each, float) and 0.0 < each < math.inf for each in seconds.values()):
        raise ValueError("the seconds of a part are not a positive number")
    if not 1 <= least <= most <= MOST_SIZE or not all(1 <= size <= most for size in seconds):
        raise ValueError(f"sizes are out of range: {least} to {most}, parts for {', '.join(map(str, seconds))}")
    return Chunked({size: part(size) for size in seconds}, seconds, (name, least, most), key=key)
