"""Write benchmark results to docs/results, and append rows to files so that an interrupted run can be resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from felixlike.bench import results
from felixlike.bench.results import geometric_mean

__all__ = ["FOLDER", "geometric_mean", "keep", "kept", "of_this_machine", "write", "write_for_this_machine"]

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "results"


def kept(path: Path | None) -> list[dict[str, Any]]:
    """Return the rows that earlier runs appended with `keep`, or an empty list if there is no file."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def keep(path: Path | None, row: dict[str, Any]) -> None:
    """Append a row to a file, unless `path` is None."""
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def write(name: str, data: dict[str, Any], text: str, *, command: str | None = None, gpu: str = "") -> None:
    """Write docs/results/<name>.json and .md, and print the page.

    `command` is the command line if the module is not called `name`. `gpu` names the GPU that was used.
    """
    where = {**results.where(), **({"gpu": gpu} if gpu else {})}
    page = f"# {name}\n\n{results.stated(where)}. Made by `{_command(command or name)}`.\n\n{text}\n"
    results.save(FOLDER / f"{name}.json", {**where, **data}, page)
    print(page, flush=True)


def write_for_this_machine(name: str, data: dict[str, Any], text: str, *, command: str | None = None) -> None:
    """Like `write`, but keep the results of other kinds of CPUs, each in its own chapter."""
    made = _command(command or name)
    print(results.write_for_this_machine(FOLDER / f"{name}.json", data, text, command=made), flush=True)


def of_this_machine(name: str) -> dict[str, Any]:
    """Return the data that `write_for_this_machine` wrote for this kind of CPU, or an empty dict."""
    return results.of_this_machine(FOLDER / f"{name}.json")


def _command(module: str) -> str:
    return f"python -m benchmarks.{module}"
