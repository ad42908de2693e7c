"""Print smooth programs as text that can be compared with the exact formulas.

Input: a `SmoothGraph` and one of its roots. Output: the root's expression, after one line for every part that is used
more than once. Everything is in log units: `ln i.0` is the relaxed variable itself.
"""

from __future__ import annotations

from collections import Counter
from string import ascii_lowercase
from typing import NamedTuple

from felixlike.smooth.graph import SmoothGraph, SmoothNode

_SUM, _PRODUCT, _ATOM = 1, 2, 3
_FUNCTIONS = {
    "Mix": "mix",
    "LogSumExp": "logsumexp",
    "LogDiffExp": "logdiffexp",
    "Softplus": "softplus",
    "LogOnePlus": "log1p",
    "Step": "step",
    "SmoothMaximum": "max",
    "SmoothMinimum": "min",
}


def smooth_text(graph: SmoothGraph, root: int, *, shifted: frozenset[str] = frozenset()) -> str:
    """Return the expression of `graph.roots[root]` as text; shared parts come first, one per line.

    Args:
        graph: The smooth program.
        root: The index of the formula.
        shifted: Variables whose column is log(1 + value).
    """
    order = _below(graph, graph.roots[root])
    uses = Counter(a for i in order for a in graph.nodes[i].args)
    texts: dict[int, _Text] = {}
    lines: list[str] = []
    for i in order:
        text = _text(graph.nodes[i], [texts[a] for a in graph.nodes[i].args], shifted)
        if uses[i] > 1 and graph.nodes[i].args:
            name = _name(len(lines))
            lines.append(f"{name} = {text.words}")
            text = _Text(name, _ATOM)
        texts[i] = text
    return "\n".join([*lines, texts[order[-1]].words])


def _below(graph: SmoothGraph, root: int) -> list[int]:
    """Return the nodes that a root needs, arguments first."""
    needed = {root}
    for i in range(root, -1, -1):
        if i in needed:
            needed.update(graph.nodes[i].args)
    return sorted(needed)


class _Text(NamedTuple):
    """Hold the text of a node.

    Attributes:
        words: The text.
        binding: How tightly its operator binds.
        terms: The terms of a sum, in alphabetical order, since which of two equal sums is extracted depends on the
            others.
    """

    words: str
    binding: int
    terms: tuple[str, ...] = ()


def _text(node: SmoothNode, args: list[_Text], shifted: frozenset[str]) -> _Text:
    """Return the text of a node."""
    match node.op:
        case "Constant":
            return _Text(f"{node.value:.6g}", _ATOM if node.value >= 0 else _SUM)
        case "Column":
            return _Text(f"ln(1 + {node.name})" if node.name in shifted else f"ln {node.name}", _ATOM)
        case "Plus":
            terms = tuple(sorted(term for arg in args for term in arg.terms or (arg.words,)))
            return _Text(" + ".join(terms), _SUM, terms)
        case "Minus":
            return _Text(f"{args[0].words} - {_wrapped(args[1], _PRODUCT)}", _SUM)
        case "Times":
            return _Text(f"{_wrapped(args[0], _PRODUCT)}*{_wrapped(args[1], _PRODUCT)}", _PRODUCT)
    return _Text(f"{_FUNCTIONS[node.op]}({', '.join(text.words for text in args)})", _ATOM)


def _wrapped(text: _Text, binding: int) -> str:
    """Return the text, in parentheses if it binds less tightly than `binding`."""
    return text.words if text.binding >= binding else f"({text.words})"


def _name(number: int) -> str:
    """Return the name of a shared part: a, b, …, z, a1, b1, …"""
    suffix, letter = divmod(number, len(ascii_lowercase))
    return ascii_lowercase[letter] + (str(suffix) if suffix else "")
