"""Results on disk: a JSON file beside a readable table, both saying where and with what they were measured."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from felixlike import __version__

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "results"


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


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
    from felixlike.hardware import host_device

    device = host_device()
    versions = {"felixlike": __version__, **{p: metadata.version(p) for p in ("apache-tvm", "torch")}}
    data = {**({"gpu": gpu} if gpu else {}), **data}
    data = {"device": device.name, "mcpu": device.mcpu, "cores": device.cores, "versions": versions, **data}
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    where = f"{gpu}; " if gpu else ""
    where += f"{device.name} ({device.mcpu}), {device.cores} cores; " + ", ".join(
        f"{p} {v}" for p, v in versions.items()
    )
    text = f"# {name}\n\n{where}. Made by `python -m benchmarks.{command or name}`.\n\n{text}\n"
    (FOLDER / f"{name}.md").write_text(text)
    print(text, flush=True)
