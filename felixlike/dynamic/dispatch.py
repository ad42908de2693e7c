"""Choose the program of a call with a decision tree over its sizes, emitted as nested ifs in the host function.

    if T <= 26: if T <= 13: 13 else 13 + 12 …

Input: predicted or measured seconds of every program at each instance. Output: a `Tree`, as a Python object and as TIR
statements of the kernel. DietCode's trees (scikit-learn) choose the fastest micro-kernel. Here programs that are nearly
as fast count as equal, which keeps trees small. A size that the chosen program cannot cover exactly is served by the
even cover, which covers all sizes.
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
from felixlike.codegen.build import Builder, ceil_div
from felixlike.dynamic.emit import Cover, Pool
from felixlike.dynamic.program import Program
from felixlike.dynamic.ukernel import Floats

NEAR = 0.03
"""Programs within this fraction of the best count as equal. Chosen by hand."""


P = TypeVar("P")
"""A program: `Program` on a CPU, `gpu.BlockProgram` on a GPU."""


@dataclass(frozen=True, slots=True)
class Leaf(Generic[P]):
    """A leaf of a tree: the program to run."""

    program: P


@dataclass(frozen=True, slots=True)
class Branch(Generic[P]):
    """An inner node of a tree.

    Attributes:
        symbol: Index of the tested size.
        threshold: A whole number; the size is at most this in `below`.
        below: The tree for sizes up to the threshold.
        above: The tree for larger sizes.
    """

    symbol: int
    threshold: int
    below: Tree[P]
    above: Tree[P]


Tree = Leaf[P] | Branch[P]
"""A decision tree over the sizes of a call."""


def choose(tree: Tree[P], sizes: Sequence[int]) -> P:
    """Return the program for sizes, one per symbol."""
    while isinstance(tree, Branch):
        tree = tree.below if sizes[tree.symbol] <= tree.threshold else tree.above
    return tree.program


def programs_of(tree: Tree[P]) -> set[P]:
    """Return all programs of a tree."""
    if isinstance(tree, Leaf):
        return {tree.program}
    return programs_of(tree.below) | programs_of(tree.above)


def describe(tree: Tree[Any], names: Sequence[str], *, indent: str = "") -> str:
    """Return the nested ifs as text."""
    if isinstance(tree, Leaf):
        return f"{indent}{tree.program}"
    test = f"{names[tree.symbol]} <= {tree.threshold}"
    below, above = (describe(part, names, indent=f"{indent}    ") for part in (tree.below, tree.above))
    return f"{indent}if {test}:\n{below}\n{indent}else:\n{above}"


def labels(seconds: Floats, weights: Sequence[float], near: float = NEAR) -> list[int]:
    """Return a program for each instance, within `near` of its best, from as few programs as a greedy choice needs.

    seconds: float64[programs, instances].
    """
    near_best = seconds <= seconds.min(axis=0)[None, :] * (1 + near)
    unserved, chosen = np.ones(seconds.shape[1], dtype=np.bool_), np.zeros(seconds.shape[1], dtype=np.int64)
    counts = np.asarray(weights, dtype=np.float64) + 1e-9
    while unserved.any():
        gains = (near_best & unserved[None, :]) @ counts
        program = int(gains.argmax())
        newly_served = near_best[program] & unserved
        chosen[newly_served], unserved = program, unserved & ~newly_served
    return [int(program) for program in chosen]


def fit(
    sizes: Sequence[Sequence[int]], chosen: Sequence[int], weights: Sequence[float], programs: Sequence[P]
) -> Tree[P]:
    """Fit the decision tree that reproduces a choice.

    sizes: One per symbol, for each instance. chosen: Index of the program of each instance.
    """
    if len(set(chosen)) == 1 or not sizes[0]:
        return Leaf(programs[chosen[0]])
    from sklearn.tree import DecisionTreeClassifier

    model = DecisionTreeClassifier(random_state=0)
    with alone(), warnings.catch_warnings():
        # If nearly every size has its own program, scikit-learn warns that the classes look like numbers.
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
    """Return the tree with a separate test for each size at which it was measured to lose.

    With one symbol only that size changes. With several symbols the tests compare all of them.
    """
    for sizes, program in sorted(lost.items()):
        tree = _exchanged(tree, sizes, program)
    return tree


def _exchanged(tree: Tree[P], sizes: tuple[int, ...], program: P) -> Tree[P]:
    """Return the tree with another program at one combination of sizes."""
    if isinstance(tree, Branch):
        if sizes[tree.symbol] <= tree.threshold:
            return Branch(tree.symbol, tree.threshold, _exchanged(tree.below, sizes, program), tree.above)
        return Branch(tree.symbol, tree.threshold, tree.below, _exchanged(tree.above, sizes, program))
    replaced: Tree[P] = Leaf(program)
    for symbol, size in enumerate(sizes):
        replaced = Branch(symbol, size, Branch(symbol, size - 1, tree, replaced), tree)
    return replaced


def highest_of(pool: Pool) -> dict[int, int]:
    """Return for each width of a pool the height up to which all uKernels exist."""
    highest: dict[int, int] = {}
    for rows, vectors in sorted(pool.tiles):
        if rows == highest.get(vectors, 0) + 1:
            highest[vectors] = rows
    return highest


def statements(
    tree: Tree[Program], symbols: Sequence[Any], rows: Any, highest: Mapping[int, int]
) -> tuple[list[Stmt], Cover]:
    """Return the nested ifs as TIR, and the cover of the program that they choose.

    symbols: TVM variables of the sizes. rows: Number of rows, a number or an expression. highest: For each width the
    height up to which all uKernels exist; used for sizes that the chosen program cannot cover.
    """
    tirx = _tvm.tirx
    buffer = tirx.decl_buffer((1,), "int64", "code")
    first = tirx.const(0, "int64")

    def ifs(tree: Tree[Program]) -> Stmt:
        if isinstance(tree, Leaf):
            return tirx.BufferStore(buffer, tirx.const(tree.program.code, "int64"), [first])
        return tirx.IfThenElse(symbols[tree.symbol] <= tree.threshold, ifs(tree.below), ifs(tree.above))

    decoding, cover = decoded(buffer[first], rows, highest)
    return [tirx.AllocBuffer(buffer), ifs(tree), *decoding], cover


def decoded(code: Any, rows: Any, highest: Mapping[int, int]) -> tuple[list[Stmt], Cover]:
    """Return TIR that decodes the code of a program into a cover (`combine.pair` and `combine.even`)."""
    tirx = _tvm.tirx
    emitted: list[Stmt] = []
    index = str(rows.ty.dtype) if hasattr(rows, "ty") else "int64"
    build = Builder(index, 1)
    const = build.const

    def cell(name: str, value: Any) -> Any:
        return build.cell(name, value, emitted)

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
    tiles = cell("count", tirx.max(const(1), ceil_div(size, limit)))  # 0 rows are one tile of height 0
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
    return emitted, cover
