"""Implement `felixlike explain`: show how a task's schedules look to the optimizer.

Inputs: a model, one of its tasks, one of the task's sketches. Outputs: the symbolic program, exact and smooth formulas,
and a plot on request. Without a task: the list of tasks and sketches.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from felixlike._util.wording import choose_from, counted
from felixlike.cli.tune import add_model, read_model
from felixlike.errors import InvalidOption

if TYPE_CHECKING:
    from felixlike.frontend import Task


_OF_A_TASK = ("sketch", "store", "column", "plot", "variable")
"""Options about a task, which the list of tasks does not take."""


def add_parser(commands: Any) -> None:
    """Add the parser of `felixlike explain`."""
    parser = commands.add_parser(
        "explain",
        help="show a task's symbolic program and formulas",
        description="Show the symbolic program and the formulas of a task; without TASK, list the model's tasks.",
    )
    add_model(parser)
    parser.add_argument("task", nargs="?", metavar="TASK", help="name of a task, or the start of its key")
    parser.add_argument(
        "--pipeline", action="store_true", help="only list the rewrites and passes for this kind of target"
    )
    parser.add_argument("--space", default="best", help="design space: best, own, default or all")
    parser.add_argument("--sketch", type=int, default=0, help="index of the task's sketch")
    parser.add_argument("--store", help="block whose formulas are shown (default: the one that runs most often)")
    parser.add_argument("--column", action="append", default=[], help="a feature to show; may be repeated")
    parser.add_argument("--plot", metavar="FILE", help="plot exact and smooth formulas along one variable")
    parser.add_argument("--variable", help="variable of the plot's x axis")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the explanation. Return 0."""
    if options.task is None and (given := [name for name in _OF_A_TASK if getattr(options, name)]):
        raise InvalidOption("the option requires a task", where=f"--{given[0]}", remedy="give a TASK, or leave it out")
    if options.variable is not None and options.plot is None:
        raise InvalidOption("a variable requires a plot", where="--variable", remedy="add --plot FILE")
    model, shapes = read_model(options)
    from felixlike.api import extract_tasks
    from felixlike.hardware import resolve_target
    from felixlike.report import tasks_text
    from felixlike.report.explanation import DEFAULT_COLUMNS, explain
    from felixlike.report.layout import stream_width
    from felixlike.spaces.pipelines import pipeline_of
    from felixlike.symbolic import sketches

    if options.pipeline:
        print(pipeline_of(resolve_target(options.target)))
        return 0
    tasks = extract_tasks(model, shapes, options.target)
    if options.task is None:
        print(tasks_text(tasks, width=stream_width()))
        return 0
    task = _task(tasks, options)
    all_sketches = sketches(task, space=options.space)
    if not 0 <= options.sketch < len(all_sketches):
        count = counted(len(all_sketches), "sketch", "sketches")
        raise InvalidOption(
            f"sketch {options.sketch} is out of range",
            where=task.name,
            remedy=f"the task has {count}, numbered from 0",
        )
    explanation = explain(
        all_sketches[options.sketch], store=options.store, columns=tuple(options.column) or DEFAULT_COLUMNS
    )
    print(explanation)
    if options.plot is not None:
        explanation.plot(options.plot, options.variable)
        print(f"\nDrawn in {options.plot}.")
    return 0


def _task(tasks: Sequence[Task], options: argparse.Namespace) -> Task:
    """Return the task with this name, or whose key starts with it. Raise InvalidOption unless there is exactly one."""
    matches = [t for t in tasks if t.name == options.task]
    matches = matches or [t for t in tasks if options.task and t.key.startswith(options.task)]
    if not matches:
        raise InvalidOption(
            f"unknown task {options.task!r}", where=options.model, remedy=choose_from(options.task, _names(tasks))
        )
    if len(matches) > 1:
        raise InvalidOption(
            f"{len(matches)} keys begin with {options.task!r}",
            where=options.model,
            remedy=f"give more of the key, or a name: {', '.join(_names(matches))}",
        )
    return matches[0]


def _names(tasks: Sequence[Task]) -> list[str]:
    """Return the names of tasks."""
    return [task.name for task in tasks]
