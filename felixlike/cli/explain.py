"""`felixlike explain`: how a task's schedules look to the optimizer.

In: a model, a task of it, one of its sketches. Out: the symbolic program, formulas exact and smooth; a plot on demand.
Without a task: the list of tasks and sketches.
"""

from __future__ import annotations

import argparse
from typing import Any

from felixlike.cli.tune import add_model, read_model
from felixlike.errors import InvalidOption


def add_parser(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "explain",
        help="a task's symbolic program and formulas",
        description="Show how a task's schedules look to the optimizer; without TASK, list the model's tasks.",
    )
    add_model(parser)
    parser.add_argument("task", nargs="?", metavar="TASK", help="a task's name, or the beginning of its key")
    parser.add_argument("--space", default="best", help="whose sketches: best, own, default or all")
    parser.add_argument("--sketch", type=int, default=0, help="which of the task's sketches")
    parser.add_argument("--store", help="which block's formulas (default: the one with most work)")
    parser.add_argument("--column", action="append", default=[], help="a feature to show; may be repeated")
    parser.add_argument("--plot", metavar="FILE", help="draw exact against smooth along one variable")
    parser.add_argument("--variable", help="the variable to draw along")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the explanation; 0."""
    from felixlike.api import extract_tasks
    from felixlike.report.explanation import DEFAULT_COLUMNS, explain
    from felixlike.symbolic import sketches

    model, shapes = read_model(options)
    tasks = extract_tasks(model, shapes, options.target)
    if options.task is None:
        for task in tasks:
            print(f"{task.name}  {task.key[:8]}  {task.flops / 1e6:.3g} MFLOP, called {task.weight:g} times")
        return 0
    found = [t for t in tasks if t.name == options.task or t.key.startswith(options.task)]
    if not found:
        raise InvalidOption(
            f"there is no task {options.task!r}", where=options.model, remedy="run without TASK to see their names"
        )
    every = sketches(found[0], space=options.space)
    if not 0 <= options.sketch < len(every):
        raise InvalidOption(f"sketch is {options.sketch}", where=found[0].name, remedy=f"it has {len(every)} sketches")
    explanation = explain(every[options.sketch], store=options.store, columns=tuple(options.column) or DEFAULT_COLUMNS)
    print(explanation)
    if options.plot is not None:
        explanation.plot(options.plot, options.variable)
        print(f"\nDrawn in {options.plot}.")
    return 0
