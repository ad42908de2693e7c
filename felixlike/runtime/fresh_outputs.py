"""Copy outputs of a model that would share memory with its constants, its inputs or each other, unlike in PyTorch.

    main(x) → (x, constant, y, y)      →      main(x) → (copy(x), copy(constant), y, copy(y))

A clone is nothing in TVM, equal expressions are computed once, and what depends on no input is a constant. A user who
writes to such an output would change an input, another output, or what later calls return.

Input: a fused Relax module, and which tensor each output is a view of in PyTorch. Output: the same module, whose "main"
copies the other outputs that share memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import Bindings, copy_of, is_constant, operator


def with_fresh_outputs(module: Any, roots: Sequence[int] = (), *, changed: int = 0) -> Any:
    """Return the module with copies of outputs that would share memory.

    Args:
        module: A fused Relax module.
        roots: For each output the number of its root, see `Source.roots`; empty if no outputs share memory in PyTorch.
        changed: Number of new values of changed tensors, which "main" returns after the outputs. They are not copied.

    Returns:
        The module; the same one if no output shares memory.
    """
    main = module["main"]
    known, body = Bindings(main), main.body.body
    outputs = list(_outputs(body, known))
    copied = _shared([output for _, output in outputs[: len(outputs) - changed]], roots, main.params, known)
    return _with_copies(module, {outputs[place][0] for place in copied}) if copied else module


_Path = tuple[int, ...]
"""The place of an output in nested tuples."""


def _outputs(expression: Any, known: Bindings, path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Yield the tensors of an output, which may be nested tuples, with their places."""
    value = known.value(expression)
    if not isinstance(value.ty, _tvm.relax.TupleType):
        yield path, expression
        return
    for place in range(len(value.ty.fields)):
        is_tuple = isinstance(value, _tvm.relax.Tuple)
        field = value.fields[place] if is_tuple else _tvm.relax.TupleGetItem(expression, place)
        if is_tuple:
            yield from _outputs(field, known, (*path, place))
        else:
            yield (*path, place), field


def _shared(outputs: Sequence[Any], roots: Sequence[int], inputs: Sequence[Any], known: Bindings) -> list[int]:
    """Return the indices of the outputs whose memory is that of a constant, of an input or another output that they
    are no view of in PyTorch, or unknown.
    """
    root_of = {_key(parameter): number for number, parameter in enumerate(inputs)}
    shared = []
    for place, output in enumerate(outputs):
        if not isinstance(output.ty, _tvm.relax.TensorType):  # a size
            continue
        base = _base(output, known)
        root = roots[place] if roots else -1 - place
        if is_constant(base) or _is_of_branch(base, known) or root_of.setdefault(_key(base), root) != root:
            shared.append(place)
    return shared


def _base(expression: Any, known: Bindings) -> Any:
    """Return the value whose memory an expression has."""
    while (source := _source(expression, known)) is not None:
        expression = source
    return known.value(expression)


def _source(expression: Any, known: Bindings) -> Any:
    """Return the expression whose memory another one has, None if it has memory of its own."""
    relax, value = _tvm.relax, known.value(expression)
    if operator(value) == "reshape":
        return value.args[0]
    if isinstance(value, relax.TupleGetItem):
        elements = known.value(value.tuple_value)
        return elements.fields[value.index] if isinstance(elements, relax.Tuple) else None
    return value if isinstance(value, relax.Var) and not value.same_as(expression) else None


def _is_of_branch(base: Any, known: Bindings) -> bool:
    """Return whether a value is a result of a branch or a Relax function, which may return what it takes."""
    relax = _tvm.relax
    value = known.value(base.tuple_value) if isinstance(base, relax.TupleGetItem) else base
    return isinstance(value, relax.If) or (isinstance(value, relax.Call) and isinstance(value.op, _tvm.ir.GlobalVar))


def _key(base: Any) -> tuple[int | None, int]:
    """Return what identifies a value of `_base`. Two expressions may take the same element of a tuple."""
    if isinstance(base, _tvm.relax.TupleGetItem):
        return _tvm.identity(base.tuple_value), int(base.index)
    return _tvm.identity(base), -1


def _with_copies(module: Any, copied: set[_Path]) -> Any:
    """Return a module whose "main" copies the outputs at these places in its last block."""
    relax, main = _tvm.relax, module["main"]
    builder, bindings = relax.BlockBuilder(module), list[Any]()

    def bound(value: Any, name: str) -> Any:
        value = builder.normalize(value)
        variable = relax.Var(f"{name}_{len(bindings)}", value.ty)
        bindings.append(relax.VarBinding(variable, value))
        return variable

    def rebuilt(output: Any, path: _Path) -> Any:
        if isinstance(output.ty, relax.TupleType):
            elements = [bound(relax.TupleGetItem(output, place), "output") for place in range(len(output.ty.fields))]
            parts = [rebuilt(element, (*path, place)) for place, element in enumerate(elements)]
            return bound(relax.Tuple(parts), "outputs")
        if path not in copied:
            return output
        return bound(builder.call_te(copy_of, output, "copy_output", primfunc_name_hint="copy_output"), "copy")

    body = main.body.body
    result = rebuilt(body if isinstance(body, relax.Var) else bound(body, "output"), ())
    blocks = [*main.body.blocks, relax.BindingBlock(bindings)]
    function = relax.Function(main.params, relax.SeqExpr(blocks, result), main.ret_ty, main.is_pure, main.attrs)
    builder.update_func(module.get_global_var("main"), function)
    return builder.get()
