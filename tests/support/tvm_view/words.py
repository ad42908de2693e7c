"""Statements as TVM writes them: what it makes of one depends on more than its value.

In: a sketch and its compute locations. Out: `Words` for every statement of the symbolic program, by its block. They
stand beside the program, which has no need of them: the sketch is replayed again for them.
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
    """target: the buffer that is written.  indices, value: in the block's iterators.  loads: the indices of each of the
    store's loads, likewise.  places: (iterator, its value in the loops).  meaning: (TVM's variable, what it is here) of
    the loops and tile factors in `places`.  buffers: (TVM's buffer, its name in the program)."""

    target: Any
    indices: tuple[Any, ...]
    value: Any
    loads: tuple[tuple[Any, ...], ...]
    places: tuple[tuple[Any, Any], ...]
    meaning: tuple[tuple[Any, Expr], ...]
    buffers: tuple[tuple[Any, str], ...]


@lru_cache(maxsize=64)
def words_of(sketch: Sketch, locations: tuple[int, ...]) -> Mapping[str, Words]:
    """Block → words. Raises UnsupportedSketch."""
    chosen: Sequence[int] = sketch.structure(locations).locations
    reader = _Listener(replay(sketch.task.module, sketch.task.target, sketch._trace, sketch.variables, chosen))
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
