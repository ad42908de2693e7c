"""`felixlike resume`: go on with what `felixlike tune` was doing when it was stopped.

In: a store. Out: as from `tune`. The latest command that used the store is repeated; since limits are totals, it does
what is left of it. Larger limits go on from there.

The command imports a Python file and writes to a path, and whoever wrote the store chose both. So it is shown, and run
only after a yes, unless this user gave it on this machine.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from felixlike._util.wording import kind_of
from felixlike.cli import authorship, tune
from felixlike.errors import StoreError, UnconfirmedCommand

_AGAIN = "give the model again: felixlike tune MODEL --store STORE, or optimize(model, store=…)"


def add_parser(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "resume",
        help="go on with an interrupted run",
        description="Repeat the latest `felixlike tune` that used the store; what it holds is not done again. The "
        "command is shown first, and run after a yes, unless you gave it on this machine.",
    )
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("--rounds", type=int, help="a new limit in place of the run's own; see tune")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--output", metavar="PATH", help="where to save the tuned model, if elsewhere")
    parser.add_argument("--yes", action="store_true", help="do not ask before running a command of somebody else's")
    parser.add_argument("--quiet", action="store_true", help="no progress, no report")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Tune; the exit code of that. Raises UnconfirmedCommand."""
    from felixlike import records

    with records.open(options.store, read_only=True) as store:
        commands, path = store.commands(), store.path
    if not commands or path is None:
        raise StoreError(
            "no `felixlike tune` has used it",
            where=options.store,
            remedy=_AGAIN,
        )
    noted = _read(commands[-1], options.store)
    mark = noted.pop(tune.MARK, None)
    kept = {**_OF_OLD, **noted}
    given = {name: getattr(options, name) for name in ("rounds", "trials", "seconds", "output")}
    limits = {name: given.pop(name) for name in ("rounds", "trials", "seconds")}
    if any(limit is not None for limit in limits.values()):
        kept |= limits
    kept |= {name: value for name, value in given.items() if value is not None}
    command = shlex.join(["felixlike", "tune", *_arguments(kept), "--store", options.store])
    if not command.isprintable():  # what is asked must be what is seen
        raise StoreError("its latest command holds signs that cannot be shown", where=options.store, remedy=_AGAIN)
    if not (options.yes or authorship.is_ours(mark, path, noted)):
        _confirm(command, options.store)
    return tune.run(argparse.Namespace(**kept, store=options.store, quiet=options.quiet, in_background_of=None))


_OF_OLD = {"space": "best", "precision": "float32"}
"""What commands of older versions do not say."""


def _read(text: str, where: str) -> dict[str, Any]:
    """A command as a store holds it. Raises StoreError for what `felixlike tune` has not written."""
    try:
        noted = json.loads(text)
        for name, kinds in tune.KEPT.items():
            value = {**_OF_OLD, **noted}[name]
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise TypeError(f"{name} is {kind_of(value)}")
        if not all(isinstance(shape, str) for shape in noted["shape"]):
            raise TypeError("a shape is no text")
        return {name: value for name, value in noted.items() if name in (*tune.KEPT, tune.MARK)}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"its latest command cannot be read ({error})", where=where, remedy=_AGAIN) from error


def _arguments(kept: Mapping[str, Any]) -> list[str]:
    """What follows `felixlike tune` for a command."""
    options = [(name, kept[name]) for name in tune.KEPT if name not in ("model", "shape") and kept[name] is not None]
    shapes = [("shape", shape) for shape in kept["shape"]]
    return [kept["model"], *(f"--{name}={value}" for name, value in [*shapes, *options])]


def _confirm(command: str, where: str) -> None:
    """Ask whether to run a command. Raises UnconfirmedCommand unless the answer is yes."""
    why = "this command in the store was not given by you on this machine"
    answer = ""
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        print(
            f"{where}: {why}:\n  {command}\nIt imports the model's file. Run it? [y/N] ",
            end="",
            file=sys.stderr,
            flush=True,
        )
        answer = sys.stdin.readline().strip().lower()
    if answer not in ("y", "yes"):
        raise UnconfirmedCommand(
            f"{why}: {command}", where=where, remedy="run it yourself, or add --yes to resume, once you trust it"
        )
