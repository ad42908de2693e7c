"""Name the layers of the user's model that each function of a fused module computes.

Inputs: labels of FX nodes, and the module as imported, before and after fusion. Output: labels by function.

The labels travel as spans of variables. TVM keeps them in every pass up to FuseOps, and no hash, name or generated code
depends on them. FuseOps makes new variables, so calls before and after it are matched by what they compute.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import INJECTIVE, Bindings, functions_of, kernel_of, pattern_of

Labels = dict[str, None]
"""Labels in the order of computation, each once. Their first lines are the texts that users see."""

_Number = int | tuple[Any, ...]
"""Number of a value, equal for equal computations. Tuples have the numbers of their elements."""


class Recorder:
    """Record which node of an exported program each Relax variable comes from.

    Args:
        program: ExportedProgram after decomposition.
    """

    def __init__(self, program: Any) -> None:
        self._labels, self._graph = labels_of(program), program.graph
        self._variables: dict[int | None, tuple[Any, str]] = {}

    def recording(self, converters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
        """Return converters that record the variables they return."""

        def recorded(convert: Callable[..., Any]) -> Callable[..., Any]:
            def converted(node: Any, importer: Any) -> Any:
                value = convert(node, importer)
                label = self._labels.get(node.name, "") if node.graph is self._graph else ""  # none in branches
                if label and isinstance(value, _tvm.relax.Var):
                    self._variables.setdefault(_tvm.identity(value), (value, label))  # keeps it alive
                return value

            return converted

        return {name: recorded(convert) for name, convert in converters.items()}

    def labelled(self, module: Any) -> Any:
        """Return the module with the labels as spans of its variables.

        A variable that a converter has not returned gets the label of one that reads it.
        """
        visitor = _visitor()(module)
        labels = {number: label for number, (_, label) in self._variables.items()}
        for variable, function in functions_of(module):
            bindings = Bindings(function)
            for bound, _ in reversed([*_bindings(function)]):
                number, readers = _tvm.identity(bound), map(bindings.variable, bindings.readers(bound))
                known = (labels[r] for r in [_tvm.identity(v) for v in readers if v is not None] if r in labels)
                if number not in labels and (label := next(known, "")):
                    labels[number] = label
                if number in labels:
                    span = _tvm.ir.Span(_tvm.ir.SourceName(labels[number]), 0, 0, 0, 0)
                    visitor.new[number] = type(bound)(bound.name, bound.ty, span)
            visitor.builder_.update_func(variable, visitor.visit_expr(function))
        return visitor.builder_.get()


@functools.cache
def _visitor() -> Any:
    """Return the class of TVM's object that replaces variables. TVM never frees such classes."""
    relax = _tvm.relax

    class Visitor(relax.PyExprMutator):  # type: ignore[misc,name-defined]
        def __init__(self, module: Any) -> None:
            super().__init__(module)
            self.new: dict[int | None, Any] = {}

        def visit_dataflow_var_(self, variable: Any) -> Any:
            return self.new.get(_tvm.identity(variable), variable)

        def visit_var_(self, variable: Any) -> Any:
            return self.visit_dataflow_var_(variable)

        def visit_dataflow_var_def_(self, variable: Any) -> Any:
            return self.visit_dataflow_var_(variable)

        def visit_var_def_(self, variable: Any) -> Any:
            return self.visit_dataflow_var_(variable)

    return relax.expr_functor.mutator(Visitor)


_MOVES = frozenset(
    {
        "alias",
        "cat",
        "chunk",
        "clone",
        "contiguous",
        "detach",
        "expand",
        "flatten",
        "getitem",
        "permute",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "stack",
        "t",
        "transpose",
        "unbind",
        "unflatten",
        "unsqueeze",
        "view",
    }
)
"""Operators that only move data."""

_CONSTANTS = frozenset(
    {"arange", "empty", "eye", "full", "lift_fresh_copy", "linspace", "ones", "scalar_tensor", "zeros"}
)
"""Operators whose results do not depend on inputs. They have no labels."""


def labels_of(program: Any) -> dict[str, str]:
    """Return the labels of a program's nodes by name: the text to show and the name of a node, in two lines.

    The text is the name of its module, such as "layer1.0.conv1". If the module computes several operators or has
    submodules, the operator is appended: "layer1.0.add". Nodes and operators are those before decomposition.
    """
    places: dict[str, tuple[str, str, str]] = {}
    for node in program.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if node.op == "call_function" and stack:
            paths = [path for path, _ in stack.values()]
            path = paths[-1].removeprefix(paths[0]).lstrip(".")  # the outermost has a name in graphs of Dynamo's
            first = next(iter(node.meta.get("from_node") or ()), node)
            operator = str(first.target).removeprefix("aten.").partition(".")[0].rstrip("_")
            places[node.name] = (path, operator, first.name)
    operators: dict[str, set[str]] = {}
    for path, operator, _ in places.values():
        operators.setdefault(path, set()).add(operator)
    parents = {path.rpartition(".")[0] for path in operators} | {""}
    simple = {p for p, names in operators.items() if len(names - _MOVES - _CONSTANTS) == 1 and p not in parents}
    return {
        name: f"{path if path in simple else '.'.join(filter(None, (path, operator)))}\n{first_name}"
        for name, (path, operator, first_name) in places.items()
        if operator not in _CONSTANTS
    }


def layers_of(source: Any, before: Any, after: Any) -> dict[str, tuple[str, ...]]:
    """Return the layers that each function computes, one text per call site, by the function's name.

    Args:
        source: The module as imported, with labels.
        before: The module before FuseOps.
        after: The module after FuseOps.
    """
    numbers = _Numbers()
    labels: dict[_Number, Labels] = {}
    moving: set[_Number] = set()
    absorbed = _absorbed(source, before)
    for name, function in _functions(before):
        known, values = _Labelled(function, absorbed), numbers.scope(name, function)
        for variable, value in _bindings(function):
            number = numbers.bind(values, variable, value)
            if isinstance(number, int) and isinstance(value, _tvm.relax.Call):
                labels.setdefault(number, {}).update(known.of(variable))
                if _moves(before, value):
                    moving.add(number)
    texts: dict[str, tuple[str, ...]] = {}
    for name, function in _functions(after):
        values = numbers.scope(name, function)
        for variable, value in _bindings(function):
            callee = _callee(value)
            if callee is None or not isinstance(value.op, _tvm.ir.GlobalVar):
                parts = [numbers.bind(values, variable, value)]
            else:
                called = after[value.op]
                inner = dict(zip(map(_tvm.identity, called.params), map(values.number, value.args), strict=True))
                scope = _Scope(numbers, inner)
                parts = [numbers.bind(scope, v, x) for v, x in _bindings(called)]
                values.numbers[_tvm.identity(variable)] = scope.number(called.body.body)
            if callee is not None:
                computing = [part for part in parts if part not in moving] or parts
                found = {label.partition("\n")[0]: None for part in computing for label in labels.get(part, {})}
                texts[callee] = (*texts.get(callee, ()), layers_text([*found]))
    return texts


def layers_text(labels: Sequence[str]) -> str:
    """Return the layers of one call as text: "layer1.0.conv1 + bn1". Later ones omit what they share with the first."""
    first = labels[0].split(".") if labels else []

    def short(label: str) -> str:
        parts = label.split(".")
        shared = next((i for i, pair in enumerate(zip(parts[:-1], first, strict=False)) if len({*pair}) > 1), None)
        start = min(len(parts) - 1, len(first)) if shared is None else shared
        while start and parts[start].isdecimal():  # "h.1.mlp", not "1.mlp"
            start -= 1
        return ".".join(parts[start:])

    return " + ".join([*labels[:1], *map(short, labels[1:])])


class _Numbers:
    """Number values so that equal computations have equal numbers, in all modules that are numbered together."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], int] = {}

    def of(self, *key: Any) -> int:
        """Return the number of a computation."""
        return self._known.setdefault(key, len(self._known))

    def scope(self, name: str, function: Any) -> _Scope:
        """Return the numbers of a function's parameters."""
        inputs = enumerate(map(_tvm.identity, function.params))
        return _Scope(self, {identity: self.of("input", name, i) for i, identity in inputs})

    def bind(self, scope: _Scope, variable: Any, value: Any) -> _Number:
        """Return the number of a binding's value, and remember it for the variable."""
        number = scope.numbers[_tvm.identity(variable)] = scope.number(value)
        return number


class _Scope:
    """The numbers of the variables of one function, or of one call of it."""

    def __init__(self, table: _Numbers, numbers: dict[int | None, _Number]) -> None:
        self._table, self.numbers = table, numbers

    def number(self, value: Any) -> _Number:
        """Return the number of an expression."""
        relax, identity = _tvm.relax, _tvm.identity(value)
        if identity in self.numbers:
            return self.numbers[identity]
        if isinstance(value, relax.Tuple):
            return tuple(map(self.number, value.fields))
        if isinstance(value, relax.TupleGetItem):
            whole = self.number(value.tuple_value)
            return whole[value.index] if isinstance(whole, tuple) else self._table.of("item", whole, value.index)
        if isinstance(value, relax.Call):
            attributes = "" if value.attrs is None else str(value.attrs)
            return self._table.of("call", getattr(value.op, "name", ""), attributes, *map(self.number, value.args))
        if isinstance(value, _tvm.ir.GenericConst | relax.If):
            return self._table.of("object", identity)
        return self._table.of("text", str(value))


class _Labelled:
    """The labels of the variables of one function.

    Args:
        function: The function.
        absorbed: Labels that no variable has any more, by the label of the layer that reads them.
    """

    def __init__(self, function: Any, absorbed: Mapping[str, Labels]) -> None:
        self._absorbed = absorbed
        self._bindings = Bindings(function)
        self._known: dict[int | None, Labels] = {}

    def of(self, variable: Any) -> Labels:
        """Return the labels of a variable. One without any was made by a pass for the values that read it."""
        identity = _tvm.identity(variable)
        if identity not in self._known:
            self._known[identity] = {}
            label = _label(variable)
            self._known[identity] = (
                self._absorbed.get(label, {}) | {label: None} if label else self.of_readers(variable)
            )
        return self._known[identity]

    def of_readers(self, variable: Any) -> Labels:
        """Return the labels of the variables whose values read a variable."""
        labels: Labels = {}
        for value in self._bindings.readers(variable):
            reader = self._bindings.variable(value)
            labels |= self.of(reader) if reader is not None else {}
        return labels


def _moves(module: Any, value: Any) -> bool:
    """Return whether a value calls a kernel that only moves data, such as a transposition."""
    kernel = kernel_of(module, value)
    return kernel is not None and pattern_of(kernel) == INJECTIVE


def _absorbed(source: Any, before: Any) -> dict[str, Labels]:
    """Return the labels that no variable has any more, by the label of the only layer that read them.

    Rewrites fold a convolution into the batch norm that reads it, for example. Operators that only move data are left
    out.
    """
    kept = {_label(variable) for _, function in _functions(before) for variable, _ in _bindings(function)}
    readers: dict[str, Labels] = {}
    for _, function in _functions(source):
        labelled = _Labelled(function, {})
        for variable, _ in _bindings(function):
            for label in labelled.of(variable):
                found = readers.setdefault(label, {})
                found |= labelled.of_readers(variable)
                found.pop(label, None)
    absorbed: dict[str, Labels] = {}
    for label in readers:
        if label.partition("\n")[0].rpartition(".")[2] in _MOVES:
            continue
        seen, place = {label}, label
        while place not in kept and len(readers.get(place, {})) == 1:
            place = next(iter(readers[place]))
            if place in seen:
                break
            seen.add(place)
        if place != label and place in kept:
            absorbed.setdefault(place, {})[label] = None
    return absorbed


def _label(variable: Any) -> str:
    """Return the label of a variable, empty for none."""
    return "" if variable.span is None else str(variable.span.source_name.name)


def _callee(value: Any) -> str | None:
    """Return the name of the function of the module that a value calls, or None."""
    if not isinstance(value, _tvm.relax.Call):
        return None
    function = value.op if isinstance(value.op, _tvm.ir.GlobalVar) else value.args[0] if value.args else None
    return str(function.name_hint) if isinstance(function, _tvm.ir.GlobalVar) else None


def _functions(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the Relax functions of a module that are not fused subgraphs, by name."""
    for variable, function in module.functions.items():
        primitive = function.attrs and function.attrs.get("Primitive")
        if isinstance(function, _tvm.relax.Function) and not primitive:
            yield str(variable.name_hint), function


def _bindings(function: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (variable, value) of a function's bindings in order."""
    for block in function.body.blocks:
        yield from ((binding.var, binding.value) for binding in block.bindings if hasattr(binding, "value"))
