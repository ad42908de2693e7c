"""Join small consecutive kernels, each of which reads the previous one's result.

    g = split(slice(x) + h)                 g, all in one kernel with two outputs:
    c = sigmoid(g_1) · c + sigmoid(g_0) · tanh(g_2)      →       c, h = …
    h = sigmoid(g_3) · tanh(c)

TVM fuses functions that end in one tensor. The cell of an LSTM ends in two, so it is three kernels, each of which
takes as long to launch as to compute. Only kernels without reductions are joined that write at most four thousand
elements: larger ones are memory-bound and are tuned better separately.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import INJECTIVE, elements, kernel_of, pattern_of

_MOST = 4096
"""Upper limit of the elements of a tensor that a joined kernel writes, which take some microseconds on one core.

Chosen by hand: 16 steps of LSTMs of 100 to 256 with 8 and 16 samples took 3 to 18 % less with cells of one kernel
than of three.
"""

_LONGEST_NAME = 200
"""Upper limit of a joined kernel's name, in characters."""


def with_joined_small_kernels(module: Any) -> Any:
    """Join the small consecutive kernels of a module.

    Args:
        module: Fused Relax IRModule.

    Returns:
        The rewritten module.
    """
    functions = [
        (v, f) for v, f in module.functions.items() if isinstance(f, _tvm.relax.Function) and not _primitive(f)
    ]
    for variable, function in functions:
        module = _with_joined(module, variable, function)
    return module


@dataclass(slots=True)
class _Row:
    """Collect bindings that become one kernel. `calls` is the number of kernels that they are now."""

    bindings: list[Any] = field(default_factory=list)
    defined: set[int | None] = field(default_factory=set)
    calls: int = 0

    def add(self, binding: Any, *, call: bool) -> None:
        """Add a binding."""
        self.bindings.append(binding)
        self.defined.add(_tvm.identity(binding.var))
        self.calls += call

    def feeds(self, value: Any) -> bool:
        """Return whether a value reads a variable of this row."""
        return any(_tvm.identity(v) in self.defined for v in _tvm.relax.analysis.free_vars(value))


def _with_joined(module: Any, variable: Any, function: Any) -> Any:
    """Join the small consecutive kernels of one function."""
    relax = _tvm.relax
    blocks, builder = [], relax.BlockBuilder(module)
    values = [b.value for block in function.body.blocks for b in block.bindings if hasattr(b, "value")]
    readers = _readers([*values, function.body.body])
    for block in function.body.blocks:
        bindings: list[Any] = []
        for row in _rows(module, block.bindings):
            outputs = None if row.calls < 2 else _outputs(row, readers)
            local = relax.DataflowVar if isinstance(block, relax.DataflowBlock) else relax.Var
            bindings += row.bindings if outputs is None else _joined(builder, module, row, outputs, local)
        blocks.append(type(block)(bindings, block.span))
    body = relax.SeqExpr(blocks, function.body.body)
    builder.update_func(
        variable, relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)
    )
    return relax.transform.DeadCodeElimination()(builder.get())


def _rows(module: Any, bindings: Sequence[Any]) -> Iterator[_Row]:
    """Yield all bindings in order: those that can become one kernel together, the others one by one."""
    row = _Row()
    for binding in bindings:
        value = getattr(binding, "value", None)
        element = _is_element(value)
        small = element or (value is not None and _is_small(module, value))
        if row.bindings and (not small or not row.feeds(value)):
            yield row
            row = _Row()
        row.add(binding, call=small and not element)
        if not small or (element and row.calls == 0):
            yield row
            row = _Row()
    if row.bindings:
        yield row


def _is_element(value: Any) -> bool:
    """Return whether a value is an element of a variable. Elements of tuples that are written out are not joined."""
    relax = _tvm.relax
    return isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Var)


def _is_small(module: Any, value: Any) -> bool:
    """Return whether a value is a kernel without reductions that writes few elements."""
    if not isinstance(value, _tvm.relax.Call):
        return False
    kernels = _kernels(module, value)
    sizes = [elements(tensor) for tensor in _tensors(value.ty)]
    if not kernels or any(size is None for size in sizes) or max(size or 0 for size in sizes) > _MOST:
        return False
    return all(pattern_of(kernel) <= INJECTIVE for kernel in kernels) and not all(map(_is_reshape, kernels))


def _kernels(module: Any, call: Any) -> list[Any]:
    """Return the PrimFuncs that a call stands for, none for other calls."""
    if isinstance(call.op, _tvm.ir.GlobalVar):
        called = module[call.op]
        if not isinstance(called, _tvm.relax.Function) or not _primitive(called):
            return []
        values = [binding.value for block in called.body.blocks for binding in block.bindings]
        calls = [value for value in values if not _is_element(value)]
        kernels = [_kernels(module, value) if isinstance(value, _tvm.relax.Call) else [] for value in calls]
        return [kernel for part in kernels for kernel in part] if all(kernels) else []
    kernel = kernel_of(module, call)
    return [] if kernel is None else [kernel]


def _primitive(function: Any) -> bool:
    """Return whether a Relax function is a fused subgraph."""
    return bool(function.attrs and function.attrs.get("Primitive"))


def _is_reshape(kernel: Any) -> bool:
    """Return whether a kernel only copies. Reshapes do, and become views."""
    return bool(_tvm.relax.analysis.has_reshape_pattern(kernel))


def _tensors(kind: Any) -> list[Any]:
    """Return the tensor types of a nested type."""
    return [tensor for field in kind.fields for tensor in _tensors(field)] if hasattr(kind, "fields") else [kind]


def _readers(values: Sequence[Any]) -> dict[int | None, set[int | None]]:
    """Return the values that read each variable, both by identity."""
    readers: dict[int | None, set[int | None]] = defaultdict(set)
    for value in values:
        for variable in _tvm.relax.analysis.free_vars(value):
            readers[_tvm.identity(variable)].add(_tvm.identity(value))
    return readers


def _outputs(row: _Row, readers: Mapping[int | None, set[int | None]]) -> list[Any] | None:
    """Return the variables of a row that are read elsewhere, or None if one is a tuple or there are none."""
    own = {_tvm.identity(binding.value) for binding in row.bindings}
    outputs = [b.var for b in row.bindings if readers.get(_tvm.identity(b.var), own) - own]
    return None if not outputs or any(hasattr(v.ty, "fields") for v in outputs) else outputs


def _joined(builder: Any, module: Any, row: _Row, outputs: Sequence[Any], local: Any) -> list[Any]:
    """Return the bindings that replace a row: a call of a new function, and its outputs.

    local: the class of variables that are read in the row's block alone.
    """
    relax = _tvm.relax
    arguments = _arguments(row)
    parameters = [relax.Var(f"p{number}", argument.ty) for number, argument in enumerate(arguments)]
    known = {_tvm.identity(a): p for a, p in zip(arguments, parameters, strict=True)}
    names = [_name(b.value).removeprefix("fused_") for b in row.bindings if isinstance(b.value, relax.Call)]
    name = "_".join(["fused", *names])[:_LONGEST_NAME]
    inner = relax.BlockBuilder(module)
    with inner.function(name, parameters, attrs={"Primitive": True}, private=True):
        with inner.dataflow():
            for binding in row.bindings:
                known[_tvm.identity(binding.var)] = _inlined(inner, module, binding.value, known)
            results = [known[_tvm.identity(v)] for v in outputs]
            result = inner.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
        function_name = inner.emit_func_output(result).name_hint
    called = builder.add_func(inner.get()[function_name], name)
    if len(outputs) == 1:
        return [relax.VarBinding(outputs[0], relax.Call(called, arguments, ret_ty=outputs[0].ty))]
    kind = relax.TupleType([v.ty for v in outputs])
    whole = local("joined", kind)
    output_bindings = [relax.VarBinding(v, relax.TupleGetItem(whole, n)) for n, v in enumerate(outputs)]
    return [relax.VarBinding(whole, relax.Call(called, arguments, ret_ty=kind)), *output_bindings]


def _arguments(row: _Row) -> list[Any]:
    """Return the variables and constants that a row reads but does not define, each once."""
    arguments: dict[int | None, Any] = {}
    for binding in row.bindings:
        if isinstance(binding.value, _tvm.relax.Call):
            for argument in _operands(binding.value):
                if _tvm.identity(argument) not in row.defined:
                    arguments.setdefault(_tvm.identity(argument), argument)
    return list(arguments.values())


def _operands(call: Any) -> list[Any]:
    """Return the operands of a call of a Relax function or PrimFunc."""
    return list(call.args) if isinstance(call.op, _tvm.ir.GlobalVar) else list(call.args[1].fields)


def _inlined(builder: Any, module: Any, value: Any, known: dict[int | None, Any]) -> Any:
    """Emit a value in the function of a builder.  known: replacements of variables and constants there."""
    relax = _tvm.relax

    def new(expression: Any) -> Any:
        return known.get(_tvm.identity(expression), expression)

    if isinstance(value, relax.TupleGetItem):
        return builder.emit(relax.TupleGetItem(new(value.tuple_value), value.index))
    if isinstance(value.op, _tvm.ir.GlobalVar):
        called = module[value.op]
        inner = {_tvm.identity(p): new(a) for p, a in zip(called.params, value.args, strict=True)}
        for block in called.body.blocks:
            for binding in block.bindings:
                inner[_tvm.identity(binding.var)] = _inlined(builder, module, binding.value, inner)
        return inner[_tvm.identity(called.body.body)]
    operands = relax.Tuple([new(operand) for operand in value.args[1].fields])
    return builder.emit(relax.Call(value.op, [value.args[0], operands, *value.args[2:]], value.attrs, value.ty_args))


def _name(call: Any) -> str:
    """Return the name of the called function."""
    function = call.op if isinstance(call.op, _tvm.ir.GlobalVar) else call.args[0]
    return str(function.name_hint)
