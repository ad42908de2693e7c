"""Make kernels write the new elements of inputs that a model changes, instead of new tensors that are then copied.

    new[i] = select(here[i], value, old[i])     →     if here[i]: old[i] = value

Input: a fused Relax module that returns the new values of some inputs, and the places of these inputs. Output: the same
module, in which kernels write into these inputs where that is safe: nothing else reads the old tensor, and every
element is either replaced or stays as it is, so that it does not matter how often or in which order the kernel computes
it. A cache of keys or values changes at one position in each call; a new one is as large as the whole, in memory that
the system must clear first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike.codegen.plain_loops import without_blocks
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, kernel_of, rewritten


def with_writes_in_place(module: Any, places: Sequence[int]) -> Any:
    """Return the module with kernels that write into its inputs.

    Args:
        module: A fused Relax module of fixed sizes, for a CPU. Its "main" returns the new values of changed inputs
            after its outputs.
        places: Index of each changed input among the parameters of "main", in the order of the new values.

    Returns:
        The module. New values that are written in place are the inputs themselves.
    """
    main, known = module["main"], Bindings(module["main"])
    outputs = known.value(main.body.body)
    if not places or not isinstance(outputs, _tvm.relax.Tuple):
        return module
    found = [
        _change(module, known.value(new), main.params[place], known)
        for place, new in zip(places, list(outputs.fields)[-len(places) :], strict=True)
    ]
    changes = {_tvm.identity(change.call): change for change in found if change is not None}
    if not changes:
        return module

    def rule(expression: Any, _: Bindings, rewriter: Rewriter) -> Any:
        change = changes.get(_tvm.identity(expression))
        if change is None:
            return None
        arguments = [rewriter.new(argument) for argument in expression.args[1].fields]
        variable = rewriter.builder.add_func(change.kernel, change.name)  # the one that it has if there is an equal one
        return _tvm.relax.op.call_tir_inplace(variable, arguments, change.position, expression.ty)

    return rewritten(module, rule)


@dataclass(frozen=True, slots=True)
class _Change:
    """A call of a kernel that may write in place.

    Attributes:
        call: The call.
        position: Index of the input that it writes among its arguments.
        name: Name of the kernel that does so.
        kernel: That kernel.
    """

    call: Any
    position: int
    name: str
    kernel: Any


def _change(module: Any, call: Any, old: Any, known: Bindings) -> _Change | None:
    """Return how a call that computes the new value of an input may write it in place, or None."""
    kernel = kernel_of(module, call)
    if kernel is None or len(call.args) != 2 or not isinstance(call.ty, _tvm.relax.TensorType):
        return None
    position = [number for number, argument in enumerate(call.args[1].fields) if argument.same_as(old)]
    if len(position) != 1 or not known.once(old):
        return None
    changed = _in_place(kernel, position[0])
    name = f"{call.args[0].name_hint}_in_place_{position[0]}"
    return None if changed is None else _Change(call, position[0], name, changed)


def _in_place(func: Any, position: int) -> Any:
    """Return a kernel that writes into one of its inputs in place of its output, or None if that is not safe."""
    tirx, plain = _tvm.tirx, without_blocks(func)
    old, output = plain.params[position], plain.params[-1]
    stores = [store for store in _tvm.found(plain.body, tirx.BufferStore) if store.buffer.same_as(output)]
    loads = [load.source for load in _tvm.found(plain.body, _tvm.ir.TensorLoad)]
    alike = _tvm.structural_equal(old.ty, output.ty) and len(stores) == sum(buffer.same_as(old) for buffer in loads)
    if not alike or not all(_keeps(store, old) for store in stores) or any(buffer.same_as(output) for buffer in loads):
        return None
    loops = _tvm.found(plain.body, tirx.For)
    lanes = [loop.loop_var for loop in loops if loop.kind == tirx.ForKind.VECTORIZED]

    def written(store: Any) -> Any:
        if not store.buffer.same_as(output) or any(_tvm.uses(store.value.condition, lane) for lane in lanes):
            return store  # a vector of old and new elements
        replaced = tirx.BufferStore(output, store.value.true_value, store.indices)
        return tirx.IfThenElse(store.value.condition, replaced, None)

    body = _tvm.structural_map(plain.body, (tirx.BufferStore, written))
    return _tvm.PrimFunc(list(plain.params)[:-1], _tvm.substituted(body, {output: old}), plain.ret_type, plain.attrs)


def _keeps(store: Any, old: Any) -> bool:
    """Return whether a store writes either a new element or the old one at the same place."""
    value = store.value
    return (
        isinstance(value, _tvm.tirx.Select)
        and isinstance(value.false_value, _tvm.ir.TensorLoad)
        and value.false_value.source.same_as(old)
        and _tvm.structural_equal(value.false_value.indices, store.indices)
    )
