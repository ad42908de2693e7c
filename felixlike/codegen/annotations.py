"""What schedule rules tell passes: notes on loops, as TVM keeps them in schedules, traces and records.

A rule puts a mark on a loop; a pass finds it there, and the loop's annotation says the rest. What is written is part of
every stored trace, so keys and values stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from felixlike._tvm.typing import Loop, LoopRef, Schedule


@dataclass(frozen=True, slots=True)
class LoopAnnotation:
    """key: of the annotation.  Marks without fields are just there; the fields of others are whole numbers."""

    key: ClassVar[str]

    @property
    def value(self) -> Any:
        """What stands in the annotation: the number, or a list of several."""
        numbers = [getattr(self, own.name) for own in fields(self)]
        return (numbers if len(numbers) > 1 else numbers[0]) if numbers else True

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """The inverse of `value`."""
        count = len(fields(cls))
        return cls(*map(int, value if count > 1 else [value] if count else ()))

    @classmethod
    def on(cls, loop: Loop) -> bool:
        """Whether a loop of a function carries such a mark."""
        return cls.key in loop.annotations

    @classmethod
    def of(cls, loop: Loop) -> Self:
        """The mark that a loop of a function carries."""
        return cls.from_value(loop.annotations[cls.key])

    def put(self, schedule: Schedule, loop: LoopRef) -> None:
        """LoopAnnotation a loop of a schedule."""
        schedule.annotate(loop, self.key, self.value)


@dataclass(frozen=True, slots=True)
class Guard(LoopAnnotation):
    """On a vectorised loop in which a test asks whether the lane exists, or on a loop that sums up a tile in which one
    asks whether the row does, whose product is zero if not."""

    key = "felixlike.guard"


@dataclass(frozen=True, slots=True)
class Peel(LoopAnnotation):
    """On a loop around nothing but one loop over lanes, in which outer · lanes + lane is tested to be below a length.

    length: elements.  lanes: of a vector.  seams: places across which no vector reaches, since what is computed changes
    there, as between parts of a concatenation; where there are some, the inner loop has the whole length."""

    key = "felixlike.peel"
    length: int
    lanes: int
    seams: tuple[int, ...] = ()

    @property
    def value(self) -> list[int]:
        """[length, lanes, places of seams …]."""
        return [self.length, self.lanes, *self.seams]

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """The inverse of `value`."""
        length, lanes, *seams = (int(number) for number in value)
        return cls(length, lanes, tuple(seams))


@dataclass(frozen=True, slots=True)
class Columns(LoopAnnotation):
    """On a loop around, or over, a group's columns: unrolled loops around a vectorised one, in which a test asks if the
    column exists; or without a test, where the group is an image, all of whose columns are neighbours.

    length: columns of all groups together.  lanes: elements of a vector."""

    key = "felixlike.columns"
    length: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Row(LoopAnnotation):
    """On a loop along a row, of a length that may be known only in a call, around nothing but what is computed of an
    element: stored in its place, or joined to a sum or an extreme.

    lanes: elements of a vector, a power of two."""

    key = "felixlike.row"
    lanes: int


@dataclass(frozen=True, slots=True)
class Transpose(LoopAnnotation):
    """On a loop over the elements of vectors, around nothing but a loop over the tile's rows.

    lanes: elements of a vector, a power of two."""

    key = "felixlike.transpose"
    lanes: int


@dataclass(frozen=True, slots=True)
class Blocks(LoopAnnotation):
    """On the loop over blocks of a reduction."""

    key = "felixlike.blocks"


@dataclass(frozen=True, slots=True)
class Skip(LoopAnnotation):
    """On a loop over taps in which nothing but products with a padded copy is summed up."""

    key = "felixlike.skip"


@dataclass(frozen=True, slots=True)
class Prefetch(LoopAnnotation):
    """On the loop over summed channels where a constant operand is packed in the order of the loops."""

    key = "felixlike.prefetch"


@dataclass(frozen=True, slots=True)
class Tile(LoopAnnotation):
    """On a loop that sums up a tile. No rule puts it: `first_and_last` does, for the passes after it."""

    key = "felixlike.tile"


@dataclass(frozen=True, slots=True)
class Asynchronous(LoopAnnotation):
    """On a loop whose steps a software pipeline overlaps: its copies into shared memory are made asynchronously."""

    key = "felixlike.asynchronous"


@dataclass(frozen=True, slots=True)
class TensorCores(LoopAnnotation):
    """On a loop over the steps of a reduction that one instruction of tensor cores sums up, around nothing but two
    loops: a thread's rows and its columns of a warp's tile.

    precision: its place in `hardware.PRECISIONS`, since formulas replay marks of loops that are numbers."""

    key = "felixlike.tensorcores"
    precision: int
