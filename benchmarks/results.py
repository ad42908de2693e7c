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
    where = {**_where(), **({"gpu": gpu} if gpu else {})}
    made = f"Made by `python -m benchmarks.{command or name}`."
    _save(name, {**where, **data}, f"# {name}\n\n{_stated(where)}. {made}\n\n{text}\n")


def write_for_this_machine(name: str, data: dict[str, Any], text: str, *, command: str | None = None) -> None:
    """Like `write`, but what was measured on other kinds of CPUs stays beside it, a chapter for each."""
    here = _where()
    machines = [m for m in _machines(name) if m["mcpu"] != here["mcpu"]]
    made = f"Made by `python -m benchmarks.{command or name}`."
    machines.append({**here, "data": data, "text": f"{made}\n\n{text}"})
    machines.sort(key=lambda machine: str(machine["mcpu"]))
    chapters = [f"## {_stated(machine)}\n\n" + machine["text"].replace("\n## ", "\n### ") for machine in machines]
    _save(name, {"machines": machines}, "\n\n".join([f"# {name}", *chapters]) + "\n")


def of_this_machine(name: str) -> dict[str, Any]:
    """The data that `write_for_this_machine` kept of this kind of CPU; empty where there is none."""
    here = _where()
    return next((machine["data"] for machine in _machines(name) if machine["mcpu"] == here["mcpu"]), {})


def _machines(name: str) -> list[dict[str, Any]]:
    file = FOLDER / f"{name}.json"
    found: list[dict[str, Any]] = json.loads(file.read_text())["machines"] if file.exists() else []
    return found


def _where() -> dict[str, Any]:
    """The machine, and the versions of what was measured on it."""
    from felixlike.hardware import host_device

    device = host_device()
    versions = {"felixlike": __version__, **{p: metadata.version(p) for p in ("apache-tvm", "torch")}}
    return {"device": device.name, "mcpu": device.mcpu, "cores": device.cores, "versions": versions}


def _stated(where: dict[str, Any]) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in where["versions"].items())
    gpu = f"{where['gpu']}; " if "gpu" in where else ""
    return f"{gpu}{where['device']} ({where['mcpu']}), {where['cores']} cores; {versions}"


def _save(name: str, data: dict[str, Any], text: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    (FOLDER / f"{name}.md").write_text(text)
    print(text, flush=True)
