"""Implement `felixlike resume`: continue a run of `felixlike tune` that was stopped.

Input: a store. Output: as of `tune`. The command repeats the latest `felixlike tune` that used the store. Limits are
totals, so it does the rest. Larger limits continue a complete run.

A stored command imports a Python file and writes to a path, and the author of the store chose both. So the command is
shown, and runs only after confirmation, unless this user gave it on this machine.
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

_AGAIN = "start a new run: felixlike tune MODEL --store STORE, or optimize(model, store=…)"
"""Remedy for a store without a usable command."""


def add_parser(commands: Any) -> None:
    """Add the parser of `felixlike resume`."""
    parser = commands.add_parser(
        "resume",
        help="continue an interrupted run",
        description="Repeat the latest `felixlike tune` that used the store; candidates in the store are not measured "
        "again. Unless you entered the command on this machine, it is shown first and needs confirmation.",
    )
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("--rounds", type=int, help="replaces the run's limits; see tune")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--output", metavar="PATH", help="path of the tuned model, if it differs from the run's")
    parser.add_argument("--yes", action="store_true", help="run the stored command without confirmation")
    parser.add_argument("--quiet", action="store_true", help="print no progress and no report")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Tune and return the exit code of `tune`. Raise StoreError without a command, UnconfirmedCommand without a yes."""
    from felixlike import records

    with records.open(options.store, read_only=True) as store:
        commands, path = store.commands(), store.path
    if not commands or path is None:
        raise StoreError(
            "it contains no `felixlike tune` command",
            where=options.store,
            remedy=_AGAIN,
        )
    stored = _read(commands[-1], options.store)
    mark = stored.pop(tune.MARK, None)
    merged = {**_OLD_DEFAULTS, **stored}
    overrides = {name: getattr(options, name) for name in ("rounds", "trials", "seconds", "output")}
    limits = {name: overrides.pop(name) for name in ("rounds", "trials", "seconds")}
    if any(limit is not None for limit in limits.values()):
        merged |= limits
    merged |= {name: value for name, value in overrides.items() if value is not None}
    command = shlex.join(["felixlike", "tune", *_arguments(merged), "--store", options.store])
    if not command.isprintable():  # the user must see exactly what runs
        raise StoreError("its latest command contains unprintable characters", where=options.store, remedy=_AGAIN)
    if not (options.yes or authorship.is_ours(mark, path, stored)):
        _confirm(command, options.store)
    return tune.run(
        argparse.Namespace(**merged, store=options.store, quiet=options.quiet, in_background_of=None, compare=False)
    )


_LISTS = ("shape", "dim")
"""Options that may be repeated."""

_OLD_DEFAULTS: Mapping[str, Any] = {
    "space": "best",
    "precision": "float32",
    "effort": "normal",
    "tolerance": None,
    "planner": None,
    "sia": None,
    "weights": None,
    "dim": [],
}
"""Values of options that older versions did not store."""


def _read(text: str, where: str) -> dict[str, Any]:
    """Parse a stored command. Raise StoreError if `felixlike tune` did not write it.

    Options that it lacks stay out: its mark is of what was stored.
    """
    try:
        command = json.loads(text)
        stored = {**_OLD_DEFAULTS, **command}
        for name, kinds in tune.KEPT.items():
            value = stored[name]
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise TypeError(f"{name} is {kind_of(value)}")
        for name in _LISTS:
            if not all(isinstance(text, str) for text in stored[name]):
                raise TypeError(f"{name} is not a list of str")
        return {name: value for name, value in command.items() if name in (*tune.KEPT, tune.MARK)}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"its latest command cannot be read ({error})", where=where, remedy=_AGAIN) from error


def _arguments(options: Mapping[str, Any]) -> list[str]:
    """Return the arguments of `felixlike tune` for stored options."""
    lists = [(name, text) for name in _LISTS for text in options[name]]
    names = [name for name in tune.KEPT if name not in ("model", *_LISTS)]
    flags = [(name, options[name]) for name in names if options[name] is not None]
    return [options["model"], *(f"--{name}={value}" for name, value in [*lists, *flags])]


def _confirm(command: str, where: str) -> None:
    """Ask whether to run a command. Raise UnconfirmedCommand unless the answer is yes."""
    why = "the store contains a command that you did not enter on this machine"
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
            f"{why}: {command}", where=where, remedy="if you trust it, run it yourself or add --yes to resume"
        )
