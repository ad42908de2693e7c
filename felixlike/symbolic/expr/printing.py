"""Print expressions as text that people can read and golden files can compare."""

from felixlike.symbolic.expr.node import Node, Number, Op, is_gate, linear_parts

_SUM, _PRODUCT, _ATOM = 1, 2, 3


def to_text(expr: Node) -> str:
    """Return an expression as one line, with terms in a canonical order that does not depend on how it was built."""
    return _text(expr)[0]


def _text(expr: Node) -> tuple[str, int]:
    """Return the text, and how tightly its operator binds."""
    match expr.op:
        case Op.CONST:
            return _number(expr.value), _ATOM if expr.low >= 0 else _SUM
        case Op.VAR:
            return expr.name, _ATOM
        case Op.ADD:
            return (_negated(expr.args[0]), _ATOM) if is_gate(expr) else _sum(expr)
        case Op.MUL:
            return _product(expr), _PRODUCT
        case Op.FLOORDIV:
            return f"{_wrapped(expr.args[0], _ATOM)} // {_wrapped(expr.args[1], _ATOM)}", _PRODUCT
        case Op.AT_LEAST:
            return f"[{to_text(expr.args[0])} ≥ {expr.payload[0]}]", _ATOM
        case Op.MIN | Op.MAX:
            return f"{expr.op.name.lower()}({', '.join(sorted(map(to_text, expr.args)))})", _ATOM
        case Op.SELECT:
            return f"select({', '.join(map(to_text, expr.args))})", _ATOM


def _negated(gate: Node) -> str:
    """Return the text of 1 − a gate."""
    if gate.op is Op.AT_LEAST:
        threshold = gate.payload[0]
        assert isinstance(threshold, int)
        return f"[{to_text(gate.args[0])} ≤ {threshold - 1}]"
    return f"not({to_text(gate)})"


def _number(value: Number) -> str:
    """Return the text of a number."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def _wrapped(expr: Node, binding: int) -> str:
    """Return the text, in parentheses if it binds less tightly than `binding`."""
    text, text_binding = _text(expr)
    return text if text_binding >= binding else f"({text})"


def _sum(expr: Node) -> tuple[str, int]:
    """Return the text of a sum, and how tightly it binds."""
    constant, parts = linear_parts(expr)
    terms = sorted((_wrapped(t, _PRODUCT), c) for t, c in parts)
    terms.sort(key=lambda pair: pair[1] < 0)
    text = ""
    for term, factor in terms:
        size = "" if abs(factor) == 1 else f"{_number(abs(factor))}*"
        sign = ("-" if factor < 0 else "") if not text else (" - " if factor < 0 else " + ")
        text += f"{sign}{size}{term}"
    if constant:
        text += f" {'-' if constant < 0 else '+'} {_number(abs(constant))}"
    simple = len(terms) == 1 and not constant and terms[0][1] > 0
    return text, _PRODUCT if simple else _SUM


def _product(expr: Node) -> str:
    """Return the text of a product."""
    numerator: list[str] = []
    denominator: list[str] = []
    for base, exponent in zip(expr.args, expr.payload, strict=True):
        assert isinstance(exponent, int)
        size = "" if abs(exponent) == 1 else f"^{abs(exponent)}"
        (numerator if exponent > 0 else denominator).append(_wrapped(base, _ATOM) + size)
    top = "*".join(sorted(numerator)) or "1"
    text = top + "".join(f"/{divisor}" for divisor in sorted(denominator))
    return text if numerator else f"({text})"
