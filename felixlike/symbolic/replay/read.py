"""Read a symbolic program from a live TVM schedule.

Input: a `ReplayState`. Output: a `Program` before postprocessors. An index that is not affine in the loops raises
UnsupportedSketch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Block, BlockRealize, Stmt, TirExpr
from felixlike.codegen.annotations import Matrix, Pairs, TensorCores
from felixlike.errors import UnsupportedSketch, WrongSketch
from felixlike.frontend.constants import packing_blocks
from felixlike.hardware import PRECISIONS
from felixlike.symbolic.expr.cases import by_cases
from felixlike.symbolic.expr.comparison import at_least, at_most, maximum, minimum, select
from felixlike.symbolic.expr.evaluation import evaluate
from felixlike.symbolic.expr.expression import Expr, add, const, mul, var
from felixlike.symbolic.expr.node import Op, linear_parts
from felixlike.symbolic.expr.polynomial import expand, nonnegative
from felixlike.symbolic.expr.traversal import topological, variables
from felixlike.symbolic.program import (
    PIPELINE,
    Access,
    Buffer,
    Index,
    Lookup,
    Loop,
    PredicatedSplit,
    Program,
    Store,
    stores_under,
)
from felixlike.symbolic.program.affine import affine
from felixlike.symbolic.program.nest import told_apart
from felixlike.symbolic.replay.convert import to_expr
from felixlike.symbolic.replay.operations import count_operations
from felixlike.symbolic.replay.primitives.storage_align import ALIGNED
from felixlike.symbolic.replay.state import ReplayState


def read_program(replay: ReplayState) -> Program:
    """Return the loop nest of a replayed schedule.

    Raises:
        UnsupportedSketch: If an index is not affine, or a statement is not supported.
        WrongSketch: If part of an output is never written.
    """
    return Reader(replay).program()


class Reader:
    """Read a PrimFunc's body in one pass."""

    def __init__(self, replay: ReplayState) -> None:
        self._replay = replay
        self._main = replay.schedule.mod["main"]
        self._tiles = dict(replay.table)
        self._pipeline, self._stages = replay.pipeline, replay.stages
        self._share_of = replay.share_of
        self._kinds = replay.kinds
        self._shares: dict[int, PredicatedSplit] = {}
        self._table: dict[Any, Expr] = dict(replay.table)
        self._loops: set[Expr] = set()
        self._loops_in: dict[Any, tuple[Expr, ...]] = {}
        """The loops that a TVM variable, of a loop or a block, consists of, in TVM's order."""
        self._extents: dict[Expr, Expr] = {}
        self._chain: list[Expr] = []
        """The loops around the current statement that contain nothing else, and that TVM may truncate."""
        self._around: list[Expr] = []
        """All loops around the current statement."""
        self._initial: dict[str, frozenset[Expr]] = {}
        """The loops around the initial value of each reduction that the trace itself has decomposed."""
        self._shifts: dict[Any, Expr] = {}
        """By how much truncation moves the iterators of the current block."""
        self._uneven: set[Expr] = set()
        """Loops with a guard against running past the whole."""
        self._fits: Expr = const(1)
        self._unit: set[Expr] = set()
        self._at_once = 1
        """Number of executions of the current statement that take the time of one."""
        self._word: Expr | None = None
        """The loop over the pair that the current statement multiplies."""
        self._rows: Expr | None = None
        """The loop over the rows of a matrix that the current statement multiplies."""
        self._names: Counter[str] = Counter()
        self._blocks: Counter[str] = Counter()
        self._buffers: dict[Any, Buffer] = {}
        self._internal: list[Any] = []
        self._aligns: list[tuple[Any, tuple[int, int, int]]] = []
        """Alignments of buffers' strides, as annotated on the blocks that write them."""

    def program(self) -> Program:
        """Return the program."""
        root = self._main.body.block
        statements = root.body.seq if type(root.body).__name__ == "SeqStmt" else [root.body]
        packing = [packing_blocks(statement) for statement in statements]
        packed = [block.writes[0].source for blocks in packing for block in blocks]
        self._aligns = list(_aligns(root))
        self._internal = [b for b in root.alloc_buffers if not any(b.same_as(p) for p in packed)]
        if self._main.body.block.name_hint != "root":
            raise UnsupportedSketch("the function's outermost block is not a root block", where="main")
        body = self._sequence([s for s, blocks in zip(statements, packing, strict=True) if not blocks])
        self._check_spans(body)
        return Program(body, tuple(self._buffers.values()), stages=self._stages, fits=self._fits)

    def _check_spans(self, body: tuple[Loop | Store, ...]) -> None:
        """Raise UnsupportedSketch if an index's range is unknown, WrongSketch if part of an output is never written.

        ReverseComputeAt moves a padding block into its producer's tiles, and its border, which reads nothing there, is
        then omitted.
        """
        for store in (store for node in body for store in stores_under(node)):
            for access in store.accesses:
                spans = [index.span(self._extents) for index in access.indices]
                scattered = any(index.lookup is not None for index in access.indices)
                if access is store.target and not access.buffer.internal and not scattered:
                    _check_written(access.buffer, [expand(high - low + 1) for low, high in spans])

    def _visit(self, stmt: Stmt) -> tuple[Loop | Store, ...]:
        """Return the loops and stores of a TVM statement."""
        match type(stmt).__name__:
            case "For":
                return (self._loop(stmt),)
            case "SBlockRealize" if str(stmt.block.name_hint) in self._replay.initial:
                self._initial[str(stmt.block.name_hint).removesuffix("_init")] = frozenset(self._around)
                return ()  # constants cost no work
            case "SBlockRealize":
                return (self._store(stmt),)
            case "SeqStmt":
                return self._sequence(stmt.seq)
        raise UnsupportedSketch(f"unsupported statement {type(stmt).__name__}", where="main")

    def _sequence(self, statements: Sequence[Any]) -> tuple[Loop | Store, ...]:
        """Return the loops and stores of consecutive statements."""
        outer_chain = self._chain
        nodes: list[Loop | Store] = []
        for statement in statements:
            self._chain = []
            nodes += self._visit(statement)
        self._chain = outer_chain
        return tuple(nodes)

    def _loop(self, loop: Any) -> Loop:
        """Return a TVM loop."""
        extent = to_expr(loop.extent, self._table)
        if self._loops_of(extent):
            extent = self._settled(extent, self._replay.extents.get(loop.loop_var, loop.extent))
        variable = var(self._unique(str(loop.loop_var.name)), 0, max(0.0, extent.high - 1))
        self._table[loop.loop_var] = variable
        self._loops.add(variable)
        self._loops_in[loop.loop_var] = (variable,)
        self._extents[variable] = extent
        if extent.is_const and extent.value == 1:
            self._unit.add(variable)
        thread = str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else ""
        if any(loop.loop_var.same_as(v) for v in self._pipeline):
            thread = PIPELINE
        outer = self._at_once, self._word, self._rows
        self._around.append(variable)
        if TensorCores.on(loop):
            self._at_once = PRECISIONS[TensorCores.of(loop).precision].times
        if Pairs.on(loop):
            self._word = variable
        if Matrix.on(loop) and any(map(Pairs.on, _tvm.found(loop.body, _tvm.tirx.For))):
            self._rows = variable
        if any(loop.loop_var.same_as(v) for v in self._replay.uneven):
            self._uneven.add(variable)
            body = self._visit(loop.body)
        else:
            self._chain.append(variable)
            body = self._visit(loop.body)
            self._chain.pop()
        self._around.pop()
        self._at_once, self._word, self._rows = outer
        kind = next((kind for v, kind in self._kinds if loop.loop_var.same_as(v)), "")
        return Loop(
            variable,
            self._extents[variable],
            body,
            parallel=const(int(kind == "parallel")),
            vector=const(int(kind == "vector")),
            thread=thread,
            kind=kind,
            share=self._share(loop.loop_var),
            annotated=bool(loop.annotations),
        )

    def _settled(self, extent: Expr, theirs: Any) -> Expr:
        """Return an extent that contains floors of other loops' variables as a case distinction on tile factors.

        TVM refuses points where its simplifier cannot prove that the extent is constant while those loops run.

        Args:
            extent: The extent.
            theirs: The extent as TVM left it.
        """
        floor_terms = add(term * factor for term, factor in linear_parts(extent)[1] if self._loops_of(term))
        loops = [v for v in variables([floor_terms]) if v in self._loops]
        named = {v: self._table[v] for v in _tvm.found(theirs, _tvm.tirx.Var)}
        running = [self._extents[v] for v in dict.fromkeys((*loops, *named.values())) if v in self._loops]
        tiles = [v for v in variables([floor_terms, *named.values(), *running]) if v not in self._loops]

        def numbers(values: Mapping[str, int]) -> tuple[int, int]:
            table: dict[Any, Any] = {}
            analyzer = _tvm.sym.Analyzer()
            for variable, ours in named.items():
                if ours in self._loops:
                    analyzer.bind(variable, _tvm.ir.Range(0, round(evaluate(self._extents[ours], values))))
                else:
                    table[variable] = values[ours.name]
            concrete = _tvm.substituted(theirs, table)
            same = isinstance(analyzer.simplify(concrete), _tvm.tirx.IntImm)
            return round(evaluate(floor_terms, {**values, **{v.name: 0 for v in loops}})), int(same)

        spans = _spans(floor_terms, self._loops)
        length, same = by_cases(tiles, numbers, [*spans, (*spans, *_steps(floor_terms, loops), *running)])
        self._fits = self._fits * same
        return expand(extent - floor_terms + length)

    def _share(self, variable: Any) -> PredicatedSplit | None:
        """Return the recorded split of a loop; the same object for all its loops."""
        parts = self._share_of(variable)
        if parts is None:
            return None
        if id(parts) not in self._shares:
            self._shares[id(parts)] = PredicatedSplit(
                tuple((part.kind, part.extent) for part in parts), tuple(part.place for part in parts)
            )
        return self._shares[id(parts)]

    def _unique(self, name: str) -> str:
        """Return a unique name, since loops of different nests often have the same one."""
        return told_apart(name, self._names)

    def _store(self, realize: BlockRealize) -> Store:
        """Return the store of a block."""
        block = realize.block
        where = f"block {block.name_hint}"
        if block.alloc_buffers or block.match_buffers:
            raise UnsupportedSketch("blocks that allocate or match buffers are not supported", where=where)
        if type(block.body).__name__ != "BufferStore":
            raise UnsupportedSketch(f"expected a BufferStore as its body, got {type(block.body).__name__}", where=where)
        outer = dict(self._table)
        for iterator, value in zip(block.iter_vars, realize.iter_values, strict=True):
            self._loops_in[iterator.var] = self._named(value)
            domain = to_expr(iterator.dom.extent, self._tiles)
            place = to_expr(value, outer)
            self._table[iterator.var] = self._cut(place, self._named(value), domain)
            self._shifts[iterator.var] = expand(self._table[iterator.var] - place)
        try:
            return self._statement(realize)
        finally:
            self._table = outer

    def _cut(self, place: Expr, named: tuple[Expr, ...], domain: Expr) -> Expr:
        """Return the position of a block's iterator in its domain, after truncating the block's loop as TVM does.

        A moved block runs through all elements that its consumers need, and a guard skips those outside its domain,
        such as padding. If no loop around it moves these elements, TVM truncates the loop instead (BlockVarDomainInfo
        in its compute_at.cc). It also does so if the whole domain is needed in all iterations of those loops; such
        tiles are excluded here.
        """
        index = affine(place, named)
        if index is None or index.lookup is not None:
            return place
        low, high = index.span(self._extents)
        if nonnegative(low) and nonnegative(expand(domain - 1 - high)):
            return place
        block_loops = [v for v, stride in index.strides if v in self._chain and stride is const(1)]
        outer_extents = {v: self._extents[v] for v in index.variables if v not in block_loops}
        if not block_loops and not index.variables.isdisjoint(self._uneven):
            return place
        if len(block_loops) != 1:
            self._fits = self._fits * at_least(low, 0) * at_least(domain - 1 - high, 0)
            return place
        first, length = index.without(lambda _: True).offset, self._extents[block_loops[0]]
        low, high = index.span(outer_extents)
        is_fixed = mul([const(1), *(at_most(extent, 1) for extent in outer_extents.values())])
        if not nonnegative(first):  # the needed elements may begin before the domain, and move there
            covers_domain = at_most(high, 0) * at_least(expand(low + length - domain), 0)
            self._fits = self._fits * (1 - covers_domain * (1 - is_fixed))
        begin = maximum(first, 0)
        self._extents[block_loops[0]] = select(is_fixed, minimum(expand(first + length), domain) - begin, length)
        return expand(place + select(is_fixed, begin - first, 0))

    def _statement(self, realize: BlockRealize) -> Store:
        """Return the store of a block whose iterators have positions."""
        block = realize.block
        body = block.body
        target = self._element(body.buffer, body.indices, block)
        reads = Counter(self._element(load.source, load.indices, block) for load in loads_of(body.value))
        spatial, reduction = (list(filter(kind, block.iter_vars)) for kind in (_tvm.is_spatial, _tvm.is_reduction))
        name = str(block.name_hint).removesuffix("_update")
        return Store(
            block=told_apart(name, self._blocks),
            target=target,
            loads=tuple(reads),
            repeats=tuple(reads.values()),
            operations=count_operations(body.value),
            spatial=self._loops_among(spatial),
            reduction=self._loops_among(reduction),
            is_reduction=bool(reduction),
            regions=tuple(self._region(region, realize) for region in (*block.reads, *block.writes)),
            text=str(body.value),
            at_once=self._at_once,
            word=self._word,
            rows=self._rows,
            initial=self._initial.get(name),
        )

    def _loops_among(self, iterators: Sequence[Any]) -> frozenset[Expr]:
        """Return the loops that iterators of the current block depend on."""
        return frozenset[Expr]().union(*(self._loops_of(self._table[iterator.var]) for iterator in iterators))

    def _loops_of(self, expression: Expr) -> set[Expr]:
        """Return the loops that an expression depends on."""
        return {v for v in variables([expression]) if v in self._loops}

    def _element(self, buffer: Any, indices: Any, block: Block) -> Access:
        """Return an access without the loops of extent 1, which some primitives drop from indices and others keep."""
        return self._access(buffer, indices, block).without(self._unit.__contains__)

    def _named(self, tvm_expr: TirExpr) -> tuple[Expr, ...]:
        """Return the loops of a TVM expression in the order of occurrence."""
        named = _tvm.found(tvm_expr, _tvm.tirx.Var)
        return tuple(dict.fromkeys(loop for variable in named for loop in self._loops_in.get(variable, ())))

    def _access(self, buffer: Any, indices: Any, block: Block) -> Access:
        """Return an access."""
        converted = tuple(self._index(buffer, d, index, block) for d, index in enumerate(indices))
        return Access(self._buffer(buffer), converted)

    def _index(self, buffer: Any, dimension: int, index: Any, block: Block) -> Index:
        """Return one index of an access."""
        loaded = loads_of(index)
        if loaded:
            sources = tuple(dict.fromkeys(self._access(load.source, load.indices, block) for load in loaded))
            return Index(const(0), (), lookup=Lookup(sources, to_expr(buffer.shape[dimension], self._tiles)))
        converted = affine(to_expr(index, self._table), self._named(index))
        if converted is None:
            raise UnsupportedSketch(
                f"the index {index} of {buffer.name} is not affine in the loops", where=f"block {block.name_hint}"
            )
        return converted

    def _region(self, region: Any, realize: BlockRealize) -> Access:
        """Return a block's region as TVM's stride analysis sees it: simplified without bounds, nonlinear terms as 0."""
        values = dict(zip((i.var for i in realize.block.iter_vars), realize.iter_values, strict=True))
        zeros = dict.fromkeys(values, const(0))
        indices = []
        for r in region.region:
            place = _tvm.simplify(_tvm.substituted(r.min, values))
            linear_place = _tvm.structural_map(place, (_unseen(), _nothing))
            index = affine(to_expr(linear_place, self._table), self._named(linear_place))
            if index is None:
                raise UnsupportedSketch(f"the region {region} is not affine in the loops", where="regions")
            linear_min = _tvm.structural_map(r.min, (_unseen(), _nothing))
            shift = to_expr(linear_min, self._table | self._shifts) - to_expr(linear_min, self._table | zeros)
            indices.append(replace(index, offset=expand(index.offset + shift)))
        return Access(self._buffer(region.source), tuple(indices))

    def _buffer(self, buffer: Any) -> Buffer:
        """Return the buffer of a TVM buffer."""
        if buffer not in self._buffers:
            self._buffers[buffer] = Buffer(
                name=str(buffer.name),
                shape=tuple(to_expr(extent, self._tiles) for extent in buffer.shape),
                item_bytes=_item_bytes(str(buffer.dtype)),
                internal=any(buffer.same_as(b) for b in self._internal),
                scope=str(buffer.scope()).partition(".")[0],
                aligns=tuple(align for theirs, align in self._aligns if buffer.same_as(theirs)),
            )
        return self._buffers[buffer]


def _aligns(stmt: Stmt) -> Iterator[tuple[Any, tuple[int, int, int]]]:
    """Yield (buffer, (dimension, factor, offset)) for every annotation that aligns a stride."""
    for block in _tvm.found(stmt, _tvm.s_tir.SBlock):
        for number, *align in block.annotations.get(ALIGNED, ()):
            dimension, factor, offset = map(int, align)
            yield block.writes[int(number)].source, (dimension, factor, offset)


def _check_written(output: Buffer, reached: list[Expr]) -> None:
    """Raise WrongSketch if fewer elements are reached than the output has."""
    for count, extent in zip(reached, output.shape, strict=True):
        if count.is_const and extent.is_const and count.value < extent.value:
            raise WrongSketch(
                f"TVM computes only {count} of {extent} elements along an axis of {output.name}", where="main"
            )


def _spans(expression: Expr, loops: set[Expr]) -> list[Expr]:
    """Return x − y + 1 for every two floors of x and y that loops do not move; the range from y to x causes both."""
    floored = [node.args[0] for node in topological([expression]) if node.op is Op.FLOORDIV]
    spans = [expand(x - y + 1) for x in floored for y in floored if x is not y]
    return [span for span in spans if span.low >= 1 and not loops.intersection(variables([span]))]


def _steps(expression: Expr, loops: Sequence[Expr]) -> list[Expr]:
    """Return by how much the loops move the dividends in an expression."""
    floored = [node.args[0] for node in topological([expression]) if node.op is Op.FLOORDIV]
    indices = [affine(dividend, tuple(loops)) for dividend in floored]
    steps = [stride for index in indices if index is not None for _, stride in index.strides]
    return list(dict.fromkeys(step for step in steps if not step.is_const))


def _unseen() -> tuple[Any, ...]:
    """Return the kinds of expressions that TVM's stride analysis ignores."""
    kinds = ("FloorDiv", "FloorMod", "Div", "Mod", "Min", "Max")
    return (*(getattr(_tvm.tirx, kind) for kind in kinds), _tvm.ir.TensorLoad)


def _nothing(expression: TirExpr) -> Any:
    """Return 0 in the type of an expression."""
    return _tvm.tirx.const(0, str(expression.ty.dtype))


def loads_of(expression: TirExpr) -> list[Any]:
    """Return the loads in a TVM expression, including those inside indices."""
    return _tvm.found(expression, _tvm.ir.TensorLoad)


def _item_bytes(dtype: str) -> int:
    """Return the bytes of storage of one element, with all lanes of a vector; a bool takes one."""
    return -(-_tvm.bits(dtype) * _tvm.lanes(dtype) // 8)
