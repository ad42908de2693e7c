"""Form the functions of an instance as the fusion options say.

Input: an instance, options. Output: the instance with other groups. With a strategy of isl, or statements that are
fused by request, the statements below one outermost loop of isl's schedule share a function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from felixlike.tc.groups import Group
from felixlike.tc.instance import Instance, apart
from felixlike.tc.options import Options
from felixlike.tc.polyhedral import fused_statements


def with_fusion(made: Instance, options: Options) -> Instance:
    """Return the instance with the groups that the fusion options give.

    Raises:
        MissingDependency: islpy is not installed and the options need it.
        InvalidOption: The options name a statement that the program does not have.
        TCFusionError: The statements that are to be fused cannot be.
        TCError: isl exceeds its limit of operations.
    """
    if options.fusion in (None, "Min") and not options.fused:
        return apart(made) if options.fusion else made
    fusion = options.fusion or "Max"
    sets = fused_statements(made.program, made.sizes, made.ranges, made.bounds, fusion, options.fused)
    nodes = [node for group in made.groups for node in group.nodes if node not in made.checks]
    groups = [Group(sorted((n for n in nodes if n.step in steps), key=lambda n: n.step)) for steps in sets]
    try:
        ordered = _ordered(groups)
    except CycleError:  # two sets, each joined by an initialization, may need each other
        return apart(made)
    return replace(made, groups=(*ordered, *(Group([check]) for check in made.checks)))


def _ordered(groups: Sequence[Group]) -> list[Group]:
    """Return groups so that each follows those that it reads. Raise CycleError if there is no such order."""
    place_of = {name: place for place, group in enumerate(groups) for name in group.names}
    order = {
        place: {place_of[name] for name in group.inputs() if name in place_of} for place, group in enumerate(groups)
    }
    return [groups[place] for place in TopologicalSorter(order).static_order()]
