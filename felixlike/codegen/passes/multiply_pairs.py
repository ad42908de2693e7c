"""Replace the products of a pair of bfloat16 numbers in each element of a vector by an instruction.

    vector lane in 16:                                        words = load 32 bits at W[32·k …] for each lane
        for both in 2:                                   →    word  = load 32 bits at X[2·k], for all lanes
            S[lane] += X[2·k + both] · W[32·k + 2·lane + both]      S[0 … 15] = pairs_16(S[0 … 15], word, words)

Input: an IRModule of scheduled PrimFuncs with such loops over pairs annotated with `Pairs`. Output: the same module
without blocks, with calls of the functions in `codegen/pair_functions.py`. Sums are of float32. TVM would turn buffers
of bfloat16 that a function allocates into float32, so those of the operands become integers: of 32 bits if loops over
pairs write them, in which each lane then stores a whole word, else of 16 bits. An annotated loop of another form is an
error, since other code would not compute in the stated time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Func, Loop, Module, Node, Stmt, TirExpr
from felixlike.codegen import plain_loops
from felixlike.codegen.annotations import Pairs
from felixlike.codegen.pair_functions import LANES, name_of
from felixlike.codegen.passes.convert_bfloat16 import bits_of, is_half, with_integers
from felixlike.codegen.passes.loop_tools import step_along, unlike
from felixlike.codegen.passes.multiply_matrices import with_matrices
from felixlike.codegen.passes.round_halves import half, operand, word
from felixlike.errors import CompilationFailed

_PAIR = 2
"""Elements of a pair."""

_HALF, _WORD = "bfloat16", "int32"
"""The type of the operands, and that of a pair's bits in buffers that a function allocates."""

_Buffers: TypeAlias = "Sequence[tuple[Any, Any]]"
"""(buffer, its replacement)."""


def multiply_pairs(module: Module) -> Module:
    """Return the IRModule with annotated loops replaced by instructions. Other functions are not changed.

    Raises CompilationFailed if an annotated loop has another form.
    """
    functions = [func for func in module.functions.values() if isinstance(func, _tvm.PrimFunc)]
    return _tvm.map_functions(module, _changed) if any(map(_marked, functions)) else module


def _changed(func: Func) -> Func:
    """Replace a function's annotated loops."""
    if not _marked(func):
        return func
    func = plain_loops.with_flat_buffers(plain_loops.without_blocks(func))
    func = _tvm.structural_map(func, (_tvm.tirx.Add, _without_zero))
    marked = [loop for loop in _tvm.found(func.body, _tvm.tirx.For) if Pairs.on(loop)]
    stored = [store.buffer for loop in marked for store in _tvm.found(loop.body, _tvm.tirx.BufferStore)]
    words = [(b, _tvm.tirx.decl_buffer(_words_of(b), _WORD, name=b.name)) for b in stored if is_half(b)]

    def pointer(buffer: Buffer) -> Any:
        replacement = _new(buffer, words)
        return (buffer if replacement is None else replacement).data

    func = with_matrices(func, pointer)
    errors: list[CompilationFailed] = []

    def change(loop: Loop) -> Stmt:
        try:
            return _in_words(loop, words)
        except CompilationFailed as error:  # it would lose its class in TVM
            errors.append(error)
            return loop

    func = func.with_body(_tvm.structural_map(func.body, (_tvm.tirx.For, change)))
    if errors:
        raise errors[0]
    if _marked(func):
        raise _unlike("it is not the only statement in a vectorized loop")
    return _with_words(func, words)


def _words_of(buffer: Buffer) -> tuple[TirExpr]:
    """Return the shape of a flat buffer of pairs in words."""
    (size,) = buffer.shape
    return (_tvm.simplify(_tvm.tirx.floordiv(size, _tvm.tirx.const(_PAIR, str(size.ty.dtype)))),)


def _new(buffer: Buffer, replaced: _Buffers) -> Any:
    """Return what replaces a buffer, or None."""
    return next((new for old, new in replaced if buffer.same_as(old)), None)


def _marked(func: Func) -> bool:
    """Return whether a function has annotated loops."""
    return any(map(Pairs.on, _tvm.found(func.body, _tvm.tirx.For)))


def _unlike(why: str) -> CompilationFailed:
    """Return the error for an annotated loop of another form."""
    return unlike("as the products of a pair", why, where="bfloat16")


def _without_zero(total: TirExpr) -> TirExpr:
    """Return the vector of places that TVM's flattening has added to a vector of zeros, with which TVM fails later."""
    zero = isinstance(total.a, _tvm.tirx.Broadcast) and isinstance(total.b, _tvm.tirx.Ramp)
    return _tvm.simplify(total) if zero else total


def _in_words(loop: Loop, replaced: _Buffers) -> Stmt:
    """Replace an annotated loop that copies, or a vectorized loop whose body is an annotated loop.

    `replaced` are the buffers of words.
    """
    if Pairs.on(loop):
        store = loop.body
        words = _new(store.buffer, replaced) if isinstance(store, _tvm.tirx.BufferStore) else None
        return loop if words is None else _copy_of_words(loop, words)
    return _in_vectors(loop, replaced)


def _in_vectors(lane: Loop, replaced: _Buffers) -> Stmt:
    """Replace a vectorized loop if its body is an annotated loop."""
    both = lane.body
    if not isinstance(both, _tvm.tirx.For) or not Pairs.on(both):
        return lane
    vectorized = lane.kind == _tvm.tirx.ForKind.VECTORIZED
    if not vectorized or int(lane.extent) not in LANES or int(both.extent) != _PAIR:
        raise _unlike(
            f"its {both.extent} steps are in a loop of {lane.extent}{', which is no vector' * (not vectorized)}"
        )
    store, lanes = both.body, int(lane.extent)
    product: Any = getattr(getattr(store, "value", None), "b", None)
    if type(getattr(store, "value", None)).__name__ != "Add" or type(product).__name__ != "Mul":
        raise _unlike("it does not sum products")
    sums = store.value.a
    if type(sums).__name__ != "TensorLoad" or not sums.source.same_as(store.buffer):
        raise _unlike("it does not sum in one place")
    (place,) = store.indices
    steps = step_along(place, lane.loop_var), step_along(place, both.loop_var)
    if steps != (1, 0) or not _tvm.structural_equal(sums.indices[0], place):
        raise _unlike("its sums are not a vector")
    words = [_words(factor, lane, both, replaced) for factor in (product.a, product.b)]
    start = _tvm.tirx.Ramp(_start(place, lane, both), _one(place), lanes)
    held = store.buffer[start]
    value = _tvm.tirx.call_pure_extern(f"float32x{lanes}", name_of(lanes), held, *words)
    return _tvm.tirx.BufferStore(store.buffer, value, [start])


def _copy_of_words(both: Loop, buffer: Buffer) -> Stmt:
    """Return the statement that stores both elements of a pair as a word. `buffer` is the buffer of words."""
    store = both.body
    (place,) = store.indices
    start = _tvm.simplify(_tvm.substituted(place, {both.loop_var: 0}))
    two = _one(place) * _PAIR
    odd = _tvm.simplify(_tvm.tirx.floormod(start, two))
    if step_along(place, both.loop_var) != 1 or not isinstance(odd, _tvm.tirx.IntImm) or int(odd):
        raise _unlike("it does not store pairs that are neighbours")

    def bits(step: int) -> TirExpr:
        value = _tvm.substituted(store.value, {both.loop_var: _tvm.tirx.const(step, str(both.loop_var.ty.dtype))})
        return bits_of(value, half)

    lower, upper = bits(0), bits(1)
    first, second = operand(lower), operand(upper)
    if first is not None and second is not None:
        value = word(first, second)
    else:
        wide = lower.astype("uint32") | (upper.astype("uint32") << _tvm.tirx.const(_tvm.bits(_HALF), "uint32"))
        value = _tvm.tirx.reinterpret(_WORD, wide)
    return _tvm.tirx.BufferStore(buffer, value, [_tvm.simplify(_tvm.tirx.floordiv(start, two))])


def _words(factor: TirExpr, lane: Loop, both: Loop, replaced: _Buffers) -> TirExpr:
    """Return a factor's pairs for all lanes as a vector of integers of 32 bits."""
    load: Any = factor.value if isinstance(factor, _tvm.tirx.Cast) else None
    if type(load).__name__ != "TensorLoad" or str(load.ty.dtype) != _HALF or str(factor.ty.dtype) != "float32":
        raise _unlike(f"a factor is not a number of {_HALF} as float32")
    (place,), lanes = load.indices, int(lane.extent)
    steps, start = (step_along(place, lane.loop_var), step_along(place, both.loop_var)), _start(place, lane, both)
    new, first = _new(load.source, replaced), _tvm.simplify(_tvm.tirx.floordiv(start, _one(place) * _PAIR))
    if steps == (0, 1) and new is not None:
        return _tvm.tirx.Broadcast(new[first], lanes)
    if steps == (0, 1):
        pair = load.source[_tvm.tirx.Ramp(start, _one(place), _PAIR)]
        return _tvm.tirx.Broadcast(_tvm.tirx.reinterpret("int32", pair), lanes)
    if steps == (_PAIR, 1) and new is not None:
        return new[_tvm.tirx.Ramp(first, _one(place), lanes)]
    if steps == (_PAIR, 1):
        pairs = load.source[_tvm.tirx.Ramp(start, _one(place), _PAIR * lanes)]
        return _tvm.tirx.reinterpret(f"int32x{lanes}", pairs)
    raise _unlike(f"the steps of a factor along the vector and the pair are {steps}")


def _start(place: TirExpr, lane: Loop, both: Loop) -> TirExpr:
    """Return a place at the first element of the vector and of the pair."""
    return _tvm.simplify(_tvm.substituted(place, {lane.loop_var: 0, both.loop_var: 0}))


def _one(place: TirExpr) -> TirExpr:
    """Return 1 in the type of a place."""
    return _tvm.tirx.const(1, str(place.ty.dtype))


def _with_words(func: Func, words: _Buffers) -> Func:
    """Return a function that allocates words in place of pairs, and integers in place of other bfloat16 numbers."""

    def alloc(node: Node) -> Stmt:
        new = _new(node.buffer, words)
        return node if new is None else _tvm.tirx.AllocBuffer(new)

    return with_integers(func.with_body(_tvm.structural_map(func.body, (_tvm.tirx.AllocBuffer, alloc))), half)
