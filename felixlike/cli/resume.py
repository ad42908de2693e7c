"""`felixlike resume`: go on with what `felixlike tune` was doing when it was stopped.

In: a store. Out: as from `tune`. The latest command that used the store is repeated; since limits are totals, it does
what is left of it. Larger limits go on from there.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from felixlike.cli import tune
from felixlike.errors import StoreError

_AGAIN = "give the model again: felixlike tune MODEL --store STORE, or optimize(model, store=…)"


def add_parser(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "resume",
        help="go on with an interrupted run",
        description="Repeat the latest `felixlike tune` that used the store; what it holds is not done again.",
    )
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("--rounds", type=int, help="a new limit in place of the run's own; see tune")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--output", metavar="PATH", help="where to save the tuned model, if elsewhere")
    parser.add_argument("--quiet", action="store_true", help="no progress, no report")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Tune; the exit code of that."""
    from felixlike import records

    with records.open(options.store, read_only=True) as store:
        commands = store.commands()
    if not commands:
        raise StoreError(
            "no `felixlike tune` has used it",
            where=options.store,
            remedy=_AGAIN,
        )
    try:
        # Commands of older versions name neither.
        noted = {"space": "best", "precision": "float32", **json.loads(commands[-1])}
        kept = {name: noted[name] for name in tune.KEPT}
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"its latest command cannot be read ({error})", where=options.store, remedy=_AGAIN) from error
    given = {name: getattr(options, name) for name in ("rounds", "trials", "seconds", "output")}
    limits = {name: given.pop(name) for name in ("rounds", "trials", "seconds")}
    if any(limit is not None for limit in limits.values()):
        kept |= limits
    kept |= {name: value for name, value in given.items() if value is not None}
    return tune.run(argparse.Namespace(**kept, store=options.store, quiet=options.quiet, in_background_of=None))
