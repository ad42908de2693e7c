"""Extents, bytes and strides that a store touches at each loop level."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from support.oracles.walk import Aligns, Ints, Loop, Store


class Counter:
    """Counts what one store touches, level by level."""

    def __init__(self, store: Store, homes: dict[Any, list[Loop]], aligns: Mapping[Any, Aligns]) -> None:
        self.store, self.aligns = store, aligns
        self.extents = [loop.extent for loop in store.loops]
        self.total = math.prod(self.extents)
        self.homes = homes

    def inner(self, level: int) -> int:
        return math.prod(self.extents[level:])

    def fixed(self, buffer: Any, level: int) -> bool:
        """Return whether the buffer is allocated inside the loop, so that further iterations reach no new elements."""
        return self.store.loops[level] in self.homes.get(buffer, [])

    def box(self, buffer: Any, level: int) -> list[int]:
        """Return the extent in each dimension of the elements touched by one run of the loops from `level` inwards."""
        runs = np.ones(self.extents, dtype=bool)
        for outer in range(len(self.extents)):
            if outer < level or self.fixed(buffer, outer):
                runs[(slice(None),) * outer + (slice(1, None),)] = False
        rows = runs.reshape(-1)
        return [self.width(buffer, d, rows) for d in range(len(buffer.shape))]

    def width(self, buffer: Any, dimension: int, rows: npt.NDArray[np.bool_]) -> int:
        arrays = [a[dimension][rows] for a in self.accesses(buffer)]
        if (buffer, dimension) in self.store.looked_up:
            return min(max(len(np.unique(a)) for a in arrays), int(buffer.shape[dimension]))
        return int(max(a.max() for a in arrays)) - int(min(a.min() for a in arrays)) + 1

    def accesses(self, buffer: Any) -> list[list[Ints]]:
        return self.store.elements[buffer]

    def touched(self, level: int) -> int:
        return sum(math.prod(self.box(b, level)) * item(b) for b in self.store.elements)

    def shape(self, buffer: Any) -> list[int]:
        """Return the buffer's shape; for an internal buffer, the used part of it."""
        return self.whole[buffer] if buffer in self.homes else [int(e) for e in buffer.shape]

    whole: dict[Any, list[int]]

    def stride(self, buffer: Any, level: int) -> float:
        """Return the average distance in elements of two iterations of a loop, the smallest of all accesses.

        Returns 0 if the loop does not move the access."""
        if self.fixed(buffer, level):
            return 0
        steps = []
        shape, steps_of_dimensions = self.shape(buffer), self.between(buffer)
        for arrays in self.accesses(buffer):
            count = self.extents[level] - 1
            last = self.inner(level + 1) * count
            total = 0.0
            for d, (extent, array) in enumerate(zip(shape, arrays, strict=True)):
                distance = float(array[last] - array[0])
                if (buffer, d) in self.store.looked_up:
                    distance = count * extent / 3 if distance else 0.0
                total += distance * steps_of_dimensions[d]
            steps.append(abs(total) / count / self.word(buffer))
        return min((s for s in steps if s), default=0)

    def between(self, buffer: Any) -> list[int]:
        """Return the distance between neighbours in each dimension, in elements."""
        steps: list[int] = []
        step = 1
        for d, extent in reversed(list(enumerate(self.shape(buffer)))):
            for dimension, factor, offset in self.aligns.get(buffer, ()):
                while dimension == d and step % factor != offset:
                    step += 1
            steps.append(step)
            step *= extent
        return steps[::-1]

    def item(self, buffer: Any) -> int:
        """Return the bytes that an execution touches: those of an element, or of a pair of them, in each row."""
        return item(buffer) * self.store.pairs[buffer] * self.store.rows[buffer]

    def word(self, buffer: Any) -> int:
        """Return the elements that an execution touches as one: a pair of neighbours, or one."""
        pairs = self.store.pairs[buffer]
        first, *others = ([int(array[0]) for array in arrays] for arrays in self.accesses(buffer)[:pairs])
        steps = self.between(buffer)
        distances = [sum((b - a) * s for a, b, s in zip(first, other, steps, strict=True)) for other in others]
        return pairs if pairs > 1 and distances == [1] else 1

    def moved(self, buffer: Any, level: int) -> bool:
        """Return whether the loop touches more elements than the loops inside it."""
        return self.box(buffer, level) != self.box(buffer, level + 1)


def item(buffer: Any) -> int:
    """Return the size of an element in bytes."""
    return 1 if str(buffer.dtype) == "bool" else np.dtype(str(buffer.dtype)).itemsize
