"""Results on disk: a JSON file beside a readable page, both saying where and with what they were measured.

In: the path of the JSON file, data, the page's text. Out: the two files, with a chapter for each kind of CPU.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from felixlike._util.atomic_files import written_whole
from felixlike._version import __version__
from felixlike.errors import InvalidOption


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def write_for_this_machine(path: Path, data: dict[str, Any], text: str, *, command: str) -> str:
    """Write path, a .json file, and the page beside it, whose text is returned; what was measured on other kinds of
    CPUs stays in both, a chapter for each.  command: what makes them.  Raises InvalidOption, OutputNotWritable."""
    here = where()
    machines = [machine for machine in _machines(path) if machine["mcpu"] != here["mcpu"]]
    machines.append({**here, "data": data, "text": f"Made by `{command}`.\n\n{text}"})
    machines.sort(key=lambda machine: str(machine["mcpu"]))
    chapters = [f"## {stated(machine)}\n\n" + machine["text"].replace("\n## ", "\n### ") for machine in machines]
    page = "\n\n".join([f"# {path.stem}", *chapters]) + "\n"
    save(path, {"machines": machines}, page)
    return page


def of_this_machine(path: Path) -> dict[str, Any]:
    """The data that `write_for_this_machine` kept of this kind of CPU; empty where there is none. Raises
    InvalidOption for a file of another kind."""
    here = where()
    return next((machine["data"] for machine in _machines(path) if machine["mcpu"] == here["mcpu"]), {})


def where() -> dict[str, Any]:
    """The machine, and the versions of what is measured on it."""
    from felixlike.hardware import host_device

    device = host_device()
    versions = {"felixlike": __version__, **{p: metadata.version(p) for p in ("apache-tvm", "torch")}}
    return {"device": device.name, "mcpu": device.mcpu, "cores": device.cores, "versions": versions}


def stated(found: dict[str, Any]) -> str:
    """`where`, in words."""
    versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
    gpu = f"{found['gpu']}; " if "gpu" in found else ""
    return f"{gpu}{found['device']} ({found['mcpu']}), {found['cores']} cores; {versions}"


def save(path: Path, data: dict[str, Any], page: str) -> None:
    """Write path and the .md file beside it. Raises OutputNotWritable."""
    for file, text in ((path, json.dumps(data, indent=1) + "\n"), (path.with_suffix(".md"), page)):
        with written_whole(file) as opened:
            opened.write(text.encode())


def _machines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text())["machines"]
        assert all({"mcpu", "data", "text"} <= set(machine) for machine in found)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise InvalidOption(
            "the file holds something else", where=str(path), remedy="give another path, or remove it"
        ) from None
    return found
