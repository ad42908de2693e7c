"""Read which file systems are mounted, and tell those that other hosts use at the same time.

In: Linux's /proc/self/mountinfo. Out: a `Mount` for each file system. Systems without that file count as having local
disks only.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

TABLE = Path("/proc/self/mountinfo")

_NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda", "9p", "virtiofs", "acfs"),
        *("ceph", "lustre", "gpfs", "mmfs", "beegfs", "fhgfs", "glusterfs", "orangefs", "pvfs2", "panfs", "wekafs"),
        *("gfs", "gfs2", "ocfs2", "vboxsf", "vmhgfs", "prl_fs", "davfs", "autofs", "dvs", "efs", "quobyte"),
    )
)
"""File systems that several hosts, or a virtual machine and its host, may have mounted at the same time."""

_LOCAL_FUSE = frozenset(
    f"fuse.{name}"
    for name in ("fuse-overlayfs", "overlayfs", "gocryptfs", "encfs", "cryfs", "ecryptfs", "mergerfs", "bindfs")
)
"""FUSE file systems over local disks. Every other `fuse.*` (sshfs, s3fs, rclone …) counts as a network file system."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system.

    root: the folder of the file system that is mounted.  point: where it is mounted.  kind: the file system's type.
    options: those of the file system."""

    root: str
    point: str
    kind: str
    options: frozenset[str]


def mounts(table: Path | None = None) -> tuple[Mount, ...]:
    """Return all mounts that this process sees, in the order in which Linux lists them.

    table: another file of the same format."""
    try:
        lines = (TABLE if table is None else table).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ()
    return tuple(mount for line in lines if (mount := _mount(line)) is not None)


def is_network(path: str | os.PathLike[str]) -> bool:
    """Return whether a file, which need not exist yet, lies on a file system that other hosts may use too."""
    real = Path(os.path.realpath(path))
    around = {str(real), *map(str, real.parents)}
    on = [mount for mount in mounts() if mount.point in around]
    if not on:
        return False
    kind = max(reversed(on), key=lambda mount: len(mount.point)).kind  # of mounts at one place, the last hides the rest
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def _mount(line: str) -> Mount | None:
    """Return the mount of a line: number, parent, device, root, point, options, optional fields, "-", type, source,
    options of the file system."""
    before, found, after = line.partition(" - ")
    fields, rest = before.split(" "), after.split(" ")
    if not found or len(fields) < 5 or len(rest) < 3:
        return None
    return Mount(_plain(fields[3]), _plain(fields[4]), rest[0], frozenset(rest[2].split(",")))


def _plain(text: str) -> str:
    r"""Return a path whose spaces, tabs, newlines and backslashes Linux has written as octal numbers (\040)."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
