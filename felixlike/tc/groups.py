"""Group nodes into functions.

Input: nodes, in order. Output: groups, in order; each reads only parameters and earlier groups. The rules resemble
operator fusion: elementwise nodes join the product they read; reductions along the same rows stay together with the
nodes computed from them; a node with a single reader joins it. Every other node becomes a function. isl's fusion
strategies (fusion.py) do not know what a kernel can hold: they are slower (docs/tensor-comprehensions.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from felixlike.tc.nodes import Node, extent, is_product
from felixlike.tc.program import Index, Read


@dataclass(slots=True)
class Group:
    """Nodes of one function, in order.

    Attributes:
        nodes: The nodes.
        by_rows: Whether its reductions run along rows and are not products.
    """

    nodes: list[Node] = field(default_factory=list)
    by_rows: bool = False

    @property
    def names(self) -> set[str]:
        """Names of its nodes."""
        return {node.name for node in self.nodes}

    def inputs(self) -> tuple[str, ...]:
        """Return the tensors it reads from outside, in order of first use."""
        names = self.names
        return tuple(dict.fromkeys(name for node in self.nodes for name, _ in node.reads() if name not in names))


def grouped(nodes: Sequence[Node], extents: dict[str, tuple[int, ...]]) -> list[Group]:
    """Return the groups of nodes. extents: shapes of parameters and nodes."""
    groups: list[Group] = []
    group_of: dict[str, int] = {}
    hidden = _hidden(nodes)
    waiting: dict[str, Node] = {}
    for node in nodes:
        if node.name in hidden:
            waiting[node.name] = node
            continue
        joining = [*(waiting[name] for name in _awaited(node, waiting)), node]
        place = _place(joining, groups, group_of, extents)
        if place is None:
            place = len(groups)
            groups.append(Group(by_rows=bool(node.reduced) and not is_product(node) and _along_rows(node, extents)))
        groups[place].nodes += joining
        group_of.update((joined.name, place) for joined in joining)
    return groups


def _hidden(nodes: Sequence[Node]) -> set[str]:
    """Return nodes without a reduction that a single other node reads, at its own indices. They join it."""
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for name in dict.fromkeys(name for name, _ in node.reads()):
            readers.setdefault(name, []).append(node)
    return {
        node.name
        for node in nodes
        if not node.reduced
        and not node.output
        and len(readers.get(node.name, ())) == 1
        and not readers[node.name][0].reduced
        and all(_same_place(read, readers[node.name][0]) for n, read in readers[node.name][0].reads() if n == node.name)
    }


def _awaited(node: Node, waiting: dict[str, Node]) -> list[str]:
    """Return the hidden nodes that a node needs, in order."""
    hidden: list[str] = []
    for name in dict.fromkeys(name for name, _ in node.reads()):
        if name in waiting:
            hidden += [*_awaited(waiting[name], waiting), name]
    return list(dict.fromkeys(hidden))


def _place(
    joining: Sequence[Node], groups: list[Group], group_of: dict[str, int], extents: dict[str, tuple[int, ...]]
) -> int | None:
    """Return the group that a node and its hidden inputs join; None if they start a new one."""
    read = [(name, access, node) for node in joining for name, access in node.reads() if name in group_of]
    if not read:
        return None
    place = max(group_of[name] for name, _, _ in read)
    group, node = groups[place], joining[-1]
    if group.by_rows:
        return place if all(_fits_rows(joined, group, extents) for joined in joining) else None
    if node.reduced or not any(is_product(other) for other in group.nodes):
        return None
    by_name = {other.name: other for other in group.nodes}
    reads_of_group = [(by_name[name], access, user) for name, access, user in read if group_of[name] == place]
    return (
        place if all(not other.output and _same_place(access, user) for other, access, user in reads_of_group) else None
    )


def _fits_rows(node: Node, group: Group, extents: dict[str, tuple[int, ...]]) -> bool:
    """Return whether a node iterates over the rows of a group and reads each row at its own indices."""
    first = next(other for other in group.nodes if other.reduced)
    rows = first.shape
    if node.reduced:
        return node.shape == rows and not is_product(node) and _along_rows(node, extents)
    if node.shape != rows and node.shape[: len(rows)] != rows and prod(node.shape) < prod(rows):
        return False
    names = group.names
    return (
        all(all(isinstance(s, Index) for s in access.subscripts) for name, access in node.reads() if name in names)
        and prod(node.shape) % max(1, prod(rows)) == 0
    )


def _along_rows(node: Node, extents: dict[str, tuple[int, ...]]) -> bool:
    """Return whether a reduction reads every element of some tensor once."""
    points = prod(extent(interval) for interval in node.intervals.values())
    return any(prod(extents[name]) == points for name, _ in node.reads())


def _same_place(access: Read, node: Node) -> bool:
    """Return whether a read is at the indices of the node itself."""
    names = [subscript.name if isinstance(subscript, Index) else "" for subscript in access.subscripts]
    return names == list(node.indices)
