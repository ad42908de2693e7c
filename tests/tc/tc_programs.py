"""Generate random programs of the language for hypothesis.

Output: program texts with the shapes of their inputs. Most programs are valid. In others subscripts leave tensors,
ranges are empty or unsolved, or types do not match. Tests compare valid programs with the interpreter and expect
errors for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

_FLOATS = ("float", "double")
_INTS = ("int32", "int64", "uint8", "int8", "int16")
_SIZES = {"N": 3, "M": 4, "K": 2}


@dataclass
class Known:
    """Names that a statement can use: `tensors` maps names to (type, sizes), `indices` lists indices."""

    tensors: dict[str, tuple[str, tuple[str, ...]]]
    indices: list[str]
    lets: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Made:
    """A program. `inputs` has the (type, shape) of each parameter."""

    source: str
    inputs: tuple[tuple[str, tuple[int, ...]], ...]


@st.composite
def programs(draw: st.DrawFn) -> Made:
    """Draw a definition of one to three statements."""
    tensors: dict[str, tuple[str, tuple[str, ...]]] = {}
    tensors["A"] = draw(st.sampled_from(("float", "float", "double", "int32"))), ("N", "M", "K")
    for name in ("B", "C", "D")[: draw(st.integers(0, 3))]:
        dtype = draw(st.sampled_from((*_FLOATS, "float", "float", *_INTS, "bool")))
        rank = draw(st.integers(0, 3))
        tensors[name] = dtype, tuple(draw(st.sampled_from(("N", "M", "K"))) for _ in range(rank))
    parameters = [f"{t}({','.join(dims)}) {name}" if dims else f"{t} {name}" for name, (t, dims) in tensors.items()]
    inputs = tuple((dtype, tuple(_SIZES[dim] for dim in dims)) for dtype, dims in tensors.values())
    written: list[str] = []
    statements: list[str] = []
    for number in range(draw(st.integers(1, 3))):
        reuse_name: bool = draw(st.booleans())
        name = draw(st.sampled_from(written)) if written and reuse_name else f"O{number}"
        statements.append(draw(_statements(name, tensors, rewrites=name in written)))
        if name not in written:
            written.append(name)
            tensors = {**tensors, name: ("float", _left(statements[-1]))}
    body = "\n  ".join(statements)
    return Made(f"def f({', '.join(parameters)}) -> ({', '.join(written)}) {{\n  {body}\n}}", inputs)


def _left(statement: str) -> tuple[str, ...]:
    """Return one size for each index on the left. Which size does not matter here."""
    left = statement.partition("=")[0]
    return ("N",) * (left.count(",") + 1) if "(" in left else ()


@st.composite
def _statements(draw: st.DrawFn, name: str, tensors: dict[str, tuple[str, tuple[str, ...]]], *, rewrites: bool) -> str:
    rank = len(tensors[name][1]) if rewrites else draw(st.integers(0, 2))
    left = ["i", "j", "k"][:rank]
    reduced = ["r", "s"][: draw(st.integers(0, 2))]
    operator = draw(st.sampled_from(("+=!", "max=!", "min=!", "*=!", "+=", "max="))) if reduced else "="
    if rewrites and not reduced:
        operator = draw(st.sampled_from(("=", "+=", "*=", "min=")))
    elif not rewrites and not operator.endswith("!"):
        operator = operator + "!" if operator != "=" else "="
    known = Known(tensors, [*left, *reduced])
    clauses = []
    if draw(st.integers(0, 3)) == 0:
        clauses.append(f"u = {draw(_numbers(known, 2))}")
        known.lets["u"] = ""
    value = draw(_numbers(known, draw(st.integers(1, 4))))
    for index in known.indices:
        if draw(st.integers(0, 2)) > 0:
            low = draw(st.sampled_from(("0", "0", "0", "0", "0", "0", "1", "-1")))
            high = draw(st.sampled_from(("2", "2", "2", "K", "K", "3", "N", "M", "N - 1", "min(N, K)", "2 * K")))
            clauses.append(f"{index} in {low}:{high}")
    if draw(st.integers(0, 9)) == 0:
        clauses.append(f"exists {draw(_accesses(known))}")
    text = f"{name}({', '.join(left)})" if left else name
    return f"{text} {operator} {value}" + (f" where {', '.join(clauses)}" if clauses else "")


@st.composite
def _numbers(draw: st.DrawFn, known: Known, depth: int) -> str:
    """Draw a numeric expression."""
    if depth <= 0:
        return draw(_leaves(known))
    form = draw(st.integers(0, 11))
    part = _numbers(known, depth - 1)
    if form <= 2:
        return f"({draw(part)} {draw(st.sampled_from('+-*'))} {draw(part)})"
    if form == 3:
        return f"{draw(part)} {draw(st.sampled_from('/%'))} {draw(st.sampled_from(('2', '3', '2.0', 'N', '-2')))}"
    if form == 4:
        return f"{draw(st.sampled_from(('min', 'max')))}({draw(part)}, {draw(part)})"
    if form == 5:
        return f"(({draw(_tests(known, 1))}) ? {draw(part)} : {draw(part)})"
    if form == 6:
        return f"{draw(st.sampled_from(('float', 'double', 'int32', 'int64')))}({draw(part)})"
    if form == 7:
        return f"{draw(st.sampled_from(('fabs', 'floor', 'tanh', 'cos')))}({draw(part)})"
    if form == 8:
        return f"fmax({draw(part)}, {draw(part)})"
    if form == 9:
        return f"(-{draw(part)})"
    return draw(_leaves(known))


@st.composite
def _tests(draw: st.DrawFn, known: Known, depth: int) -> str:
    """Draw a boolean expression."""
    form = draw(st.integers(0, 4))
    if depth > 0 and form == 0:
        operator = draw(st.sampled_from(("&&", "||")))
        return f"({draw(_tests(known, depth - 1))}) {operator} ({draw(_tests(known, depth - 1))})"
    if depth > 0 and form == 1:
        return f"!({draw(_tests(known, depth - 1))})"
    sign = draw(st.sampled_from(("<", "<=", ">", ">=", "==", "!=")))
    if form <= 2 and known.indices:
        return f"{draw(_subscripts(known, 1))} {sign} {draw(st.sampled_from(('0', '1', 'N', 'M - 1')))}"
    return f"{draw(_leaves(known))} {sign} {draw(_leaves(known))}"


@st.composite
def _leaves(draw: st.DrawFn, known: Known) -> str:
    form = draw(st.integers(0, 9))
    if form <= 5:
        return draw(_accesses(known))
    if form == 6 and known.lets:
        return draw(st.sampled_from(sorted(known.lets)))
    if form == 7 and known.indices:
        return draw(st.sampled_from(known.indices))
    return draw(st.sampled_from(("1", "2", "0.5", "1.5", "N", "M", "3.", "1e-1")))


@st.composite
def _accesses(draw: st.DrawFn, known: Known) -> str:
    name = draw(st.sampled_from(sorted(known.tensors)))
    dtype, dims = known.tensors[name]
    text = f"{name}({', '.join(draw(_subscripts(known, 2)) for _ in dims)})" if dims else name
    return f"int32({text})" if dtype == "bool" else text


@st.composite
def _subscripts(draw: st.DrawFn, known: Known, depth: int) -> str:
    """Draw an integer expression, most often an index."""
    form = draw(st.integers(0, 19))
    if not known.indices:
        return draw(st.sampled_from(("0", "1", "N - 1")))
    index = draw(st.sampled_from(known.indices))
    if depth <= 0 or form in range(8) or form > 15:
        return index
    part = _subscripts(known, depth - 1)
    if form <= 9:
        return f"{index} {draw(st.sampled_from('+-'))} {draw(st.sampled_from(('1', *known.indices)))}"
    if form == 10:
        return f"2 * {index}"
    if form == 11:
        return f"{draw(part)} / 2"
    if form == 12:
        return f"max(min({draw(part)}, N - 1), 0)"
    if form == 13:
        return f"N - 1 - {index}"
    if form == 14:
        return f"({draw(part)}) % {draw(st.sampled_from(('2', 'N')))}"
    integers = [name for name, (dtype, dims) in known.tensors.items() if dtype in _INTS and len(dims) <= 1]
    if integers:
        name = draw(st.sampled_from(integers))
        return f"{name}({index})" if known.tensors[name][1] else name
    return index
