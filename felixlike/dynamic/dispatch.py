"""Which program serves a call: a decision tree over its sizes, as nested ifs in the function that is called.

    if T <= 26.5: if T <= 13.5: 13 else 13 + 12 …

In: for each instance what every program takes. Out: a `Tree`, in Python to be looked at, and as statements of the
kernel. DietCode's trees (scikit-learn) say which micro-kernel is fastest; here programs that are nearly as fast count
as equal, so trees are small. A size that the chosen program cannot cover exactly takes the even one, which covers all.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from felixlike import _tvm
from felixlike._tvm.typing import Stmt
from felixlike._util.torch_modes import alone
from felixlike.dynamic.build import Builder, ceil_div
from felixlike.dynamic.emit import Cover, Pool
from felixlike.dynamic.program import Program
from felixlike.dynamic.ukernel import Floats

NEAR = 0.03
"""Programs within this of the best count as equal."""


P = TypeVar("P")
"""A program of a CPU's, `Program`, or of a GPU's, `gpu.BlockProgram`."""


@dataclass(frozen=True, slots=True)
class Leaf(Generic[P]):
    """program: what is run."""

    program: P


@dataclass(frozen=True, slots=True)
class Branch(Generic[P]):
    """symbol: number of the size that is asked for.  threshold: at most this, a whole number.  below, above: then, and
    else."""

    symbol: int
    threshold: int
    below: Tree[P]
    above: Tree[P]


Tree = Leaf[P] | Branch[P]


def choose(tree: Tree[P], sizes: Sequence[int]) -> P:
    """The program for sizes, one for each symbol."""
    while isinstance(tree, Branch):
        tree = tree.below if sizes[tree.symbol] <= tree.threshold else tree.above
    return tree.program


def programs_of(tree: Tree[P]) -> set[P]:
    """All that it may choose."""
    if isinstance(tree, Leaf):
        return {tree.program}
    return programs_of(tree.below) | programs_of(tree.above)


def describe(tree: Tree[Any], names: Sequence[str], *, indent: str = "") -> str:
    """The nested ifs as text."""
    if isinstance(tree, Leaf):
        return f"{indent}{tree.program}"
    test = f"{names[tree.symbol]} <= {tree.threshold}"
    below, above = (describe(part, names, indent=f"{indent}    ") for part in (tree.below, tree.above))
    return f"{indent}if {test}:\n{below}\n{indent}else:\n{above}"


def labels(seconds: Floats, weights: Sequence[float], near: float = NEAR) -> list[int]:
    """A program for each instance, near its best, from as few programs as a greedy choice needs.

    seconds: float64[programs, instances]."""
    good = seconds <= seconds.min(axis=0)[None, :] * (1 + near)
    open_, chosen = np.ones(seconds.shape[1], dtype=np.bool_), np.zeros(seconds.shape[1], dtype=np.int64)
    counts = np.asarray(weights, dtype=np.float64) + 1e-9
    while open_.any():
        gains = (good & open_[None, :]) @ counts
        program = int(gains.argmax())
        mine = good[program] & open_
        chosen[mine], open_ = program, open_ & ~mine
    return [int(program) for program in chosen]


def fit(
    sizes: Sequence[Sequence[int]], chosen: Sequence[int], weights: Sequence[float], programs: Sequence[P]
) -> Tree[P]:
    """The tree that chooses so.  sizes: of each instance, one for each symbol.  chosen: a program's number for each."""
    if len(set(chosen)) == 1 or not sizes[0]:
        return Leaf(programs[chosen[0]])
    from sklearn.tree import DecisionTreeClassifier

    model = DecisionTreeClassifier(random_state=0)
    with alone(), warnings.catch_warnings():
        # Where nearly every size has a program of its own, scikit-learn asks whether these are not numbers.
        warnings.filterwarnings("ignore", message="The number of unique classes is greater than 50%")
        model.fit(np.asarray(sizes), np.asarray(chosen), sample_weight=np.asarray(weights) + 1e-9)
    inner = model.tree_

    def node(number: int) -> Tree[P]:
        if inner.children_left[number] < 0:
            return Leaf(programs[int(model.classes_[inner.value[number][0].argmax()])])
        threshold = int(np.floor(inner.threshold[number]))
        below, above = node(int(inner.children_left[number])), node(int(inner.children_right[number]))
        return Branch(int(inner.feature[number]), threshold, below, above)

    return node(0)


def repaired(tree: Tree[P], lost: Mapping[tuple[int, ...], P]) -> Tree[P]:
    """The tree with a test of its own for each of some sizes, where it was found to lose.  Of one symbol only the size
    itself is exchanged; of several, all that have the same."""
    for sizes, program in sorted(lost.items()):
        tree = _exchanged(tree, sizes, program)
    return tree


def _exchanged(tree: Tree[P], sizes: tuple[int, ...], program: P) -> Tree[P]:
    if isinstance(tree, Branch):
        if sizes[tree.symbol] <= tree.threshold:
            return Branch(tree.symbol, tree.threshold, _exchanged(tree.below, sizes, program), tree.above)
        return Branch(tree.symbol, tree.threshold, tree.below, _exchanged(tree.above, sizes, program))
    found: Tree[P] = Leaf(program)
    for symbol, size in enumerate(sizes):
        found = Branch(symbol, size, Branch(symbol, size - 1, tree, found), tree)
    return found


def highest_of(pool: Pool) -> dict[int, int]:
    """For each width of a pool the height up to which all uKernels are there."""
    found: dict[int, int] = {}
    for rows, vectors in sorted(pool.tiles):
        if rows == found.get(vectors, 0) + 1:
            found[vectors] = rows
    return found


def statements(
    tree: Tree[Program], symbols: Sequence[Any], rows: Any, highest: Mapping[int, int]
) -> tuple[list[Stmt], Cover]:
    """The nested ifs as TIR, and the cover of the program that they choose.

    symbols: TVM's variables of the sizes.  rows: how many rows there are, a number or an expression.  highest: for each
    width the height up to which all uKernels are there, for sizes that the chosen program cannot cover."""
    tirx = _tvm.tirx
    buffer = tirx.decl_buffer((1,), "int64", "code")
    first = tirx.const(0, "int64")

    def ifs(tree: Tree[Program]) -> Stmt:
        if isinstance(tree, Leaf):
            return tirx.BufferStore(buffer, tirx.const(tree.program.code, "int64"), [first])
        return tirx.IfThenElse(symbols[tree.symbol] <= tree.threshold, ifs(tree.below), ifs(tree.above))

    found, cover = decoded(buffer[first], rows, highest)
    return [tirx.AllocBuffer(buffer), ifs(tree), *found], cover


def decoded(code: Any, rows: Any, highest: Mapping[int, int]) -> tuple[list[Stmt], Cover]:
    """The cover that a program's number stands for, as TIR (`combine.pair` and `combine.even`)."""
    tirx = _tvm.tirx
    found: list[Stmt] = []
    index = str(rows.ty.dtype) if hasattr(rows, "ty") else "int64"
    build = Builder(index, 1)
    const = build.const

    def cell(name: str, value: Any) -> Any:
        return build.cell(name, value, found)

    def field(place: int) -> Any:
        value = (code >> (8 * place)) & 255
        return value if index == "int64" else tirx.Cast(index, value)

    size = cell("rows", rows if hasattr(rows, "ty") else const(rows))
    large, small, vectors = cell("first", field(0)), cell("second", field(1)), cell("vectors", field(2))
    divisor, inverse = cell("divisor", field(3)), cell("inverse", field(4))
    few = cell("rest", tirx.floormod(tirx.floordiv(size, divisor) * inverse, tirx.floordiv(large, divisor)))
    left = size - few * small
    exact = tirx.And(small > 0, tirx.And(tirx.floormod(size, divisor) == 0, left >= 0))
    widest = max(highest)
    most: Any = const(highest[widest])
    for width, height in highest.items():
        most = tirx.if_then_else(vectors == width, const(height), most)
    limit = cell("limit", tirx.if_then_else(small == 0, large, most))
    tiles = cell("count", ceil_div(size, limit))
    low = cell("low", tirx.floordiv(size, tiles))
    more = cell("more", size - low * tiles)
    use = cell("exact", tirx.if_then_else(exact, const(1), const(0))) == 1
    cover = Cover(
        large=tirx.if_then_else(use, large, low + 1),
        many=tirx.if_then_else(use, tirx.floordiv(left, large), more),
        small=tirx.if_then_else(use, small, low),
        few=tirx.if_then_else(use, few, tiles - more),
        vectors=vectors,
    )
    return found, cover
