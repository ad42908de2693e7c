"""Generate the kernel of a recurrent layer, which computes all steps of one or both directions.

    for t in length:                   for t in length:
        s = G[t] + h · W       →           parallel for tile of units:
        h, c = cell(s, h, c)                   s = G'[t] + h · W', the sums of all gates in registers
                                               h, c = cell(s, h, c)

Input: a `Layer` and the device. Output: a TIR statement. G, the products of the inputs of all steps, is an operand. G'
and W' lie in tiles of `Layer.width` units, with the gates of a tile next to each other, so that every load is a
contiguous vector. Units beyond the last one are computed from zeros and not written.

If products may be rounded, W' is in bfloat16 (`Form`). Sums, gates and states are float32 in every form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Stmt, TirExpr
from felixlike.codegen.annotations import Pairs, Steps
from felixlike.codegen.build import Builder, seq
from felixlike.hardware import BFLOAT16, PRECISIONS, Device, Form
from felixlike.hardware.vectors import IN_FLIGHT

_INDEX = "int64"
_DTYPE = "float32"

_PAIR = 2
"""Units of h that an instruction multiplies at once."""

LAYER = "felixlike.recurrent"
"""Attribute of a layer's function where products may be rounded: the values of `Layer` but the device and the form."""

_WORTH_A_BARRIER = 2**15
"""Multiply-adds of a step from which cores share it. Waiting for each other takes them about a microsecond.

Chosen by hand.
"""

_WORTH_A_LAUNCH = 2**18
"""Multiply-adds of all steps from which cores share independent parts of a layer. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The arithmetic of a recurrent cell.

    Attributes:
        name: Name of the layer's kind.
        gates: Number of gates.
        updates: For each state, in order: its name, and (sums of the gates, the input's product that is kept apart,
            states by name) → the new value. A state that was updated before has its new value, except h.
        apart: Index of the gate whose product with h must not be added to that of the input, None without one.
    """

    name: str
    gates: int
    updates: tuple[tuple[str, Callable[[Sequence[TirExpr], TirExpr, dict[str, TirExpr]], TirExpr]], ...]
    apart: int | None = None


def _lstm_c(sums: Sequence[TirExpr], _: TirExpr, states: dict[str, TirExpr]) -> TirExpr:
    """Return c = σ(f) · c + σ(i) · tanh(g)."""
    sigmoid, tanh = _tvm.tirx.sigmoid, _tvm.tirx.tanh
    return sigmoid(sums[1]) * states["c"] + sigmoid(sums[0]) * tanh(sums[2])


def _lstm_h(sums: Sequence[TirExpr], _: TirExpr, states: dict[str, TirExpr]) -> TirExpr:
    """Return h = σ(o) · tanh(c)."""
    return _tvm.tirx.sigmoid(sums[3]) * _tvm.tirx.tanh(states["c"])


def _gru_h(sums: Sequence[TirExpr], apart: TirExpr, states: dict[str, TirExpr]) -> TirExpr:
    """Return h = (1 − σ(z)) · n + σ(z) · h, n = tanh(x_n + σ(r) · h_n)."""
    sigmoid, one = _tvm.tirx.sigmoid, _tvm.tirx.const(1, states["h"].ty.dtype)
    update = sigmoid(sums[1])
    return (one - update) * _tvm.tirx.tanh(apart + sigmoid(sums[0]) * sums[2]) + update * states["h"]


def _relu_h(sums: Sequence[TirExpr], _: TirExpr, states: dict[str, TirExpr]) -> TirExpr:
    """Return h = max(s, 0)."""
    return _tvm.tirx.max(sums[0], _tvm.tirx.const(0, states["h"].ty.dtype))


CELLS = {
    "lstm": Cell("lstm", 4, (("c", _lstm_c), ("h", _lstm_h))),
    "gru": Cell("gru", 3, (("h", _gru_h),), apart=2),
    "rnn_tanh": Cell("rnn_tanh", 1, (("h", lambda sums, *_: _tvm.tirx.tanh(sums[0])),)),
    "rnn_relu": Cell("rnn_relu", 1, (("h", _relu_h),)),
}
"""Cells by the name of PyTorch's operator. Gates are in PyTorch's order."""


def _ceil_div(number: int, by: int) -> int:
    """Return ⌈number / by⌉."""
    return -(-number // by)


@dataclass(frozen=True)
class Layer:
    """A recurrent layer with one or two directions.

    Attributes:
        cell: The arithmetic of its cells.
        directions: 1, or 2 if the second one runs from the last step to the first.
        length: Number of steps.
        batch: Number of sequences.
        hidden: Units of a direction.
        batch_first: Whether the batch is the first dimension of inputs and outputs, and not the second.
        device: The CPU that the kernel is made for.
        form: How the products of h are computed, None without rounding.
    """

    cell: Cell
    directions: int
    length: int
    batch: int
    hidden: int
    batch_first: bool
    device: Device
    form: Form | None = None

    @property
    def described(self) -> list[Any]:
        """The layer as the attribute `LAYER`."""
        sizes = self.directions, self.length, self.batch, self.hidden, int(self.batch_first)
        return [self.cell.name, *sizes]

    @classmethod
    def from_description(cls, description: Any, device: Device) -> Layer:
        """Return the layer of an attribute `LAYER`."""
        name, *sizes, batch_first = description
        directions, length, batch, hidden = map(int, sizes)
        return cls(CELLS[str(name)], directions, length, batch, hidden, bool(batch_first), device)

    @cached_property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.device.unit.lanes(_tvm.bits(_DTYPE))

    @cached_property
    def vectors(self) -> int:
        """Vectors of a tile: enough sums for the multipliers with the rows that a tile has, and no core without one."""
        wanted = _ceil_div(IN_FLIGHT, self.cell.gates * min(self.batch, 2))
        fitting = (v for v in (8, 4, 2) if v <= wanted and self._fits(v * self.lanes))
        return next(fitting, 1)

    def _fits(self, width: int) -> bool:
        """Return whether tiles of a width leave no core without one, and no vector of the last tile empty."""
        tiles = _ceil_div(self.hidden, width)
        return tiles * self.directions >= self.device.cores and tiles * width - self.hidden < self.lanes

    @cached_property
    def width(self) -> int:
        """Units of a tile."""
        return self.vectors * self.lanes

    @cached_property
    def tiles(self) -> int:
        """Tiles of a direction."""
        return _ceil_div(self.hidden, self.width)

    @cached_property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """Heights of a tile with their numbers, which cover the batch: as few as registers allow, about equally high.

        A tile needs a register for each sum, one for each row's factor, and one for a vector of weights.
        """
        most = max((self.device.unit.registers - 1) // (self.cell.gates * self.vectors + 1), 1)
        count = _ceil_div(self.batch, most)
        low, high = divmod(self.batch, count)
        covers = ((low + 1, high), (low, count - high))
        return tuple((height, number) for height, number in covers if number)

    @cached_property
    def step_work(self) -> int:
        """Multiply-adds of a step."""
        return self.directions * self.batch * self.cell.gates * self.hidden**2

    @cached_property
    def blocks(self) -> int:
        """Number of parts of the batch that are computed independently.

        All of them read the same weights, which must then stay in the cache of each core.
        """
        weights = self.cell.gates * self.hidden**2 * _tvm.bits(self.weights_type) // 8
        split = self.directions < self.device.cores and len(self.rows) == 1 and weights <= self.device.tile_bytes
        return self.rows[0][1] if split else 1

    @cached_property
    def shares_steps(self) -> bool:
        """Whether cores share each step. Otherwise they share directions and parts of the batch, without waiting."""
        return self.directions * self.blocks < self.device.cores and self.step_work >= _WORTH_A_BARRIER

    @property
    def gates_shape(self) -> tuple[int, ...]:
        """Shape of the products of the inputs: (length, batch), in this order or not, then as weights."""
        steps = (self.batch, self.length) if self.batch_first else (self.length, self.batch)
        return (*steps, self.directions, self.tiles, self.cell.gates, self.width)

    @property
    def weights_shape(self) -> tuple[int, ...]:
        """Shape of the weights of h: (direction, tile, unit of h, gate, unit), and pairs of units of h if these are."""
        pairs = self.form is Form.PAIRS
        units = _ceil_div(self.hidden, _PAIR) if pairs else self.hidden
        return (self.directions, self.tiles, units, self.cell.gates, self.width, *([_PAIR] if pairs else []))

    @property
    def weights_type(self) -> str:
        """Type of the weights of h."""
        return _DTYPE if self.form is None else BFLOAT16.name

    @property
    def output_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the outputs of all steps and of the last states h and c."""
        state = (self.directions, self.batch, self.hidden)
        return [(*self.gates_shape[:2], self.directions * self.hidden), *[state] * len(self.cell.updates)]


def kernel(layer: Layer, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Stmt:
    """Return the statement that computes a layer.

    Args:
        layer: The layer.
        inputs: Products of the inputs, weights (`Layer.weights_shape`, `Layer.weights_type`), the bias of the
            gate that is kept apart if there is one (direction, tile, unit), and the first states h and c.
        outputs: Outputs of all steps, and the last states h and c.
    """
    return _Emitter(layer, inputs, outputs).whole()


class _Emitter:
    """Generates one kernel."""

    def __init__(self, layer: Layer, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        self.layer, self.build = layer, Builder(_INDEX, layer.lanes)
        names: list[str] = [name for name in ("h", "c") if name in dict(layer.cell.updates)]
        self.products, self.weights, *rest = inputs
        self.bias: Buffer = rest.pop(0) if layer.cell.apart is not None else None
        self.first = dict(zip(names, rest, strict=True))
        self.result, *last = outputs
        self.last = dict(zip(names, last, strict=True))
        padded = (layer.directions, layer.batch, layer.tiles * layer.width)
        # A step reads all units of h and writes new ones, so there are two buffers in turns.
        shapes = {"h": (2, *padded), "c": padded}
        self.states = {name: _tvm.tirx.decl_buffer(shapes[name], _DTYPE, f"state_{name}") for name in names}
        # What products read: h itself, or h in bfloat16.
        self.factors = self.states["h"]
        if layer.form is Form.PAIRS:
            self.factors = _tvm.tirx.decl_buffer(shapes["h"], BFLOAT16.name, "rounded_h")

    def whole(self) -> Stmt:
        """Return the whole kernel."""
        buffers = [*self.states.values(), *([self.factors] if self.layer.form is Form.PAIRS else [])]
        allocations = [_tvm.tirx.AllocBuffer(buffer) for buffer in buffers]
        return seq(*allocations, self.shared_steps() if self.layer.shares_steps else self.parts())

    def shared_steps(self) -> Stmt:
        """Return the kernel in which cores share each step. A core always has the same tiles, thus the same weights."""
        layer, build = self.layer, self.build

        def tiles(body: Callable[[Any, Any, Any], Stmt], kind: str = "SERIAL") -> Stmt:
            count = layer.directions * layer.tiles
            return build.loop("tile", count, lambda i: body(i // layer.tiles, i % layer.tiles, None), kind)

        def step(t: Any) -> Stmt:
            return tiles(lambda *place: self.step(t, *place), "PARALLEL")

        return seq(tiles(self.begin), build.loop("t", layer.length, step, mark=Steps()), tiles(self.end))

    def parts(self) -> Stmt:
        """Return the kernel in which each core computes all steps of a direction, or of a part of the batch."""
        layer, build = self.layer, self.build

        def part(number: Any) -> Stmt:
            d, block = number // layer.blocks, (number % layer.blocks if layer.blocks > 1 else None)

            def tiles(body: Callable[[Any, Any, Any], Stmt]) -> Stmt:
                return build.loop("tile", layer.tiles, lambda n: body(d, n, block))

            steps = build.loop("t", layer.length, lambda t: tiles(lambda *place: self.step(t, *place)))
            return seq(tiles(self.begin), steps, tiles(self.end))

        count = layer.directions * layer.blocks
        several = count > 1 and layer.step_work * layer.length >= _WORTH_A_LAUNCH
        return build.loop("part", count, part, "PARALLEL" if several else "SERIAL")

    def rows(self, block: Any, body: Callable[[Any, int], Stmt]) -> Stmt:
        """Return the loops over a part of the batch, or over the whole one.  body: (first row, rows) → statement."""
        if block is not None:
            height = self.layer.rows[0][0]
            return body(block * height, height)

        def block_of(first: int, height: int, number: Any) -> Stmt:
            return body(first + number * height, height)

        loops, start = [], 0
        for height, count in self.layer.rows:
            loops.append(self.build.loop("rows", count, partial(block_of, start, height)))
            start += height * count
        return seq(*loops)

    def begin(self, d: Any, n: Any, block: Any) -> Stmt:
        """Return the code that copies the first states of a tile."""
        layer, tirx = self.layer, _tvm.tirx
        exact = layer.tiles * layer.width == layer.hidden

        def copied(name: str, b: Any) -> Stmt:
            def store(column: Any) -> Stmt:
                unit, parity = n * layer.width + column, [0] if name == "h" else []
                value = self.first[name][d, b, unit]
                if not exact:
                    value = tirx.if_then_else(unit < layer.hidden, value, tirx.const(0, _DTYPE))
                return self.stored(name, value, [*parity, d, b, unit])

            return self.build.vectors(layer.vectors, store) if exact else self.build.loop("unit", layer.width, store)

        return self.rows(block, lambda row, h: seq(*(copied(name, row + r) for r in range(h) for name in self.states)))

    def stored(self, name: str, value: TirExpr, place: list[Any]) -> Stmt:
        """Return the stores of an element of a state, and of its rounded copy if it has one."""
        kept = _tvm.tirx.BufferStore(self.states[name], value, place)
        if name != "h" or self.layer.form is not Form.PAIRS:
            return kept
        rounded = self.states[name][tuple(place)].astype(BFLOAT16.name)
        return seq(kept, _tvm.tirx.BufferStore(self.factors, rounded, place))

    def end(self, d: Any, n: Any, block: Any) -> Stmt:
        """Return the code that writes the last states of a tile."""

        def copied(name: str, b: Any) -> Stmt:
            parity = [self.layer.length % 2] if name == "h" else []

            def store(unit: Any) -> Stmt:
                return _tvm.tirx.BufferStore(self.last[name], self.states[name][*parity, d, b, unit], [d, b, unit])

            return self.written(n, store)

        return self.rows(block, lambda row, h: seq(*(copied(name, row + r) for r in range(h) for name in self.states)))

    def written(self, n: Any, store: Callable[[Any], Stmt]) -> Stmt:
        """Return the stores of the units of a tile that exist."""
        layer, build = self.layer, self.build
        whole = build.vectors(layer.vectors, lambda column: store(n * layer.width + column))
        missing = layer.tiles * layer.width - layer.hidden
        if not missing:
            return whole
        part = build.loop("unit", layer.width - missing, lambda column: store(n * layer.width + column))
        return part if layer.tiles == 1 else _tvm.tirx.IfThenElse(n < layer.tiles - 1, whole, part)

    def step(self, t: Any, d: Any, n: Any, block: Any) -> Stmt:
        """Return the code of a step of the units of a tile."""
        return self.rows(block, lambda row, height: _Tile(self, t, d, n, row, height).whole())


class _Tile:
    """Generates a step of the units of a tile, for some sequences of the batch."""

    def __init__(self, emitter: _Emitter, t: Any, d: Any, n: Any, row: Any, height: int) -> None:
        self.emitter, self.layer, self.build = emitter, emitter.layer, emitter.build
        self.d, self.n, self.row, self.height = d, n, row, height
        self.now, self.new = t % 2, (t + 1) % 2
        self.step = t + d * (self.layer.length - 1 - 2 * t) if self.layer.directions == 2 else t
        every = [(r, gate) for r in range(height) for gate in range(self.layer.cell.gates)]
        name = "sums_{}_{}"
        self.sums = {p: _tvm.tirx.decl_buffer((self.layer.width,), _DTYPE, name.format(*p)) for p in every}

    def whole(self) -> Stmt:
        """Return the whole code."""
        return seq(
            *map(_tvm.tirx.AllocBuffer, self.sums.values()),
            *(self.start(r, gate) for r, gate in self.sums),
            self.build.loop("k", self.layer.weights_shape[2], self.reduce),
            *(statement for r in range(self.height) for statement in (self.update(r), self.write(r))),
        )

    def place(self, r: int) -> tuple[Any, Any]:
        """Return the first two indices of a row's inputs and outputs."""
        b = self.row + r
        return (b, self.step) if self.layer.batch_first else (self.step, b)

    def product(self, r: int, gate: int, column: Any) -> TirExpr:
        """Return the product of the inputs of a gate."""
        return self.emitter.products[*self.place(r), self.d, self.n, gate, column]

    def start(self, r: int, gate: int) -> Stmt:
        """Return the initial values of the sums of a gate."""

        def store(column: Any) -> Stmt:
            if gate == self.layer.cell.apart:
                value = self.emitter.bias[self.d, self.n, column]
            else:
                value = self.product(r, gate, column)
            return _tvm.tirx.BufferStore(self.sums[r, gate], value, [column])

        return self.build.vectors(self.layer.vectors, store)

    def reduce(self, k: Any) -> Stmt:
        """Return the products with a unit of h. All rows use a vector of weights at once: it needs one register."""
        gates, vectors, rows = range(self.layer.cell.gates), range(self.layer.vectors), range(self.height)
        return seq(*(self.add(r, gate, vector, k) for vector in vectors for gate in gates for r in rows))

    def add(self, r: int, gate: int, vector: int, k: Any) -> Stmt:
        """Return the addition of a vector of products, with unit `k` of h or with pair `k` of units."""
        emitter, sums, build = self.emitter, self.sums[r, gate], self.build

        def store(lane: Any, unit: Any, *both: Any) -> Stmt:
            column = lane + vector * self.layer.lanes
            factor = emitter.factors[self.now, self.d, self.row + r, unit].astype(_DTYPE)
            weight = emitter.weights[self.d, self.n, k, gate, column, *both].astype(_DTYPE)
            return _tvm.tirx.BufferStore(sums, sums[column] + factor * weight, [column])

        def pair(lane: Any) -> Stmt:
            mark = Pairs(PRECISIONS.index(BFLOAT16))
            return build.loop("both", _PAIR, lambda both: store(lane, k * _PAIR + both, both), mark=mark)

        body = pair if self.layer.form is Form.PAIRS else lambda lane: store(lane, k)
        return build.loop("lane", self.layer.lanes, body, "VECTORIZED")

    def update(self, r: int) -> Stmt:
        """Return the new states of a row."""
        layer, b = self.layer, self.row + r

        def store(column: Any) -> Stmt:
            unit = self.n * layer.width + column
            places = {"h": [self.now, self.d, b, unit], "c": [self.d, b, unit]}
            states = {name: state[*places[name]] for name, state in self.emitter.states.items()}
            gates = [self.sums[r, gate][column] for gate in range(layer.cell.gates)]
            apart = None if layer.cell.apart is None else self.product(r, layer.cell.apart, column)
            places["h"] = [self.new, self.d, b, unit]
            stores = [
                self.emitter.stored(name, update(gates, apart, states), places[name])
                for name, update in layer.cell.updates
            ]
            return seq(*stores)

        return self.build.vectors(layer.vectors, store)

    def write(self, r: int) -> Stmt:
        """Return the stores of a row's outputs."""

        def store(unit: Any) -> Stmt:
            value = self.emitter.states["h"][self.new, self.d, self.row + r, unit]
            place = [*self.place(r), self.d * self.layer.hidden + unit]
            return _tvm.tirx.BufferStore(self.emitter.result, value, place)

        return self.emitter.written(self.n, store)
