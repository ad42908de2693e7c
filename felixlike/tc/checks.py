"""Semantic analysis: resolve names, types, ranks and the order of writes and reads.

Input: the tree of one definition. Output: a `Program`, or a TCSemanticError at the wrong part. Ranges depend on sizes
and are inferred later, in `ranges.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from felixlike._util.wording import counted
from felixlike.errors import FelixlikeWarning, ImplicitSumWarning, SuspiciousNameWarning, TCSemanticError
from felixlike.tc import tree
from felixlike.tc.functions import ARITY
from felixlike.tc.lint import slips
from felixlike.tc.names import Names
from felixlike.tc.program import Index, Literal, Note, Output, Program, Read, Step, Tensor, Unary, Value, walk
from felixlike.tc.scalars import canonical, is_float, matched, spoken
from felixlike.tc.source import Source, Span
from felixlike.tc.type_checker import Typist


def check(source: Source, definition: tree.Definition) -> Program:
    """Return the checked program of a definition. Raise TCSemanticError."""
    floats: dict[str, str] = {}
    while True:
        try:
            return _Checker(source, definition, floats).program()
        except _WrittenAsFloat as found:
            floats[found.tensor] = found.dtype


_WEAKEST = "uint8"
"""The type of which operators with other types have the other type, or one as wide."""


@dataclass(frozen=True, slots=True)
class _Typed:
    """The names, ranges of `where`, value and `exists` values of a statement."""

    names: Names
    ranges: dict[str, tuple[Value, Value]]
    value: Value
    witnesses: tuple[Value, ...]


class _WrittenAsFloat(Exception):
    """A tensor that is first written with an integer literal is written with a float type later."""

    def __init__(self, tensor: str, dtype: str) -> None:
        super().__init__(tensor, dtype)
        self.tensor, self.dtype = tensor, dtype


class _Checker:
    """The analysis of one definition, with the names declared so far.

    Args:
        source: The text.
        definition: The definition.
        floats: Types of outputs that are first written with an integer literal and have a float type.
    """

    def __init__(self, source: Source, definition: tree.Definition, floats: Mapping[str, str]) -> None:
        self._source, self._definition, self._floats = source, definition, floats
        self._literals: set[str] = set()
        self._sizes: dict[str, Span] = {}
        self._parameters: dict[str, Tensor] = {}
        self._results: dict[str, tree.Result] = {}
        self._written: dict[str, Output] = {}
        self._notes: list[Note] = []

    def program(self) -> Program:
        """Check the whole definition. Raise TCSemanticError."""
        for parameter in self._definition.parameters:
            self._declare(parameter)
        for result in self._definition.results:
            self._declare_output(result)
        if not self._results:
            raise self._error(
                self._definition.name.span, "no output is returned", "name at least one output after the arrow"
            )
        steps = tuple(self._step(statement) for statement in self._definition.statements)
        for name, result in self._results.items():
            if name not in self._written:
                raise self._error(
                    result.name.span,
                    f"undefined variable `{name}`: this output is never defined",
                    f"write it in a statement, for example `{name}(…) = …`, or remove it from the outputs",
                )
        outputs = tuple(self._written[name] for name in self._results)
        return Program(
            self._source,
            self._definition.name.text,
            tuple(self._parameters.values()),
            tuple(self._sizes),
            outputs,
            steps,
            tuple(self._notes),
        )

    def _error(self, span: Span, reason: str, remedy: str = "") -> TCSemanticError:
        return self._source.error(TCSemanticError, span, reason, remedy)

    def _no_builtin(self, name: tree.Identifier) -> None:
        if name.text in ARITY:
            raise self._error(
                name.span, f"`{name.text}` is a built-in function and cannot be redefined", "choose another name"
            )

    def _taken(self, name: tree.Identifier, what: str) -> TCSemanticError:
        return self._error(name.span, f"`{name.text}` is already defined {what}", "choose another name")

    def _declare(self, parameter: tree.Parameter) -> None:
        """Declare a parameter and the sizes in its type."""
        dtype = canonical(parameter.type.scalar.text)
        if dtype == "float16":
            raise self._error(parameter.type.scalar.span, "float16 is not supported", "use float")
        dims: list[str | int] = []
        for dim in parameter.type.dims:
            if isinstance(dim, tree.Number):
                dims.append(self._constant(dim))
                continue
            self._no_builtin(dim)
            if dim.text in self._parameters:
                raise self._taken(dim, "as a tensor")
            self._sizes.setdefault(dim.text, dim.span)
            dims.append(dim.text)
        name = parameter.name
        self._no_builtin(name)
        if name.text in self._parameters:
            raise self._taken(name, "as a parameter")
        if name.text in self._sizes:
            raise self._taken(name, "as a size")
        self._parameters[name.text] = Tensor(name.text, dtype, tuple(dims), name.span)

    def _constant(self, dim: tree.Number) -> int:
        if not dim.text.isdigit():
            raise self._error(
                dim.span, f"expected an integral size of the dimension but found {dim.text}", "write an integer"
            )
        if len(dim.text) > 10 or not 0 < int(dim.text) < 2**31:
            raise self._error(dim.span, f"a dimension cannot have size {dim.text}", "sizes are from 1 to 2^31 - 1")
        return int(dim.text)

    def _declare_output(self, result: tree.Result) -> None:
        """Declare an output."""
        name = result.name
        self._no_builtin(name)
        if name.text in self._parameters:
            raise self._error(
                name.span,
                f"output `{name.text}` is also an input, and inputs are immutable",
                "give the output another name",
            )
        if name.text in self._results:
            raise self._taken(name, "as an output")
        if name.text in self._sizes:
            raise self._taken(name, "as a size")
        if result.type is not None and canonical(result.type.scalar.text) == "float16":
            raise self._error(result.type.scalar.span, "float16 is not supported", "use float")
        self._results[name.text] = result

    def _step(self, statement: tree.Statement) -> Step:
        """Check one statement."""
        self._check_target(statement)
        left = self._left(statement)
        typed, updates = self._typed(statement, left)
        names, ranges, value, witnesses = typed.names, typed.ranges, typed.value, typed.witnesses
        used = {v.name: v.span for v in walk(value, *witnesses) if isinstance(v, Index)}
        reduced = tuple(name for name in [*used, *ranges] if name not in left)
        reduced = tuple(dict.fromkeys(reduced))
        operator = statement.operator.text.rstrip("!").rstrip("=") or "="
        fresh = operator == "=" or statement.operator.text.endswith("!")
        summed = {v.name for v in walk(value) if isinstance(v, Index)}
        if operator == "=" and reduced and not updates and summed >= set(reduced):
            operator = "+"
            self._note(
                statement,
                f"index `{reduced[0]}` is only on the right of `=`, so the statement sums over it; write +=! to say so",
                ImplicitSumWarning,
            )
        if operator == "=" and reduced:
            where = used.get(reduced[0], names.reduced.get(reduced[0], statement.span))
            raise self._error(
                where,
                f"this statement includes the reduction variable `{reduced[0]}` but does not specify a reduction",
                f"`{reduced[0]}` is not on the left: add it there, or write +=!, *=!, min=! or max=! instead of =",
            )
        if value.dtype == "bool" and operator in ("+", "*"):
            raise self._error(
                statement.value.span,
                "arithmetic on bool is not defined",
                "cast it to a number, for example int32(…), or use max=! for any and min=! for all",
            )
        value = self._as_float(statement, value)
        first = statement.target.text not in self._written
        self._write(statement, value, given=not fresh or updates)
        for name, other in slips(value, left, reduced):
            self._note(
                statement,
                f"index `{name}` is reduced over and occurs in only one access; did you mean `{other}`?",
                SuspiciousNameWarning,
            )
        return Step(
            target=statement.target.text,
            indices=left,
            reduced=reduced,
            operator=operator,
            fresh=fresh,
            value=value,
            ranges=ranges,
            witnesses=witnesses,
            first=first,
            span=statement.span,
            index_spans={i.text: i.span for i in statement.indices} | used,
        )

    def _note(self, statement: tree.Statement, words: str, category: type[FelixlikeWarning]) -> None:
        """Record what is likely a mistake in a statement."""
        self._notes.append(Note(f"line {self._error(statement.span, '').line}: {words}", category))

    def _typed(self, statement: tree.Statement, left: tuple[str, ...]) -> tuple[_Typed, bool]:
        """Return the types of a statement, and whether it updates an output that the caller passes.

        It does if it is the first one that writes the output, and reads just the element that it writes, as in
        C(i, j) = b * C(i, j). The output then has the type of the value.
        """
        name, result = statement.target.text, self._results[statement.target.text]
        if name in self._written:
            return self._typed_with(statement, left, {}), False
        known = None if result.type is None else canonical(result.type.scalar.text)
        dtype = known or _WEAKEST
        typed = self._typed_with(statement, left, {name: (dtype, len(left))})
        reads = [v for v in walk(typed.value, *typed.witnesses) if isinstance(v, Read)]
        own = [read for read in reads if read.tensor == name]
        if not own:
            return typed, False
        for read in own:
            if [s.name if isinstance(s, Index) else None for s in read.subscripts] != [*left]:
                raise self._error(
                    read.span,
                    f"undefined variable `{name}` used here: it is an output that no earlier statement writes",
                    f"write it first, pass it as a parameter with another name, or read {name}({', '.join(left)}) only",
                )
        if known is None and typed.value.dtype != dtype:
            dtype = typed.value.dtype
            typed = self._typed_with(statement, left, {name: (dtype, len(left))})
        unknown = known is None and dtype == _WEAKEST and not any(r.dtype == dtype for r in reads if r not in own)
        if typed.value.dtype != dtype or unknown:
            raise self._error(
                statement.target.span,
                f"the type of `{name}` is unknown: its first statement reads it",
                f"declare it after the arrow, for example float({', '.join(left)}) {name}",
            )
        return typed, True

    def _typed_with(
        self, statement: tree.Statement, left: tuple[str, ...], more: Mapping[str, tuple[str, int]]
    ) -> _Typed:
        """Return the types of a statement. more: (dtype, rank) of tensors that no earlier statement writes."""
        names = self._names(statement, left, more)
        typist = Typist(self._source, names)
        ranges = self._clauses(statement, names, typist)
        value = typist.value(statement.value)
        witnesses = tuple(typist.value(c.value) for c in statement.clauses if isinstance(c, tree.Exists))
        return _Typed(names, ranges, value, witnesses)

    def _as_float(self, statement: tree.Statement, value: Value) -> Value:
        """Return an integer literal in the float type of its target; other values as they are."""
        name = statement.target.text
        before = self._written.get(name)
        dtype = self._floats.get(name, "") if before is None else before.dtype
        match value:
            case Literal(dtype="int32") if is_float(dtype):
                return Literal(float(value.value), dtype, value.span)
            case Unary(operator="-", value=Literal(dtype="int32") as literal) if is_float(dtype):
                return Unary("-", Literal(float(literal.value), dtype, literal.span), dtype, value.span)
            case Literal(dtype="int32") | Unary(operator="-", value=Literal(dtype="int32")) if before is None:
                self._literals.add(name)
        return value

    def _check_target(self, statement: tree.Statement) -> None:
        """Check that the target of a statement is an output."""
        name = statement.target
        self._no_builtin(name)
        if name.text in self._parameters:
            raise self._error(
                name.span, f"`{name.text}` is an input, and inputs are immutable", "write to an output of another name"
            )
        if name.text not in self._results:
            raise self._error(
                name.span,
                f"`{name.text}` is not listed as an input or output; temporaries are not implemented",
                "add it to the outputs after the arrow",
            )

    def _left(self, statement: tree.Statement) -> tuple[str, ...]:
        """Return the indices on the left of a statement."""
        indices: dict[str, Span] = {}
        for index in statement.indices:
            self._no_builtin(index)
            if index.text in indices:
                raise self._taken(index, "as an index of this statement")
            indices[index.text] = index.span
        return tuple(indices)

    def _names(self, statement: tree.Statement, left: tuple[str, ...], more: Mapping[str, tuple[str, int]]) -> Names:
        """Return the name table of a statement, before its clauses are read."""
        tensors = {t.name: (t.dtype, len(t.dims)) for t in self._parameters.values()}
        tensors |= {o.name: (o.dtype, o.rank) for o in self._written.values()}
        tensors |= more
        unwritten = frozenset(self._results) - set(self._written) - set(more)
        names = Names(self._sizes, tensors, unwritten, left)
        for clause in statement.clauses:
            if isinstance(clause, tree.Let):
                self._no_builtin(clause.name)
                if clause.name.text in names.later or clause.name.text in left:
                    raise self._taken(clause.name, "in this statement")
                names.later.add(clause.name.text)
        return names

    def _clauses(self, statement: tree.Statement, names: Names, typist: Typist) -> dict[str, tuple[Value, Value]]:
        """Return the ranges of `where`, and add `let` values to the names, in order."""
        for between in (clause for clause in statement.clauses if isinstance(clause, tree.Between)):
            self._check_ranged(between.index, names)
            if between.index.text not in names.left:
                names.reduced.setdefault(between.index.text, between.index.span)
        ranges: dict[str, tuple[Value, Value]] = {}
        for clause in statement.clauses:
            if isinstance(clause, tree.Between):
                if clause.index.text in ranges:
                    raise self._taken(clause.index, "with a range in this statement")
                ranges[clause.index.text] = (typist.bound(clause.low), typist.bound(clause.high))
            elif isinstance(clause, tree.Let):
                value = typist.value(clause.value)
                if clause.name.text in names.reduced:
                    raise self._error(
                        clause.name.span,
                        f"`{clause.name.text}` is already defined: it is used before this let",
                        "put the let before its uses",
                    )
                names.later.discard(clause.name.text)
                names.lets[clause.name.text] = value
        return ranges

    def _check_ranged(self, index: tree.Identifier, names: Names) -> None:
        """Check that a range of `where` is that of an index."""
        self._no_builtin(index)
        if index.text in names.left:
            return
        kind = ""
        if index.text in names.later:
            kind = "a let"
        elif index.text in names.sizes:
            kind = "a size"
        elif index.text in names.tensors or index.text in names.unwritten:
            kind = "a tensor"
        if kind:
            raise self._error(
                index.span,
                f"undefined variable `{index.text}` used here: it is {kind}, not an index",
                "`where` gives ranges to indices only",
            )

    def _write(self, statement: tree.Statement, value: Value, *, given: bool) -> None:
        """Record that a statement writes its target, after checking earlier writes and the declared type.

        given: Whether the caller passes the tensor, if this statement is the first.
        """
        name, rank, dtype = statement.target, len(statement.indices), value.dtype
        before = self._written.get(name.text)
        if before is None:
            self._check_declared(statement, dtype, rank)
            self._written[name.text] = Output(name.text, dtype, rank, given, self._results[name.text].name.span)
            return
        if before.rank != rank:
            raise self._error(
                name.span,
                f"`{name.text}` has {before.rank} dimensions where it is first written, but {rank} dimensions here",
                "use the same number of indices in every statement",
            )
        if before.dtype != dtype and name.text in self._literals and is_float(dtype):
            raise _WrittenAsFloat(name.text, dtype)
        if before.dtype != dtype:
            near = (
                "write literals with a decimal point, for example 0.0"
                if {before.dtype, dtype} == {"int32", "float32"}
                else ""
            )
            raise self._error(
                statement.value.span,
                f"type mismatch in an update of `{name.text}`: it is {spoken(before.dtype)} where it is first written,"
                f" but {spoken(dtype)} here",
                near or f"cast the value: {spoken(before.dtype)}(…)",
            )

    def _check_declared(self, statement: tree.Statement, dtype: str, rank: int) -> None:
        """Check the rank and dtype of a first write against the declared output type."""
        declared = self._results[statement.target.text].type
        if declared is None:
            return
        if len(declared.dims) != rank:
            raise self._error(
                statement.target.span,
                f"`{statement.target.text}` is a tensor defined with {rank} dimensions but declared as an output with"
                f" {len(declared.dims)} dimensions",
                f"declare it with {counted(rank, 'dimension')}",
            )
        narrow = canonical(declared.scalar.text)
        if matched(dtype, narrow) != narrow:
            raise self._error(
                statement.value.span,
                f"attempting to assign type {spoken(dtype)} to narrower type {spoken(narrow)} without an explicit cast",
                f"cast it: {spoken(narrow)}({self._source.shown(statement.value.span)})",
            )
