"""Draw loop nests as nested boxes with each loop's name, extent and kind.

Inputs: loops and statements. Output: markup. Kinds are also written as text, not only shown by colour.
"""

from __future__ import annotations

from felixlike.report.page.markup import Markup, element
from felixlike.symbolic.program.tree import LoopNode, Nodes, Statement

_CLASSES = {"parallel": "parallel", "vector": "vector", "unrolled": "unrolled", "serial": "serial"}
"""CSS classes of the kinds of loops. All other kinds are GPU threads."""

_WHOLE = 120
"""Upper limit on boxes per picture. Chosen by hand; schedules have about 30."""


def loops_picture(nodes: Nodes) -> Markup:
    """Draw the loops of a function. Boxes beyond the limit are replaced by "… and more"."""
    left = [_WHOLE]
    drawn = [_box(node, left) for node in nodes]
    more = element("p", "… and more", class_="quiet") if left[0] <= 0 else None
    return element("div", *drawn, more, class_="nest")


def _box(node: LoopNode | Statement, left: list[int]) -> Markup | None:
    """Draw a loop or a statement; None beyond the limit. left: number of boxes left, as a list of one."""
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
