"""Loop nests as nested boxes, each with its loop's name, extent and kind.

In: loops and statements. Out: markup; kinds are said in words, too, not by colour alone.
"""

from __future__ import annotations

from felixlike.report.page.markup import Markup, element
from felixlike.symbolic.program.tree import LoopNode, Nodes, Statement

_CLASSES = {"parallel": "parallel", "vector": "vector", "unrolled": "unrolled", "serial": "serial"}
"""Classes of the kinds of loops; all others are threads of a GPU."""

_WHOLE = 120
"""Boxes of a picture at most; schedules have some thirty."""


def loops_picture(nodes: Nodes) -> Markup:
    """The boxes of a function; those beyond many are left out, with a word."""
    left = [_WHOLE]
    drawn = [_box(node, left) for node in nodes]
    more = element("p", "… and more", class_="quiet") if left[0] <= 0 else None
    return element("div", *drawn, more, class_="nest")


def _box(node: LoopNode | Statement, left: list[int]) -> Markup | None:
    left[0] -= 1
    if left[0] < 0:
        return None
    if isinstance(node, Statement):
        return element("code", node.text, class_="statement")
    extent = f"× {node.extent}" if node.extent else "× ?"
    note = element("span", f"unroll ≤ {node.unroll}", class_="chip") if node.unroll else None
    kind = None if node.kind == "serial" else element("span", node.kind, class_="chip")
    head = element("div", element("b", node.name), " ", element("span", extent, class_="extent"), " ", kind, note)
    body = [_box(child, left) for child in node.body]
    return element("div", head, *body, class_=f"loop {_CLASSES.get(node.kind, 'thread')}")
