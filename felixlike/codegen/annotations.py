"""Define the loop annotations that schedule rules write and passes read, as TVM stores them in schedules and traces.

A rule puts an annotation on a loop. A pass finds it there and reads its value. Keys and values are part of every stored
trace, so they must not change.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from felixlike._tvm.typing import Loop, LoopRef, Schedule


@dataclass(frozen=True, slots=True)
class LoopAnnotation:
    """An annotation of a loop.

    The value of an annotation without fields is True. The fields of others are integers.

    Attributes:
        key: The annotation's key in TVM.
    """

    key: ClassVar[str]

    @property
    def value(self) -> Any:
        """Return the annotation's value: True, the number, or a list of several numbers."""
        numbers = [getattr(self, field.name) for field in fields(self)]
        return (numbers if len(numbers) > 1 else numbers[0]) if numbers else True

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """Create the annotation from its `value`."""
        count = len(fields(cls))
        return cls(*map(int, value if count > 1 else [value] if count else ()))

    @classmethod
    def on(cls, loop: Loop) -> bool:
        """Return whether a loop of a function has this annotation."""
        return cls.key in loop.annotations

    @classmethod
    def of(cls, loop: Loop) -> Self:
        """Return this annotation of a loop of a function."""
        return cls.from_value(loop.annotations[cls.key])

    def put(self, schedule: Schedule, loop: LoopRef) -> None:
        """Annotate a loop of a schedule."""
        schedule.annotate(loop, self.key, self.value)


@dataclass(frozen=True, slots=True)
class Guard(LoopAnnotation):
    """Mark a vectorized loop whose predicate tests that the lane exists, or a tile's reduction loop with a predicate.

    In a reduction loop, the predicate tests that the row exists, and the product is zero if it does not.
    """

    key = "felixlike.guard"


@dataclass(frozen=True, slots=True)
class Peel(LoopAnnotation):
    """Mark a loop that contains only a loop over lanes, with the predicate outer · lanes + lane < length.

    Attributes:
        length: Elements of both loops.
        lanes: Elements of a vector.
        seams: Positions that no vector crosses, since the computation changes there, as between parts of a
            concatenation. If there are any, the inner loop has the whole length.
    """

    key = "felixlike.peel"
    length: int
    lanes: int
    seams: tuple[int, ...] = ()

    @property
    def value(self) -> list[int]:
        """Return [length, lanes, *seams]."""
        return [self.length, self.lanes, *self.seams]

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """Create the annotation from its `value`."""
        length, lanes, *seams = (int(number) for number in value)
        return cls(length, lanes, tuple(seams))


@dataclass(frozen=True, slots=True)
class Columns(LoopAnnotation):
    """Mark a loop around, or over, a group's columns: unrolled loops around a vectorized loop.

    A predicate tests that the column exists. There is none if the group is an image, all of whose columns are
    contiguous.

    Attributes:
        length: Columns of all groups together.
        lanes: Elements of a vector.
    """

    key = "felixlike.columns"
    length: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Row(LoopAnnotation):
    """Mark a loop along a row, possibly of dynamic length, that computes only one element an iteration.

    The element is stored in its place, or added to a sum, a maximum or a minimum.

    Attributes:
        lanes: Elements of a vector, a power of two.
    """

    key = "felixlike.row"
    lanes: int


@dataclass(frozen=True, slots=True)
class Transpose(LoopAnnotation):
    """Mark a loop over the elements of vectors that contains only a loop over the tile's rows.

    Attributes:
        lanes: Elements of a vector, a power of two.
    """

    key = "felixlike.transpose"
    lanes: int


@dataclass(frozen=True, slots=True)
class Blocks(LoopAnnotation):
    """Mark the loop over blocks of a reduction."""

    key = "felixlike.blocks"


@dataclass(frozen=True, slots=True)
class Skip(LoopAnnotation):
    """Mark a loop over taps in which only products with a padded copy are summed."""

    key = "felixlike.skip"


@dataclass(frozen=True, slots=True)
class Keys(LoopAnnotation):
    """Mark a loop of attention in which a mask may hide all elements, over keys or over the terms of scores."""

    key = "felixlike.keys"


@dataclass(frozen=True, slots=True)
class Softmax(LoopAnnotation):
    """Mark a vectorized loop of a softmax: over its maxima, or over its exponentials, whose arguments are at most 0.

    A NaN among the scores makes the sum NaN, and so may get lost in the maximum.

    Attributes:
        precision: Position in `hardware.PRECISIONS` of the type that exponentials are rounded to. Formulas replay loop
            annotations that are numbers.
    """

    key = "felixlike.softmax"
    precision: int


@dataclass(frozen=True, slots=True)
class Steps(LoopAnnotation):
    """Mark a loop that contains only a parallel loop, each iteration of which reads what all of the last step wrote."""

    key = "felixlike.steps"


@dataclass(frozen=True, slots=True)
class Prefetch(LoopAnnotation):
    """Mark the reduction loop over channels of a constant operand that is packed in the order of the loops."""

    key = "felixlike.prefetch"


@dataclass(frozen=True, slots=True)
class Narrow(LoopAnnotation):
    """Mark the reduction loop of a constant operand that is packed in a narrower type.

    Attributes:
        precision: Position in `hardware.PRECISIONS`, since formulas replay loop annotations that are numbers.
    """

    key = "felixlike.narrow"
    precision: int


@dataclass(frozen=True, slots=True)
class Pairs(LoopAnnotation):
    """Mark a loop over two steps of a reduction, in a loop over a vector, that one instruction computes together.

    Attributes:
        precision: Position in `hardware.PRECISIONS`, since formulas replay loop annotations that are numbers.
    """

    key = "felixlike.pairs"
    precision: int


@dataclass(frozen=True, slots=True)
class Matrix(LoopAnnotation):
    """Mark the loop over the rows of a product of two matrices, with `Pairs` in it, that one instruction computes."""

    key = "felixlike.matrix"


@dataclass(frozen=True, slots=True)
class Tile(LoopAnnotation):
    """Mark a reduction loop of a tile. Rules do not use it: `first_and_last` marks loops for later passes."""

    key = "felixlike.tile"


@dataclass(frozen=True, slots=True)
class Asynchronous(LoopAnnotation):
    """Mark a loop whose steps a software pipeline overlaps: its copies into shared memory are asynchronous."""

    key = "felixlike.asynchronous"


@dataclass(frozen=True, slots=True)
class TensorCores(LoopAnnotation):
    """Mark a loop over reduction steps that one tensor core instruction computes.

    It contains only two loops: a thread's rows and its columns of a warp's tile.

    Attributes:
        precision: Position in `hardware.PRECISIONS`, since formulas replay loop annotations that are numbers.
    """

    key = "felixlike.tensorcores"
    precision: int
