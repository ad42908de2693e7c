"""Read how much processor time and memory Linux's control groups leave to this process: containers set such limits.

In: /proc/self/cgroup, /proc/self/mountinfo and the files of the groups, of version 2 (`cpu.max`, `memory.max`,
`memory.high`) and version 1 (`cpu.cfs_quota_us`, `memory.limit_in_bytes`), which a host may mount side by side. Out: a
`Allowance`. A group is bound by the limits of the groups around it, so the tightest counts. Processors that a cpuset
excludes are not listed here: the process's affinity tells (`probe.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from felixlike._util.mounts import mounts

_UNLIMITED = 2**60
"""Bytes from which on a memory limit is none: version 1 writes 2⁶³ rounded down to a page."""

_MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
_MEMORY_USED = ("memory.current", "memory.usage_in_bytes")
_CACHED = ("inactive_file", "total_inactive_file")
"""Lines of memory.stat that count memory which Linux gives back before it ends a process, by version."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What control groups leave to this process; None where they set no limit.

    cores: processor time, in cores; 1.5 is 150 ms of every 100 ms.  memory_bytes: the limit.  free_bytes: the part of
    the limit that the processes of the group do not use yet."""

    cores: float | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None


def allowance(root: Path = Path("/")) -> Allowance:
    """Return the limits of this process.  root: where /proc and /sys are found."""
    groups = tuple(_groups(root))
    cores = [found for group in groups if (found := _cores(group)) is not None]
    limits = [(limit, group) for group in groups for limit in _memory_limits(group)]
    free = [max(0, limit - used) for limit, group in limits if (used := _memory_used(group)) is not None]
    return Allowance(
        min(cores, default=None),
        min((limit for limit, _ in limits), default=None),
        min(free, default=None),
    )


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of the groups that this process is in, and of those around them."""
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
    """Return a group's path relative to the group that is mounted.

    In a container without a cgroup namespace both are paths of the host. In one with it, or where the process is
    outside of what is mounted, only the mounted group itself is known."""
    group = PurePosixPath(path)
    if ".." in group.parts or not group.is_relative_to(mounted):
        return PurePosixPath()
    return group.relative_to(mounted)


def _cores(group: Path) -> float | None:
    """Return a group's processor time, in cores."""
    text = _text(group / "cpu.max") or f"{_text(group / 'cpu.cfs_quota_us')} {_text(group / 'cpu.cfs_period_us')}"
    numbers = [_number(word) for word in text.split()]
    if len(numbers) != 2 or numbers[0] is None or not numbers[1] or numbers[0] <= 0:
        return None
    return numbers[0] / numbers[1]


def _memory_limits(group: Path) -> list[int]:
    """Return the limits of a group's memory, in bytes.  Beyond memory.high a group's processes are slowed down to a
    halt, so it counts too."""
    found = [_number(_text(group / name)) for name in _MEMORY_LIMITS]
    return [limit for limit in found if limit is not None and 0 < limit < _UNLIMITED]


def _memory_used(group: Path) -> int | None:
    """Return the bytes that a group uses, without files that Linux can drop from memory."""
    used = next((number for name in _MEMORY_USED if (number := _number(_text(group / name))) is not None), None)
    if used is None:
        return None
    lines = dict(line.split(" ", 1) for line in _text(group / "memory.stat").splitlines() if " " in line)
    cached = max((_number(lines[name]) or 0 for name in _CACHED if name in lines), default=0)
    return max(0, used - cached)


def _number(text: str) -> int | None:
    """Return the number of a text; None for "max", for -1 and for an absent file, which all mean no limit."""
    return int(text) if text.strip().isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
