"""Results of benchmarks in docs/results, and rows that a run notes so that a later one can go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from felixlike.bench import results
from felixlike.bench.results import geometric_mean

__all__ = ["FOLDER", "geometric_mean", "keep", "kept", "of_this_machine", "write", "write_for_this_machine"]

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "results"


def kept(path: Path | None) -> list[dict[str, Any]]:
    """The rows that earlier runs noted in a file with `keep`; none where there is no file."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def keep(path: Path | None, row: dict[str, Any]) -> None:
    """Note a row at the end of a file, if one is wanted."""
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def write(name: str, data: dict[str, Any], text: str, *, command: str | None = None, gpu: str = "") -> None:
    """docs/results/<name>.json and .md; also printed.  command: what makes them, where it is not the name's module.
    gpu: the one that was used."""
    where = {**results.where(), **({"gpu": gpu} if gpu else {})}
    page = f"# {name}\n\n{results.stated(where)}. Made by `{_command(command or name)}`.\n\n{text}\n"
    results.save(FOLDER / f"{name}.json", {**where, **data}, page)
    print(page, flush=True)


def write_for_this_machine(name: str, data: dict[str, Any], text: str, *, command: str | None = None) -> None:
    """Like `write`, but what was measured on other kinds of CPUs stays beside it, a chapter for each."""
    made = _command(command or name)
    print(results.write_for_this_machine(FOLDER / f"{name}.json", data, text, command=made), flush=True)


def of_this_machine(name: str) -> dict[str, Any]:
    """The data that `write_for_this_machine` kept of this kind of CPU; empty where there is none."""
    return results.of_this_machine(FOLDER / f"{name}.json")


def _command(module: str) -> str:
    return f"python -m benchmarks.{module}"
