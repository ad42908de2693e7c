"""Print a program as readable C, for reference: isl's loops around one assignment per statement.

Input: an instance, a fusion strategy. Output: the text of one C function. isl generates the loops from its schedule
(Verdoolaege, "AST generation", 2015). Integers wrap, as with gcc's -fwrapv.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from felixlike.errors import TCError
from felixlike.tc.bounds import Kept
from felixlike.tc.functions import ARITY
from felixlike.tc.instance import Instance
from felixlike.tc.linear import Interval, interval
from felixlike.tc.polyhedral import heading, limited, schedule
from felixlike.tc.program import (
    Binary,
    Call,
    Choose,
    Convert,
    Index,
    Literal,
    Read,
    Size,
    Step,
    Unary,
    Value,
    children,
    walk,
)
from felixlike.tc.scalars import bits, is_float, is_unsigned, limits, spoken

_TYPES = {"float32": "float", "float64": "double", "bool": "bool"}
"""C types that are not the numpy name with "_t"."""

_LOGICAL_OR, _LOGICAL_AND, _EQUAL, _LESS, _SUM, _PRODUCT, _UNARY, _PRIMARY = range(2, 10)
_ANY, _TERNARY = 0, 1

_PRECEDENCE = {
    **dict.fromkeys(("+", "-"), _SUM),
    **dict.fromkeys(("*", "/", "%"), _PRODUCT),
    **dict.fromkeys(("<", ">", "<=", ">="), _LESS),
    **dict.fromkeys(("==", "!="), _EQUAL),
    "&&": _LOGICAL_AND,
    "||": _LOGICAL_OR,
}
"""Precedence of C's binary operators."""

_LIBRARY = frozenset(
    (
        *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "cos", "cosh", "erf", "erfc", "exp"),
        *("exp2", "expm1", "fabs", "floor", "lgamma", "log", "log10", "log1p", "log2", "logb", "round", "sin", "sinh"),
        *("sqrt", "tan", "tanh", "tgamma", "trunc", "atan2", "copysign", "fdim", "fmax", "fmin", "fmod", "hypot"),
        *("nextafter", "pow", "remainder", "fma"),
    )
)
"""Functions that math.h has under the same name, for float with an f at the end."""

_IN_DOUBLE = frozenset(("j0", "j1", "y0", "y1"))
"""Functions that math.h has for double alone."""

_FORMULAS: dict[str, str] = {
    "cospi": "cos{f}({pi} * remainder{f}(x, 2))",
    "exp10": "pow{f}(10, x)",
    "fdivide": "x / y",
    "norm3d": "sqrt{f}(x * x + y * y + z * z)",
    "norm4d": "sqrt{f}(x * x + y * y + z * z + w * w)",
    "normcdf": "erfc{f}(x * {minus_root_half}) / 2",
    "rcbrt": "1 / cbrt{f}(x)",
    "rhypot": "1 / hypot{f}(x, y)",
    "rnorm3d": "1 / sqrt{f}(x * x + y * y + z * z)",
    "rnorm4d": "1 / sqrt{f}(x * x + y * y + z * z + w * w)",
    "rsqrt": "1 / sqrt{f}(x)",
    "sinpi": "sin{f}({pi} * remainder{f}(x, 2))",
}
"""Functions that math.h lacks. f: the suffix of functions for float."""

_HELPERS: dict[str, str] = {
    "min": "{T} {name}({T} a, {T} b) {{ return a < b ? a : b; }}",
    "max": "{T} {name}({T} a, {T} b) {{ return a > b ? a : b; }}",
    "at": "{T} {name}({T} place, {T} low, {T} high) {{\n  assert(low <= place && place <= high);\n  return place;\n}}",
    "div": "{T} {name}({T} a, {T} b) {{\n"
    "  if (b == 0) return 0;\n"
    "  if (b == -1) return -a;\n"
    "  return a / b - (a % b != 0 && (a < 0) != (b < 0));\n}}",
    "mod": "{T} {name}({T} a, {T} b) {{\n"
    "  if (b == 0 || b == -1) return 0;\n"
    "  return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);\n}}",
    "div_unsigned": "{T} {name}({T} a, {T} b) {{ return b == 0 ? 0 : a / b; }}",
    "mod_unsigned": "{T} {name}({T} a, {T} b) {{ return b == 0 ? 0 : a % b; }}",
    "mod_float": "{T} {name}({T} a, {T} b) {{\n"
    "  {T} rest = fmod{f}(a, b);\n"
    "  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;\n}}",
}
"""Functions that stand before the code where it calls them."""

_ISL_HELPERS = {
    "min": "static inline int min(int a, int b) { return a < b ? a : b; }",
    "max": "static inline int max(int a, int b) { return a > b ? a : b; }",
    "floord": "static inline int floord(int a, int b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }",
}
"""Functions that isl's expressions call."""

_KEYWORDS = frozenset(
    (
        *("auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern"),
        *("float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed"),
        *("sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while", "asm"),
        *("typeof", "bool", "true", "false", "assert", "floord", "at", "INFINITY", "NAN", "NULL", "linux", "unix"),
        *("main", "OVERFLOW", "UNDERFLOW", "DOMAIN", "SING", "PLOSS", "TLOSS", "MAXFLOAT", "i386", "nullptr"),
    )
)
"""Words that cannot name a tensor: keywords of C, macros of the headers, and functions of the text itself."""

_TAKEN = re.compile(r"_.*|\w+_(t|float|double|u?int\d+)|[A-Z0-9_]*_(MAX|MIN|WIDTH|C)|(M|FP|HUGE|MATH)_\w+")
"""Names that headers or the text itself may use."""


def c_code(made: Instance, fusion: str, fused: Sequence[tuple[int, ...]] = (), tiles: tuple[int, ...] = ()) -> str:
    """Return C code of a program for its sizes.

    Args:
        made: The instance.
        fusion: Fusion strategy of isl's schedule.
        fused: Groups of statements to fuse by request, by their numbers from 1.
        tiles: Tile sizes of the outermost loops.

    Raises:
        MissingDependency: islpy is not installed.
        InvalidOption, TCFusionError: The groups are not possible.
        TCError: The program has a function that C lacks, a statement reads elements of the tensor that it writes other
            than its own, or isl exceeds its limit of operations.
    """
    for step in made.program.steps:
        _check_in_place(made, step)
    return _Printer(made).printed(fusion, fused, tiles)


def _check_in_place(made: Instance, step: Step) -> None:
    """Raise TCError if a statement that is computed in place would read elements that it has changed."""
    for value in walk(step.value):
        if isinstance(value, Read) and value.tensor == step.target:
            own = [part.name if isinstance(part, Index) else "" for part in value.subscripts] == list(step.indices)
            if step.reduced or not own:
                raise made.program.source.error(
                    TCError,
                    value.span,
                    f"C code in place would read elements of `{step.target}` that the statement has already changed",
                    "write to another output",
                )


@dataclass(frozen=True, slots=True)
class _Text:
    """An expression in C and the precedence of its outermost operator."""

    text: str
    precedence: int = _PRIMARY

    def within(self, precedence: int) -> str:
        """Return it as an operand, in parentheses if its operator binds less than `precedence`."""
        return self.text if self.precedence >= precedence else f"({self.text})"


@dataclass(slots=True)
class _Printer:
    """Prints one program.

    Attributes:
        made: The program with its sizes.
        names: C names of tensors.
        used: Definitions of the functions that the code calls, in order of first use.
    """

    made: Instance
    names: dict[str, str] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)

    def printed(self, fusion: str, fused: Sequence[tuple[int, ...]], tiles: tuple[int, ...]) -> str:
        """Return the whole text."""
        program = self.made.program
        for name in (*(t.name for t in program.parameters), *(o.name for o in program.outputs)):
            self.names[name] = _free(name, self.names.values())
        tree = schedule(program, self.made.sizes, self.made.ranges, self.made.bounds, fusion, fused, tiles)
        body = [f"  {line}" for line in limited(program, lambda: list(self._loops(_ast(tree), {})))]
        title = heading(program, self.made.sizes, fusion, fused, tiles)
        lines = [f"// {title}. Compile it with -fwrapv and link it with -lm."]
        lines += [f"//   S{number}: {self._shown(step)}" for number, step in enumerate(program.steps, 1)]
        code = [f"void {_free(program.name, ())}({', '.join(self._parameters())}) {{", *body, "}"]
        helpers = [line for text in self.used.values() for line in (*text.split("\n"), "")]
        return "\n".join([*lines, *_includes([*helpers, *code]), "", *helpers, *code])

    def _shown(self, step: Step) -> str:
        """Return the text of a statement, without comments."""
        text = self.made.program.source.text[step.span.start : step.span.end]
        return " ".join(" ".join(line.partition("#")[0] for line in text.split("\n")).split())

    def _parameters(self) -> Iterator[str]:
        """Yield the declarations of inputs, then of outputs."""
        program = self.made.program
        for parameter in program.parameters:
            sizes = "".join(f"[{size}]" for size in self.made.ranges.shape(parameter.name))
            qualified = "const " if sizes else ""
            yield f"{qualified}{_type(parameter.dtype)} {self.names[parameter.name]}{sizes}"
        for output in program.outputs:
            sizes = "".join(f"[{size}]" for size in self.made.ranges.shape(output.name))
            yield f"{_type(output.dtype)} {self.names[output.name]}{sizes or '[1]'}"

    def _loops(self, node: Any, iterators: Mapping[str, str]) -> Iterator[str]:
        """Yield the lines of a node of isl's tree. iterators: names of loops' variables by those of isl."""
        import islpy as isl

        kind = node.get_type()
        if kind == isl.ast_node_type.block:
            children_ = node.block_get_children()
            for place in range(children_.n_ast_node()):
                yield from self._loops(children_.get_at(place), iterators)
        elif kind == isl.ast_node_type.for_:
            yield from self._loop(node, iterators)
        elif kind == isl.ast_node_type.if_:
            yield f"if ({self._isl(node.if_get_cond(), iterators)}) {{"
            yield from (f"  {line}" for line in self._loops(node.if_get_then(), iterators))
            if node.if_has_else():
                yield "} else {"
                yield from (f"  {line}" for line in self._loops(node.if_get_else(), iterators))
            yield "}"
        else:
            yield self._statement(node.user_get_expr(), iterators)

    def _loop(self, node: Any, iterators: Mapping[str, str]) -> Iterator[str]:
        """Yield the lines of a loop."""
        import islpy as isl

        variable = node.for_get_iterator().to_C_str()
        taken = (*self.names.values(), *iterators.values())
        name = _free(next(self._indices(node.for_get_body(), variable), variable), taken)
        inner = {**iterators, variable: name}
        start = self._isl(node.for_get_init(), iterators)
        if node.for_is_degenerate():
            yield f"{{ int {name} = {start};"
        else:
            condition, step = node.for_get_cond(), node.for_get_inc().to_C_str()
            end = condition.get_op_arg(1)
            if condition.get_op_type() == isl.ast_expr_op_type.le and end.get_type() == isl.ast_expr_type.int:
                test = f"{name} < {int(end.to_C_str()) + 1}"
            else:
                test = self._isl(condition, inner)
            yield f"for (int {name} = {start}; {test}; {name}{'++' if step == '1' else f' += {step}'}) {{"
        yield from (f"  {line}" for line in self._loops(node.for_get_body(), inner))
        yield "}"

    def _indices(self, node: Any, variable: str) -> Iterator[str]:
        """Yield indices of statements within a node that equal a loop's variable, then those it is part of."""
        import islpy as isl

        calls: list[Any] = []

        def visit(inner: Any) -> bool:
            if inner.get_type() == isl.ast_node_type.user:
                calls.append(inner.user_get_expr())
            return True

        node.foreach_descendant_top_down(visit)
        places: list[tuple[str, str]] = []
        for call in calls:
            number, is_step = _called(call)
            step = self.made.program.steps[number]
            indices = (*step.indices, *step.reduced) if is_step else step.indices
            places += [(call.get_op_arg(place).to_C_str(), index) for place, index in enumerate(indices, 1)]
        yield from (index for text, index in places if text == variable)
        yield from (index for text, index in places if re.search(rf"\b{variable}\b", text))

    def _isl(self, expression: Any, iterators: Mapping[str, str]) -> str:
        """Return an expression of isl as C."""
        text: str = expression.to_C_str()
        for name, definition in _ISL_HELPERS.items():
            if f"{name}(" in text:
                self.used[name] = definition
        return re.sub(r"\bc\d+\b", lambda match: iterators[match[0]], text)

    def _statement(self, call: Any, iterators: Mapping[str, str]) -> str:
        """Return a statement at the point that isl gives."""
        number, is_step = _called(call)
        step = self.made.program.steps[number]
        intervals = self.made.ranges.domains[number].intervals
        names = (*step.indices, *step.reduced) if is_step else step.indices
        places = {n: self._isl(call.get_op_arg(place), iterators) for place, n in enumerate(names, 1)}
        expression = _Expressions(self, intervals, places)
        span, dtype = step.span, step.value.dtype
        target = Read(step.target, tuple(Index(index, span) for index in step.indices), dtype, span)
        left = expression.of(target).text
        if not is_step:
            return f"{left} = {self._neutral(step.operator, dtype)};"
        right = expression.of(step.value)
        if step.operator in ("+", "*") and (step.reduced or not step.fresh):
            return f"{left} {step.operator}= {right.text};"
        if step.reduced or not step.fresh:
            right = expression.of(Binary(step.operator, target, step.value, dtype, span))
        return f"{left} = {right.text};"

    def _neutral(self, operator: str, dtype: str) -> str:
        """Return the neutral element of a reduction."""
        if operator in ("+", "*"):
            return _literal(int(operator == "*"), dtype).text
        if dtype == "bool":
            return "true" if operator == "min" else "false"
        if is_float(dtype):
            return "INFINITY" if operator == "min" else "-INFINITY"
        return _literal(limits(dtype)[operator == "min"], dtype).text

    def helper(self, kind: str, dtype: str) -> str:
        """Return the name of a helper for a type."""
        name = f"{kind.partition('_')[0]}_{spoken(dtype)}"
        template = _HELPERS.get(kind) or f"{{T}} {{name}}({{arguments}}) {{{{ return {_FORMULAS[kind]}; }}}}"
        f = "" if dtype == "float64" else "f"
        self.used[name] = "static inline " + template.format(
            T=_type(dtype),
            name=name,
            f=f,
            arguments=", ".join(f"{_type(dtype)} {a}" for a in "xyzw"[: ARITY.get(kind, 0)]),
            pi=f"{math.pi!r}{f}",
            minus_root_half=f"{-math.sqrt(0.5)!r}{f}",
        )
        return name


@dataclass(frozen=True, slots=True)
class _Expressions:
    """Prints the values of one statement. places: C text of each index."""

    printer: _Printer
    intervals: Mapping[str, Interval]
    places: Mapping[str, str]

    def of(self, value: Value) -> _Text:
        """Return a value as C."""
        match value:
            case Literal():
                return _literal(value.value, value.dtype)
            case Size():
                return _Text(str(self.printer.made.sizes[value.name]))
            case Index():
                place = self.places[value.name]
                return _Text(place, _PRIMARY if re.fullmatch(r"\w+", place) else _ANY)
            case Read():
                return self._read(value)
            case Convert():
                return self._converted(value)
            case Unary():
                text = f"{value.operator}{self.of(value.value).within(_PRIMARY)}"
                return _wrapped(_Text(text, _UNARY), value.dtype)
            case Binary():
                return self._binary(value)
            case Choose():
                condition, left, right = (self.of(part) for part in children(value))
                text = f"{condition.within(_LOGICAL_OR)} ? {left.within(_LOGICAL_OR)} : {right.within(_LOGICAL_OR)}"
                return _Text(text, _TERNARY)
            case Call():
                return self._call(value)

    def _range(self, value: Value) -> Interval:
        return interval(value, self.intervals, self.printer.made.sizes)

    def _read(self, read: Read) -> _Text:
        """Return an access; subscripts that are checked at runtime are asserted to be within the tensor."""
        made, name = self.printer.made, self.printer.names[read.tensor]
        if not read.subscripts:
            is_parameter = any(parameter.name == read.tensor for parameter in made.program.parameters)
            return _Text(name if is_parameter else f"{name}[0]")
        by_check = made.bounds.kept.get(id(read), Kept.ALWAYS) is Kept.BY_CHECK
        subscripts = []
        for subscript, (low, high) in zip(read.subscripts, made.ranges.bounds[read.tensor], strict=True):
            place = self.of(subscript)
            least, greatest = self._range(subscript)
            if by_check and not (low <= least and greatest <= high):
                place = _Text(f"{self.printer.helper('at', 'int64')}({place.text}, {low}, {high})")
            moved = f" {'-' if low > 0 else '+'} {abs(low)}"
            subscripts.append(f"[{place.within(_SUM)}{moved}]" if low else f"[{place.text}]")
        return _Text(f"{name}{''.join(subscripts)}")

    def _converted(self, value: Convert) -> _Text:
        """Return a conversion. Floats are truncated to int32 or int64 first, then wrap, as in compiled code."""
        inner, dtype = value.value, value.dtype
        if isinstance(inner, Literal) and is_float(dtype):
            return _literal(float(inner.value), dtype)
        if inner.dtype == dtype:
            return self.of(inner)
        text = self.of(inner).within(_UNARY)
        if is_float(inner.dtype) and not is_float(dtype) and dtype not in ("bool", "int32", "int64"):
            text = f"(int{32 if bits(dtype) < 32 else 64}_t){text}"
        return _Text(f"({_type(dtype)}){text}", _UNARY)

    def _binary(self, value: Binary) -> _Text:
        left, right, operator = self.of(value.left), self.of(value.right), value.operator
        if operator in ("min", "max"):
            if value.dtype != "bool":
                return _Text(f"{self.printer.helper(operator, value.dtype)}({left.text}, {right.text})")
            operator = "&&" if operator == "min" else "||"
        if operator == "%" and is_float(value.dtype):
            return _Text(f"{self.printer.helper('mod_float', value.dtype)}({left.text}, {right.text})")
        if operator in ("/", "%") and not is_float(value.dtype) and not self._divides_plainly(value):
            kind = f"{'div' if operator == '/' else 'mod'}{'_unsigned' if is_unsigned(value.dtype) else ''}"
            return _Text(f"{self.printer.helper(kind, value.dtype)}({left.text}, {right.text})")
        precedence = _PRECEDENCE[operator]
        # Compilers warn of && within || and of comparisons within comparisons, if there are no parentheses.
        least = _SUM if precedence in (_EQUAL, _LESS) else precedence + 1
        first = precedence if left.precedence == precedence and precedence not in (_EQUAL, _LESS) else least
        if operator == "||":
            least, first = _EQUAL, precedence if left.precedence == precedence else _EQUAL
        text = f"{left.within(first)} {operator} {right.within(least)}"
        return _wrapped(_Text(text, precedence), value.dtype)

    def _divides_plainly(self, value: Binary) -> bool:
        """Return whether C's division of integers, which rounds towards zero, is the language's."""
        return self._range(value.left)[0] >= 0 and self._range(value.right)[0] > 0

    def _call(self, call: Call) -> _Text:
        """Return a call of a function of math.h, or of one that stands before the code."""
        arguments = ", ".join(self.of(argument).text for argument in call.arguments)
        name, is_double = call.function, call.dtype == "float64"
        if name in _LIBRARY:
            return _Text(f"{name}{'' if is_double else 'f'}({arguments})")
        if name in _IN_DOUBLE:
            return _Text(f"{name}({arguments})") if is_double else _Text(f"(float){name}({arguments})", _UNARY)
        if name in _FORMULAS:
            return _Text(f"{self.printer.helper(name, call.dtype)}({arguments})")
        raise self.printer.made.program.source.error(
            TCError, call.span, f"C has no function `{name}`", "call the comprehension instead"
        )


def _ast(tree: Any) -> Any:
    """Return isl's syntax tree of a schedule."""
    import islpy as isl

    context = isl.Set.read_from_str(tree.get_ctx(), "{ : }")
    return isl.AstBuild.from_context(context).node_from_schedule(tree)


def _called(call: Any) -> tuple[int, bool]:
    """Return the number of the statement that isl calls, and False if it is the statement's initialization."""
    number, _, kind = call.get_op_arg(0).to_C_str()[1:].partition("_")
    return int(number) - 1, not kind


def _type(dtype: str) -> str:
    """Return the C type of elements."""
    return _TYPES.get(dtype, f"{dtype}_t")


def _wrapped(text: _Text, dtype: str) -> _Text:
    """Return a result of arithmetic in a type; C computes types narrower than int in int."""
    if is_float(dtype) or dtype == "bool" or bits(dtype) >= 32:
        return text
    return _Text(f"({_type(dtype)}){text.within(_UNARY)}", _UNARY)


def _literal(value: int | float, dtype: str) -> _Text:
    """Return a number as C."""
    if is_float(dtype):
        with np.errstate(over="ignore"):
            number = np.dtype(dtype).type(value)
        if not np.isfinite(number):
            return _Text("NAN" if math.isnan(number) else "INFINITY" if number > 0 else "-INFINITY", _UNARY)
        text = str(number)
        text = text if any(mark in text for mark in ".e") else f"{text}.0"
        return _Text(f"{text}f" if dtype == "float32" else text, _UNARY if value < 0 else _PRIMARY)
    if dtype == "bool":
        return _Text("true" if value else "false")
    if not is_unsigned(dtype) and value == limits(dtype)[0]:  # C has no negative literals
        return _Text(f"INT{bits(dtype)}_MIN")
    suffix = {"int64": "LL", "uint64": "ULL", "uint32": "u"}.get(dtype, "")
    return _Text(f"{value}{suffix}", _UNARY if value < 0 else _PRIMARY)


def _free(name: str, taken: Any) -> str:
    """Return a name of C that nothing else has."""
    while name in _KEYWORDS or name.removesuffix("f") in _FUNCTIONS or _TAKEN.fullmatch(name) or name in taken:
        name += "_"
        if name.startswith("_"):
            name = f"v{name}"
    return name


_FUNCTIONS = frozenset((*ARITY, *_ISL_HELPERS, "abs"))
"""Names that functions of C have, or have with an f at the end."""


def _includes(lines: Sequence[str]) -> Iterator[str]:
    """Yield the headers that code needs."""
    text = "\n".join(lines)
    needs: dict[str, Callable[[str], object]] = {
        "assert": re.compile(r"\bassert\(").search,
        "math": re.compile(
            rf"\b(({'|'.join((*_LIBRARY, *_IN_DOUBLE))})f?\(|INFINITY\b|NAN\b)",
        ).search,
        "stdbool": re.compile(r"\b(bool|true|false)\b").search,
        "stdint": re.compile(r"\bu?int\d+_t\b|\bINT\d+_MIN\b").search,
    }
    yield from (f"#include <{header}.h>" for header, search in needs.items() if search(text))
