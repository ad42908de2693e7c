"""Type-check expressions: resolve names, match types, count arguments.

Input: a tree, and the names of one statement. Output: `program.Value`s, or a TCSemanticError at the wrong part.
"""

from __future__ import annotations

from felixlike._util.wording import counted, nearest
from felixlike.errors import TCSemanticError
from felixlike.tc import tree
from felixlike.tc.expansion_cost import copies
from felixlike.tc.functions import ARITY, INSTEAD, WRITTEN_OUT, instead_of_constant
from felixlike.tc.names import Names
from felixlike.tc.program import Binary, Call, Choose, Convert, Index, Literal, Read, Size, Unary, Value, children, walk
from felixlike.tc.scalars import canonical, is_float, is_integral, limits, matched, spoken
from felixlike.tc.source import Source, Span

LARGEST = 6_000
"""Largest value, in nodes, after lets are substituted and functions expanded. TVM traverses it as a tree. Chosen by
hand.
"""

DEEPEST = 200
"""Greatest nesting depth of a value, after lets are substituted. Chosen by hand."""

_FLOAT_LARGEST = 3.4028234663852886e38
"""Largest finite float32."""


class Typist:
    """Type checker of the expressions of one statement."""

    def __init__(self, source: Source, names: Names) -> None:
        self._source, self._names = source, names
        self._sizes: dict[int, tuple[int, int]] = {}
        self._bound = False

    def value(self, expression: tree.Expression) -> Value:
        """Return the value of an expression. Raise TCSemanticError."""
        made = self._of_form(expression)
        self._measure(made)
        return made

    def bound(self, expression: tree.Expression) -> Value:
        """Return the value of a bound of a range, which may contain integers and sizes only. Raise TCSemanticError."""
        self._bound = True
        try:
            return self.integral(expression, "the bound of a range")
        finally:
            self._bound = False

    def integral(self, expression: tree.Expression, what: str) -> Value:
        """Return the value of an expression that must be an integer. Raise TCSemanticError."""
        value = self.value(expression)
        if not is_integral(value.dtype):
            raise self._error(
                expression.span,
                f"expected an integral type for {what} but found {spoken(value.dtype)}",
                f"cast it: int32({self._source.shown(expression.span)})",
            )
        return value

    def converted(self, value: Value, dtype: str) -> Value:
        """Return a value converted to a matched type."""
        if value.dtype == dtype:
            return value
        made = Convert(value, dtype, value.span)
        self._measure(made)
        return made

    def _error(self, span: Span, reason: str, remedy: str = "") -> TCSemanticError:
        return self._source.error(TCSemanticError, span, reason, remedy)

    def _measure(self, value: Value) -> None:
        """Raise TCSemanticError if a value is too large or too deep, with lets substituted and functions expanded."""
        if id(value) in self._sizes:
            return
        parts = [self._sizes[id(child)] for child in children(value)]
        size = 1 + sum(times * part for times, (part, _) in zip(copies(value), parts, strict=True))
        depth = 1 + max((deep for _, deep in parts), default=0)
        if size > LARGEST or depth > DEEPEST:
            raise self._error(
                value.span,
                "the expression is too large after its lets are substituted and its functions are expanded",
                "compute repeated parts in a separate statement, as another output",
            )
        self._sizes[id(value)] = (size, depth)

    def _of_form(self, expression: tree.Expression) -> Value:
        match expression:
            case tree.Number():
                return self._number(expression)
            case tree.Name():
                return self._name(expression)
            case tree.Access():
                return self._access(expression)
            case tree.Cast():
                return self._cast(expression)
            case tree.Unary():
                return self._unary(expression)
            case tree.Binary():
                return self._binary(expression)
            case tree.Ternary():
                return self._ternary(expression)

    def _number(self, node: tree.Number) -> Value:
        if any(sign in node.text for sign in ".eE"):
            number = float(node.text)
            if abs(number) > _FLOAT_LARGEST:
                raise self._error(node.span, f"{node.text} is too large for a float", "compute it from smaller numbers")
            return Literal(number, "float32", node.span)
        if len(node.text) > 10 or int(node.text) > limits("int32")[1]:
            raise self._error(
                node.span, f"{node.text} is too large for an int32", "write it as a float, with a decimal point"
            )
        return Literal(int(node.text), "int32", node.span)

    def _name(self, node: tree.Name) -> Value:
        """Resolve a bare name."""
        name, names = node.text, self._names
        if name in names.left or name in names.reduced:
            return self._index(name, node.span)
        if name in names.lets:
            return self._let(name, node.span)
        if name in names.later:
            raise self._error(node.span, f"`{name}` is used before it is defined", "a let can use only earlier lets")
        if name in names.sizes:
            return Size(name, node.span)
        if name in names.tensors or name in names.unwritten:
            return self._element(tree.Identifier(name, node.span), (), node.span, called=False)
        if name in ARITY:
            raise self._error(
                node.span,
                f"`{name}` is a built-in function and cannot be redefined as an index",
                f"call it, for example {name}({', '.join('xyzw'[: ARITY[name]])}), or choose another name",
            )
        return self._index(name, node.span)

    def _index(self, name: str, span: Span) -> Value:
        """Return an index; raise TCSemanticError inside a bound of a range."""
        if self._bound:
            raise self._error(
                span,
                f"the bound of a range uses the index variable or undefined name `{name}`, which cannot be used in this"
                " context",
                "use only integers and sizes in bounds; for a triangle, sum (j < i) ? … : 0.0 over all j",
            )
        if name not in self._names.left:
            self._names.reduced.setdefault(name, span)
        return Index(name, span)

    def _let(self, name: str, span: Span) -> Value:
        """Return the value of a let; inside a bound of a range it must not depend on indices or tensors."""
        value = self._names.lets[name]
        if self._bound:
            for part in walk(value):
                if isinstance(part, Read):
                    raise self._tensor_bound(span)
                if isinstance(part, Index):
                    return self._index(part.name, span)  # raises
        return value

    def _tensor_bound(self, span: Span) -> TCSemanticError:
        return self._error(
            span,
            "tensor accesses cannot be used in this context: the bound of a range",
            "use only integers and sizes in bounds; give the range by the size of a parameter",
        )

    def _access(self, node: tree.Access) -> Value:
        """Resolve a name with arguments."""
        name, names = node.name.text, self._names
        if name in names.left or name in names.reduced or name in names.lets or name in names.later:
            kind = "a let" if name in names.lets or name in names.later else "an index"
            raise self._error(
                node.name.span,
                f"expected a tensor but found a scalar: `{name}` is {kind} here",
                f"write `{name}` without parentheses, or rename one of the two",
            )
        if name in names.tensors or name in names.unwritten:
            return self._element(node.name, node.arguments, node.span, called=True)
        if name in names.sizes:
            raise self._error(
                node.name.span,
                f"expected a tensor but found a scalar: `{name}` is a size",
                f"write `{name}` without parentheses",
            )
        if name in ARITY:
            return self._call(node)
        near = nearest(name, [*names.tensors, *ARITY])
        remedy = f"did you mean `{near}`" if near else "declare it as a parameter; definitions cannot call each other"
        remedy = INSTEAD.get(name, remedy)
        raise self._error(node.name.span, f"undefined variable `{name}` used here", remedy)

    def _element(
        self, name: tree.Identifier, arguments: tuple[tree.Expression, ...], span: Span, *, called: bool
    ) -> Value:
        """Return a read of a tensor element. called: whether it has parentheses."""
        if self._bound:
            raise self._tensor_bound(span)
        if name.text in self._names.unwritten:
            raise self._error(
                name.span,
                f"undefined variable `{name.text}` used here: it is an output that no earlier statement writes",
                "write it first, or pass it as a parameter with another name",
            )
        dtype, rank = self._names.tensors[name.text]
        if not called and rank:
            raise self._error(
                span,
                f"expected a scalar but found a tensor expression: `{name.text}` has {counted(rank, 'dimension')}",
                f"subscript it: {name.text}({', '.join('ijklmnop'[:rank])})",
            )
        if len(arguments) != rank:
            raise self._error(
                span,
                f"expected {rank} dimensions but found {len(arguments)} dimensions in an access to `{name.text}`",
                f"give {counted(rank, 'subscript')}",
            )
        subscripts = tuple(self.integral(argument, "a subscript") for argument in arguments)
        return Read(name.text, subscripts, dtype, span)

    def _call(self, node: tree.Access) -> Value:
        name = node.name.text
        if len(node.arguments) != ARITY[name]:
            raise self._error(
                node.span,
                f"built-in function `{name}` expected {counted(ARITY[name], 'argument')} but found"
                f" {len(node.arguments)}",
                f"write {name}({', '.join('xyzw'[: ARITY[name]])})",
            )
        arguments = [self.value(argument) for argument in node.arguments]
        if name in WRITTEN_OUT and any(isinstance(part, Call) for part in walk(*arguments)):
            raise self._error(
                node.span,
                f"`{name}` is expanded to a formula, so its arguments cannot contain function calls",
                "compute the argument in a separate statement, as another output",
            )
        dtype = "float32"
        for argument in arguments:
            dtype = matched(dtype, argument.dtype)
        return Call(name, tuple(self.converted(argument, dtype) for argument in arguments), dtype, node.span)

    def _cast(self, node: tree.Cast) -> Value:
        dtype = canonical(node.type.text)
        if dtype == "float16":
            raise self._error(node.type.span, "float16 is not supported", "use float")
        return Convert(self.value(node.value), dtype, node.span, written=True)

    def _unary(self, node: tree.Unary) -> Value:
        value = self.value(node.value)
        if node.operator == "!":
            self._boolean(value, node.value.span)
        elif value.dtype == "bool":
            raise self._no_arithmetic(node.value.span)
        return Unary(node.operator, value, value.dtype, node.span)

    def _binary(self, node: tree.Binary) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        if node.operator in ("&&", "||"):
            self._boolean(left, node.left.span)
            self._boolean(right, node.right.span)
            return Binary(node.operator, left, right, "bool", node.span)
        dtype = matched(left.dtype, right.dtype)
        compares = node.operator in ("<", ">", "<=", ">=", "==", "!=")
        if dtype == "bool" and not compares and node.operator not in ("min", "max"):
            raise self._no_arithmetic(node.span)
        left, right = self.converted(left, dtype), self.converted(right, dtype)
        return Binary(node.operator, left, right, "bool" if compares else dtype, node.span)

    def _ternary(self, node: tree.Ternary) -> Value:
        condition = self.value(node.condition)
        self._boolean(condition, node.condition.span)
        left, right = self.value(node.left), self.value(node.right)
        dtype = matched(left.dtype, right.dtype)
        return Choose(condition, self.converted(left, dtype), self.converted(right, dtype), dtype, node.span)

    def _boolean(self, value: Value, span: Span) -> None:
        if value.dtype != "bool":
            kind, text = "0.0" if is_float(value.dtype) else "0", self._source.shown(span)
            raise self._error(
                span,
                f"expected a boolean (bool) but found {spoken(value.dtype)}",
                instead_of_constant(text) or f"compare it: {text} != {kind}",
            )

    def _no_arithmetic(self, span: Span) -> TCSemanticError:
        return self._error(
            span, "arithmetic on bool is not defined", "cast it to a number, for example int32(…), or use &&, || and !"
        )
