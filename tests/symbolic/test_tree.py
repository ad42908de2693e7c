"""`loop_tree` has the same loops as the nests of schedules."""

from __future__ import annotations

import pytest
from support import operators

from felixlike.frontend import make_task
from felixlike.hardware import resolve_target
from felixlike.symbolic import sketches
from felixlike.symbolic.program.nest import scheduled_nest
from felixlike.symbolic.program.tree import LoopNode, Nodes, Statement, loop_tree

Path = tuple[tuple[str, int], ...]


def paths(nodes: Nodes, above: Path = ()) -> list[Path]:
    """Return (kind, extent) of the loops around every statement."""
    result: list[Path] = []
    for node in nodes:
        result += [above] if isinstance(node, Statement) else paths(node.body, (*above, (node.kind, node.extent)))
    return result


def test_the_tree_of_an_unscheduled_function() -> None:
    task = make_task(operators.matmul(8, 16, 4), resolve_target("cpu"), name="matmul")
    (i,) = loop_tree(task.module["main"].body)
    assert isinstance(i, LoopNode)
    (j,) = i.body
    assert isinstance(j, LoopNode)
    assert (i.name, i.kind, i.extent, i.unroll) == ("i", "serial", 8, 0)
    assert j.body == (LoopNode("k", "serial", 16, 0, (Statement("C ⊕= f(A, B)"),)),)


@pytest.mark.parametrize("space", ["own", "default"])
@pytest.mark.parametrize("operator", ["matmul", "softmax", "conv2d_3x3"])
def test_schedules_have_the_loops_of_their_nests(operator: str, space: str) -> None:
    task = make_task(operators.OPERATORS[operator](), resolve_target("cpu"), name=operator)
    for sketch in sketches(task, space=space)[:1]:
        schedule = sketch.schedule(sketch.sample(1, seed=0)[0].tolist())
        tree_paths = paths(loop_tree(schedule.mod["main"].body))
        for _, nest in scheduled_nest(schedule):
            assert tuple((loop.kind, loop.extent) for loop in nest if loop.extent > 1) in [
                tuple(step for step in path if step[1] > 1) for path in tree_paths
            ]
