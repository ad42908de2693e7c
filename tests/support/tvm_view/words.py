"""Statements as TVM writes them, since TVM's features depend on how a statement is written.

Input: a sketch and its compute locations. Output: `Words` for every statement of the symbolic program, keyed by its
block. The program does not need them, so they are collected separately by replaying the sketch again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from felixlike import _tvm
from felixlike.symbolic import Sketch
from felixlike.symbolic.expr.expression import Expr
from felixlike.symbolic.program import Store
from felixlike.symbolic.replay.read import Reader, loads_of
from felixlike.symbolic.replay.replay import replay
from felixlike.symbolic.replay.state import ReplayState


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """A statement as TVM writes it.

    Attributes:
        target: the written buffer.
        indices: of the write, as expressions of the block's iterators.
        value: the stored value, likewise.
        loads: the indices of each of the store's loads, likewise.
        places: (iterator, its value as an expression of the loops).
        meaning: (TVM's variable, its expression here) for the loops and tile factors in `places`.
        buffers: (TVM's buffer, its name in the program)."""

    target: Any
    indices: tuple[Any, ...]
    value: Any
    loads: tuple[tuple[Any, ...], ...]
    places: tuple[tuple[Any, Any], ...]
    meaning: tuple[tuple[Any, Expr], ...]
    buffers: tuple[tuple[Any, str], ...]


@lru_cache(maxsize=64)
def words_of(sketch: Sketch, locations: tuple[int, ...]) -> Mapping[str, Words]:
    """Return block → words. Raises UnsupportedSketch."""
    chosen_locations: Sequence[int] = sketch.structure(locations).locations
    reader = _Listener(replay(sketch.task.module, sketch.task.target, sketch.trace, sketch.variables, chosen_locations))
    reader.program()
    return reader.words


class _Listener(Reader):
    def __init__(self, replay: ReplayState) -> None:
        super().__init__(replay)
        self.words: dict[str, Words] = {}

    def _statement(self, realize: Any) -> Store:
        store = super()._statement(realize)
        block = realize.block
        used = [v for value in realize.iter_values for v in _tvm.found(value, _tvm.tirx.Var)]
        loads = loads_of(block.body.value)
        buffers = dict.fromkeys([block.body.buffer, *(load.source for load in loads)])
        accesses = [(self._element(load.source, load.indices, block), load.indices) for load in loads]
        first = dict(reversed(accesses))
        self.words[store.block] = Words(
            block.body.buffer,
            tuple(block.body.indices),
            block.body.value,
            tuple(tuple(first[access]) for access in dict.fromkeys(access for access, _ in accesses)),
            tuple((i.var, value) for i, value in zip(block.iter_vars, realize.iter_values, strict=True)),
            tuple((v, self._table[v]) for v in dict.fromkeys(used)),
            tuple((b, self._buffers[b].name) for b in buffers),
        )
        return store
