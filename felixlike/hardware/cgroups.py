"""Read the processor time and memory that Linux's control groups allow this process. Containers set such limits.

Input: /proc/self/cgroup, /proc/self/mountinfo and the groups' files, of version 2 (`cpu.max`, `memory.max`,
`memory.high`) and version 1 (`cpu.cfs_quota_us`, `memory.limit_in_bytes`), which a host may mount side by side. Output:
an `Allowance`. Limits of outer groups also apply, so the tightest one counts. Processors excluded by a cpuset are not
listed here: they show in the process's affinity (`probe.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from felixlike._util.mounts import mounts

_UNLIMITED = 2**60
"""Bytes from which a memory limit counts as none: version 1 writes 2⁶³ rounded down to a page."""

_MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
"""Files with a limit of memory."""
_MEMORY_USED = ("memory.current", "memory.usage_in_bytes")
"""Files with the used memory."""
_CACHED = ("inactive_file", "total_inactive_file")
"""Lines of memory.stat, by version, that count memory which Linux frees before it ends a process."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of the control groups of this process, None for no limit.

    Attributes:
        cores: Processor time in cores: 1.5 is 150 ms of every 100 ms.
        memory_bytes: The memory limit in bytes.
        free_bytes: The part of the limit in bytes that the group's processes do not use yet.
    """

    cores: float | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None


def allowance(root: Path = Path("/")) -> Allowance:
    """Return the limits of this process. `root` is the folder that has /proc and /sys."""
    groups = tuple(_groups(root))
    cores = [quota for group in groups if (quota := _cores(group)) is not None]
    limits = [(limit, group) for group in groups for limit in _memory_limits(group)]
    free = [max(0, limit - used) for limit, group in limits if (used := _memory_used(group)) is not None]
    return Allowance(
        min(cores, default=None),
        min((limit for limit, _ in limits), default=None),
        min(free, default=None),
    )


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's groups and of their outer groups."""
    paths = _paths(root)
    for mount in mounts(root / "proc/self/mountinfo"):
        names = {"cgroup2": {""}, "cgroup": {"cpu", "memory"} & mount.options}.get(mount.kind, set())
        path = next((paths[name] for name in sorted(names) if name in paths), None)
        if path is None:
            continue
        top = root / mount.point.lstrip("/")
        folder = top / _below(path, mount.root)
        yield folder
        while folder != top:
            folder = folder.parent
            yield folder


def _paths(root: Path) -> dict[str, str]:
    """Return this process's group of each controller of version 1, by its name, and of version 2, by ""."""
    lines = (line.split(":", 2) for line in _text(root / "proc/self/cgroup").splitlines())
    return {name: line[2] for line in lines if len(line) == 3 for name in line[1].split(",")}


def _below(path: str, mounted: str) -> PurePosixPath:
    """Return a group's path relative to the mounted group.

    In a container without a cgroup namespace, both are paths of the host. In one with it, or if the process is outside
    of the mount, only the mounted group itself is known.
    """
    group = PurePosixPath(path)
    if ".." in group.parts or not group.is_relative_to(mounted):
        return PurePosixPath()
    return group.relative_to(mounted)


def _cores(group: Path) -> float | None:
    """Return a group's processor time in cores, or None for no limit."""
    text = _text(group / "cpu.max") or f"{_text(group / 'cpu.cfs_quota_us')} {_text(group / 'cpu.cfs_period_us')}"
    numbers = [_number(word) for word in text.split()]
    if len(numbers) != 2 or numbers[0] is None or not numbers[1] or numbers[0] <= 0:
        return None
    return numbers[0] / numbers[1]


def _memory_limits(group: Path) -> list[int]:
    """Return the limits of a group's memory in bytes.

    Beyond memory.high, a group's processes are slowed down to a halt, so it counts as a limit.
    """
    limits = [_number(_text(group / name)) for name in _MEMORY_LIMITS]
    return [limit for limit in limits if limit is not None and 0 < limit < _UNLIMITED]


def _memory_used(group: Path) -> int | None:
    """Return the bytes that a group uses, without files that Linux can drop from memory."""
    used = next((number for name in _MEMORY_USED if (number := _number(_text(group / name))) is not None), None)
    if used is None:
        return None
    lines = dict(line.split(" ", 1) for line in _text(group / "memory.stat").splitlines() if " " in line)
    cached = max((_number(lines[name]) or 0 for name in _CACHED if name in lines), default=0)
    return max(0, used - cached)


def _number(text: str) -> int | None:
    """Return a text's number, or None for "max", for -1 and for an empty text, which all mean no limit."""
    return int(text) if text.strip().isdecimal() else None


def _text(path: Path) -> str:
    """Return the text of a file, empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
