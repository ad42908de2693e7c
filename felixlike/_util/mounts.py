"""Read the mounted file systems, and detect those that other hosts use at the same time.

Input: Linux's /proc/self/mountinfo. Output: a `Mount` for each file system. Without that file, all disks count as
local.
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
"""File systems that several hosts, or a virtual machine and its host, may mount at the same time."""

_LOCAL_FUSE = frozenset(
    f"fuse.{name}"
    for name in ("fuse-overlayfs", "overlayfs", "gocryptfs", "encfs", "cryfs", "ecryptfs", "mergerfs", "bindfs")
)
"""FUSE file systems over local disks. Every other `fuse.*` (sshfs, s3fs, rclone …) counts as a network file system."""


@dataclass(frozen=True, slots=True)
class Mount:
    """Describe a mounted file system.

    Attributes:
        root: The folder of the file system that is mounted.
        point: Where it is mounted.
        kind: Type of the file system.
        options: Options of the file system.
    """

    root: str
    point: str
    kind: str
    options: frozenset[str]


def mounts(table: Path | None = None) -> tuple[Mount, ...]:
    """Return all mounts that this process sees, in Linux's order.

    table: another file of the same format.
    """
    try:
        lines = (TABLE if table is None else table).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ()
    return tuple(mount for line in lines if (mount := _mount(line)) is not None)


def is_network(path: str | os.PathLike[str]) -> bool:
    """Return whether a file, which need not exist yet, is on a file system that other hosts may use too."""
    real = Path(os.path.realpath(path))
    ancestors = {str(real), *map(str, real.parents)}
    candidates = [mount for mount in mounts() if mount.point in ancestors]
    if not candidates:
        return False
    # The last of several mounts at one point hides the others.
    kind = max(reversed(candidates), key=lambda mount: len(mount.point)).kind
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def _mount(line: str) -> Mount | None:
    """Return the mount of a line of mountinfo, or None for another format.

    The fields are number, parent, device, root, point, options, optional fields, "-", type, source, options of the
    file system.
    """
    before, separator, after = line.partition(" - ")
    fields, rest = before.split(" "), after.split(" ")
    if not separator or len(fields) < 5 or len(rest) < 3:
        return None
    return Mount(_plain(fields[3]), _plain(fields[4]), rest[0], frozenset(rest[2].split(",")))


def _plain(text: str) -> str:
    r"""Return a path whose spaces, tabs, newlines and backslashes Linux has written as octal numbers (\040)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
