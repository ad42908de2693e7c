"""Print values and statements as text, for users or in a canonical form.

Input: a program. Output: text in the language, with `let` values substituted. Programs that differ only in names,
whitespace, comments and lets have the same canonical text.
"""

from __future__ import annotations

from collections.abc import Callable

from felixlike.tc.program import Binary, Call, Choose, Convert, Index, Literal, Program, Read, Size, Step, Unary, Value
from felixlike.tc.scalars import spoken

Rename = Callable[[str, str], str]
"""Map (kind, name) to the name to print; kinds are "tensor", "size", "index" and "def"."""


def plainly(kind: str, name: str) -> str:
    """Return a name unchanged."""
    return name


def text_of(value: Value, rename: Rename = plainly) -> str:
    """Return a value as text, with every operator in parentheses."""
    match value:
        case Literal():
            return repr(value.value)
        case Index() | Size():
            return rename("index" if isinstance(value, Index) else "size", value.name)
        case Read():
            return f"{rename('tensor', value.tensor)}({', '.join(text_of(s, rename) for s in value.subscripts)})"
        case Convert():
            return f"{spoken(value.dtype)}({text_of(value.value, rename)})"
        case Unary():
            return f"{value.operator}{text_of(value.value, rename)}"
        case Binary() if value.operator in ("min", "max"):
            return f"{value.operator}({text_of(value.left, rename)}, {text_of(value.right, rename)})"
        case Binary():
            return f"({text_of(value.left, rename)} {value.operator} {text_of(value.right, rename)})"
        case Choose():
            parts = (text_of(part, rename) for part in (value.condition, value.left, value.right))
            return "({} ? {} : {})".format(*parts)
        case Call():
            return f"{value.function}({', '.join(text_of(argument, rename) for argument in value.arguments)})"


def statement_text(step: Step, rename: Rename = plainly) -> str:
    """Return a statement as text, with its `where` clauses."""
    left = f"{rename('tensor', step.target)}({', '.join(rename('index', index) for index in step.indices)})"
    operator = "=" if step.operator == "=" else f"{step.operator}={'!' if step.fresh else ''}"
    clauses = [f"exists {text_of(witness, rename)}" for witness in step.witnesses]
    value = text_of(step.value, rename)
    clauses += [
        f"{rename('index', name)} in {text_of(low, rename)}:{text_of(high, rename)}"
        for name, (low, high) in step.ranges.items()
    ]
    return f"{left} {operator} {value}" + (f" where {', '.join(clauses)}" if clauses else "")


def signature_text(program: Program, rename: Rename = plainly) -> str:
    """Return the signature: parameters and outputs."""
    parameters = []
    for parameter in program.parameters:
        dims = ", ".join(str(dim) if isinstance(dim, int) else rename("size", dim) for dim in parameter.dims)
        parameters.append(f"{spoken(parameter.dtype)}({dims}) {rename('tensor', parameter.name)}")
    outputs = [rename("tensor", output.name) for output in program.outputs]
    return f"def {rename('def', program.name)}({', '.join(parameters)}) -> ({', '.join(outputs)})"


def canonical(program: Program) -> str:
    """Return the canonical text, which is equal for programs that compute the same in the same way."""
    names: dict[tuple[str, str, int], str] = {}

    def rename_in(number: int) -> Rename:
        def rename(kind: str, name: str) -> str:
            key = (kind, name, number if kind == "index" else 0)
            return names.setdefault(key, f"{kind[0]}{len(names)}")

        return rename

    lines = [signature_text(program, rename_in(0))]
    lines += [statement_text(step, rename_in(number)) for number, step in enumerate(program.steps)]
    return "\n".join(lines)
