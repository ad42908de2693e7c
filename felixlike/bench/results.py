"""Save results as a JSON file and a readable page beside it, both with the machine and the versions of packages.

Inputs: the path of the JSON file, data, the page's text. Outputs: the two files, with a chapter per kind of CPU.
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
    """Return the geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def write_for_this_machine(path: Path, data: dict[str, Any], text: str, *, command: str) -> str:
    """Write results of this machine to a JSON file and a page. Chapters of other kinds of CPUs are preserved.

    Args:
        path: The .json file. The page lies beside it.
        data: Results of this machine.
        text: Text of this machine's chapter, in Markdown.
        command: Command that reproduces the results.

    Returns:
        The text of the page.

    Raises:
        InvalidOption: The file has other content.
        OutputNotWritable: The files cannot be written.
    """
    here = where()
    machines = [machine for machine in _machines(path) if machine["mcpu"] != here["mcpu"]]
    machines.append({**here, "data": data, "text": f"Made by `{command}`.\n\n{text}"})
    machines.sort(key=lambda machine: str(machine["mcpu"]))
    chapters = [f"## {stated(machine)}\n\n" + machine["text"].replace("\n## ", "\n### ") for machine in machines]
    page = "\n\n".join([f"# {path.stem}", *chapters]) + "\n"
    save(path, {"machines": machines}, page)
    return page


def of_this_machine(path: Path) -> dict[str, Any]:
    """Return the saved data of this kind of CPU; empty if there is none.

    Raise InvalidOption if the file has other content.
    """
    here = where()
    return next((machine["data"] for machine in _machines(path) if machine["mcpu"] == here["mcpu"]), {})


def where() -> dict[str, Any]:
    """Return this machine's device, and the versions of felixlike, TVM and PyTorch."""
    from felixlike.hardware import host_device

    device = host_device()
    versions = {"felixlike": __version__, **{p: metadata.version(p) for p in ("apache-tvm", "torch")}}
    return {"device": device.name, "mcpu": device.mcpu, "cores": device.cores, "versions": versions}


def stated(found: dict[str, Any]) -> str:
    """Return the result of `where` as text."""
    versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
    gpu = f"{found['gpu']}; " if "gpu" in found else ""
    return f"{gpu}{found['device']} ({found['mcpu']}), {found['cores']} cores; {versions}"


def save(path: Path, data: dict[str, Any], page: str) -> None:
    """Write a JSON file and the .md file beside it. Raise OutputNotWritable."""
    for file, text in ((path, json.dumps(data, indent=1) + "\n"), (path.with_suffix(".md"), page)):
        with written_whole(file) as opened:
            opened.write(text.encode())


def _machines(path: Path) -> list[dict[str, Any]]:
    """Read the chapters of a JSON file; empty if there is no file. Raise InvalidOption for other content."""
    if not path.exists():
        return []
    try:
        machines: list[dict[str, Any]] = json.loads(path.read_text())["machines"]
        assert all({"mcpu", "data", "text"} <= set(machine) for machine in machines)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise InvalidOption(
            "the file has other content than results", where=str(path), remedy="give another path, or remove the file"
        ) from None
    return machines
