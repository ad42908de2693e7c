"""Parse text into trees.

Input: the text of one or more definitions. Output: `Definition`s, or a TCSyntaxError at the first unexpected token. The
grammar is in grammar.lark. lark reads it when this module is imported (40 ms), on the first `define`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lark

from felixlike._util.wording import nearest
from felixlike.errors import TCSyntaxError
from felixlike.tc import tree
from felixlike.tc.source import Source, Span

DEEPEST = 150
"""Greatest nesting depth of parse trees; more would overflow the stack of recursive functions."""

_PARSER = lark.Lark(
    (Path(__file__).parent / "grammar.lark").read_text(), parser="lalr", lexer="basic", propagate_positions=True
)

_TYPES = ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float", "double")
"""Scalar types of the language."""

_FOREIGN_TYPES = {
    "int": "int32",
    "integer": "int32",
    "short": "int16",
    "long": "int64",
    "char": "int8",
    "byte": "uint8",
    "unsigned": "uint32",
    "half": "float",
    "real": "float",
    "boolean": "bool",
}
"""Type names of other languages and the nearest type here; used in error messages."""

_WORDS = {
    "ID": "an identifier",
    "NUMBER": "a number",
    "SCALAR": "a scalar type",
    "ASSIGN": "an assignment operator",
    "DEF": "`def`",
    "WHERE": "`where`",
    "IN": "`in`",
    "EXISTS": "`exists`",
    "ARROW": "`->`",
    "EQUALS": "`=`",
    "QUESTION": "`?`",
    "COLON": "`:`",
    "COMMA": "`,`",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "LBRACE": "`{`",
    "RBRACE": "`}`",
    "$END": "the end of the text",
}
"""Names of tokens in messages. Operators are missing here and called "an operator"."""

_EXPRESSION = {"ID", "NUMBER", "SCALAR", "MIN", "MAX", "LPAR", "MINUS", "BANG"}
"""Tokens that can start an expression."""


def parse(source: Source) -> tuple[tree.Definition, ...]:
    """Return the definitions of a text, in order. Raise TCSyntaxError."""
    try:
        parsed = _PARSER.parse(source.text)
    except lark.exceptions.UnexpectedToken as error:
        raise _unexpected(source, error) from None
    except lark.exceptions.UnexpectedCharacters as error:
        raise _unknown(source, error.pos_in_stream) from None
    _check_depth(source, parsed)
    definitions = tuple(_definition(node) for node in parsed.children)
    names: set[str] = set()
    for definition in definitions:
        if definition.name.text in names:
            raise source.error(
                TCSyntaxError,
                definition.name.span,
                f"`{definition.name.text}` is already defined",
                "give each definition a different name",
            )
        names.add(definition.name.text)
    return definitions


def _check_depth(source: Source, parsed: Any) -> None:
    """Raise TCSyntaxError if expressions are nested too deep."""
    stack = [(parsed, 0)]
    while stack:
        node, depth = stack.pop()
        if depth > DEEPEST:
            raise source.error(
                TCSyntaxError,
                _span(node),
                f"expressions are nested more than {DEEPEST} deep",
                "split the expression into several statements or lets",
            )
        stack.extend((child, depth + 1) for child in node.children if isinstance(child, lark.Tree))


def _unexpected(source: Source, error: Any) -> TCSyntaxError:
    """Return an error that says which tokens were expected."""
    token, expected = error.token, set(error.accepts or error.expected)
    end = len(source.text.rstrip())
    span = _span(token) if token.type != "$END" else Span(end, end)
    actual = "the end of the text (eof)" if token.type == "$END" else f"`{source.shown(span)}`"
    reserved = token.type in ("DEF", "WHERE", "IN", "EXISTS", "SCALAR", "MIN", "MAX") and "ID" in expected
    names = _expected(expected)
    remedy = ""
    if reserved:
        remedy = f"{actual} is a reserved word (keyword) and cannot be an identifier; choose another name"
    elif token.type == "ID" and "SCALAR" in expected:
        near = _FOREIGN_TYPES.get(str(token)) or nearest(str(token), _TYPES)
        remedy = f"types are {', '.join(_TYPES)}" + (f" (did you mean `{near}`?)" if near else "")
    elif token.type == "COMMA" and expected <= {"RPAR", *_OPERATORS} and _after_extreme(source, span.start):
        remedy = "min and max take exactly 2 arguments"
    elif foreign := _foreign(source.text[: span.start], token):
        remedy = foreign
    elif "ASSIGN" in expected:
        remedy = "assignment operators are = += *= min= max= +=! *=! min=! max=!, written without spaces"
    elif expected == {"COMMA", "RPAR"} and token.type == "LPAR":
        remedy = "indices on the left of an assignment must be identifiers"
        remedy += "; a scatter is a sum with a test: O(j) +=! (I(i) == j) ? A(i) : 0.0 where j in 0:…"
    elif expected <= {"ID", "COMMA", "RPAR"} and token.type in ("NUMBER", *_OPERATORS):
        remedy = "indices on the left of an assignment must be identifiers: O(i) = A(i - 1), not O(i + 1) = A(i)"
        if source.text.count("{", 0, span.start) == source.text.count("}", 0, span.start):
            remedy = "sizes must be names or numbers"
    return source.error(TCSyntaxError, span, f"expected {names} but found {actual}", remedy)


def _foreign(before: str, token: Any) -> str:
    """Return how to write what other languages write with a token after the text `before`; "" if it is unknown."""
    if token.type == "STAR" and before.endswith("*"):
        return "write powers as pow(x, y)"
    if str(token) in _WORDED_OPERATORS:
        return f"write `{_WORDED_OPERATORS[str(token)]}` for `{token}`"
    suffix = _SUFFIX.search(before)
    return f"numbers have no suffix: write {suffix[1]}, not {suffix[0].strip()}" if suffix else ""


_WORDED_OPERATORS = {"and": "&&", "or": "||", "not": "!"}
"""Operators of other languages that are words here."""

_SUFFIX = re.compile(r"(?<![\w.])(?!0[xX])(\d[\d.]*|\.\d+)[A-Za-z_]\w*\s*$")
"""A number with letters at its end, such as 1.0f, which is read as two tokens."""

_OPERATORS = {
    *("PLUS", "MINUS", "STAR", "SLASH", "PERCENT", "COMPARISON", "LESS", "GREATER", "AND", "OR", "QUESTION"),
}
"""Tokens called "an operator" in messages."""


def _expected(expected: set[str]) -> str:
    """Return expected tokens in words, such as "an identifier or `)`"."""
    remaining = set(expected)
    words = []
    if remaining >= _EXPRESSION:
        words.append("an expression (an identifier, a number, `(` …)")
        remaining -= _EXPRESSION
    if remaining & _OPERATORS:
        if remaining & _OPERATORS == {"QUESTION"}:
            words.append("`?`")
        else:
            words.append("an operator")
        remaining -= _OPERATORS
    if "ASSIGN" in remaining:
        remaining -= {"EQUALS"}
    words += [words_ for name, words_ in _WORDS.items() if name in remaining]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _after_extreme(source: Source, place: int) -> bool:
    """Return whether the innermost open parenthesis at a position is that of min or max."""
    depth = 0
    for at in range(place - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(source.text[at], 0)
        if depth < 0:
            return source.text[:at].rstrip().endswith(("min", "max"))
    return False


def _unknown(source: Source, place: int | None) -> TCSyntaxError:
    """Return an error for a character that starts no token."""
    place = place or 0
    sign = source.text[place]
    remedy = "use only letters, digits and + - * / % ( ) { } ? : , = < > ! && ||"
    if sign in "⟶⇒":
        remedy = "write the arrow as `->`"
    elif sign in "[]":
        remedy = "write subscripts in parentheses: `A(i, j)`"
    elif sign == ";":
        remedy = "remove it: statements have no separator"
    elif sign in "^.":
        remedy = "write powers as pow(x, y)"
    return source.error(TCSyntaxError, Span(place, place + 1), f"invalid token `{sign}`", remedy)


def _span(node: Any) -> Span:
    """Return the source span of a token or parse tree."""
    if isinstance(node, lark.Token):
        return Span(int(node.start_pos or 0), int(node.end_pos or 0))
    return Span(int(node.meta.start_pos), int(node.meta.end_pos))


def _identifier(token: Any) -> tree.Identifier:
    return tree.Identifier(str(token), _span(token))


def _tokens(node: Any, kind: str) -> list[Any]:
    return [child for child in node.children if isinstance(child, lark.Token) and child.type == kind]


def _trees(node: Any, kind: str) -> list[Any]:
    """Return the children of all child trees of one kind, without separators."""
    matching = [child for child in node.children if isinstance(child, lark.Tree) and child.data == kind]
    return [c for tree_ in matching for c in tree_.children if not _separates(c)]


def _separates(child: Any) -> bool:
    """Return whether a child is a separator, or missing."""
    return child is None or (isinstance(child, lark.Token) and child.type in ("COMMA", "LPAR", "RPAR", "WHERE"))


def _definition(node: Any) -> tree.Definition:
    (name,) = _tokens(node, "ID")
    statements = [c for c in node.children if isinstance(c, lark.Tree) and c.data == "statement"]
    return tree.Definition(
        name=_identifier(name),
        parameters=tuple(
            tree.Parameter(_identifier(p.children[-1]), _type(p.children[0])) for p in _trees(node, "parameters")
        ),
        results=tuple(
            tree.Result(_identifier(_tokens(r, "ID")[0]), None if r.children[0] is None else _type(r.children[0]))
            for r in _trees(node, "results")
        ),
        statements=tuple(map(_statement, statements)),
        span=_span(node),
    )


def _type(node: Any) -> tree.Type:
    dims = tuple(
        tree.Number(str(dim), _span(dim)) if dim.type == "NUMBER" else _identifier(dim) for dim in _trees(node, "dims")
    )
    return tree.Type(_identifier(_tokens(node, "SCALAR")[0]), dims, _span(node))


def _statement(node: Any) -> tree.Statement:
    target = _tokens(node, "ID")[0]
    at = next(i for i, c in enumerate(node.children) if isinstance(c, lark.Token) and c.type in ("EQUALS", "ASSIGN"))
    return tree.Statement(
        target=_identifier(target),
        indices=tuple(_identifier(index) for index in _trees(node, "indices")),
        operator=_identifier(node.children[at]),
        value=_expression(node.children[at + 1]),
        clauses=tuple(_clause(clause) for clause in _trees(node, "where")),
        span=_span(node),
    )


def _clause(node: Any) -> tree.Clause:
    parts = node.children
    if node.data == "between":
        return tree.Between(_identifier(parts[0]), _expression(parts[2]), _expression(parts[4]), _span(node))
    if node.data == "let":
        return tree.Let(_identifier(parts[0]), _expression(parts[2]), _span(node))
    return tree.Exists(_expression(parts[1]), _span(node))


def _expression(node: Any) -> tree.Expression:
    return _FORMS[node.data](node.children, _span(node))


def _access(parts: Any, span: Span) -> tree.Expression:
    argument_list = next((p for p in parts if isinstance(p, lark.Tree) and p.data == "arguments"), None)
    arguments = (
        ()
        if argument_list is None
        else tuple(_expression(c) for c in argument_list.children if isinstance(c, lark.Tree))
    )
    return tree.Access(_identifier(parts[0]), arguments, span)


_FORMS: dict[str, Callable[[Any, Span], tree.Expression]] = {
    "number": lambda parts, span: tree.Number(str(parts[0]), span),
    "name": lambda parts, span: tree.Name(str(parts[0]), span),
    "parentheses": lambda parts, _: _expression(parts[1]),
    "cast": lambda parts, span: tree.Cast(_identifier(parts[0]), _expression(parts[2]), span),
    "unary": lambda parts, span: tree.Unary(str(parts[0]), _expression(parts[1]), span),
    "binary": lambda parts, span: tree.Binary(str(parts[1]), _expression(parts[0]), _expression(parts[2]), span),
    "extreme": lambda parts, span: tree.Binary(str(parts[0]), _expression(parts[2]), _expression(parts[4]), span),
    "ternary": lambda parts, span: tree.Ternary(
        _expression(parts[0]), _expression(parts[2]), _expression(parts[4]), span
    ),
    "access": _access,
}
"""Makes the expression of each grammar rule."""
