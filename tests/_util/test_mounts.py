"""The mount table is parsed, and network file systems are recognized."""

from __future__ import annotations

from pathlib import Path

import pytest

from felixlike._util import mounts
from felixlike._util.mounts import Mount, is_network

TABLE = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:50 / /home rw,relatime shared:2 master:1 - nfs4 server:/export rw,vers=4.2
24 22 0:51 /lower /home/user/scratch rw - xfs /dev/sdb1 rw
25 22 0:52 / /mnt/with\040space rw - cifs //server/share rw
26 22 0:53 / /mnt/far rw - fuse.sshfs user@host: rw
27 22 0:54 / /mnt/layers rw - fuse.fuse-overlayfs overlay rw
28 22 0:55 / /twice rw - nfs server:/old rw
29 28 0:56 / /twice rw - tmpfs tmpfs rw
30 22 0:57 / /lustre rw - lustre a@tcp:/x rw
31 22 0:58 / /windows rw - 9p C: rw
32 22 0:59 / /overlay rw - overlay overlay rw,lowerdir=/a
nonsense
33 22 0:60 / /nothing rw -
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(TABLE)
    monkeypatch.setattr(mounts, "TABLE", path)
    return path


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("path", "network"),
    [
        ("/etc/passwd", False),
        ("/home", True),
        ("/home/user/.local/share/felixlike/compiled.sqlite", True),
        ("/home/user/scratch/runs.sqlite", False),
        ("/homes/user", False),
        ("/mnt/with space/a", True),
        ("/mnt/far/a", True),
        ("/mnt/layers/a", False),
        ("/twice/a", False),
        ("/lustre/a/../b", True),
        ("/windows/a", True),
        ("/overlay/a", False),
    ],
)
def test_is_network(path: str, network: bool) -> None:
    assert is_network(path) is network


def test_links_are_resolved(table: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    table.write_text(f"{TABLE}34 22 0:61 / {shared} rw - beegfs beegfs rw\n")
    (tmp_path / "link").symlink_to(shared)
    assert is_network(tmp_path / "link" / "a")
    assert not is_network(tmp_path / "a")


def test_mount_table_lines_are_parsed(table: Path) -> None:
    entries = mounts.mounts()
    assert len(entries) == 11
    assert entries[2] == Mount("/lower", "/home/user/scratch", "xfs", frozenset({"rw"}))
    assert entries[3].point == "/mnt/with space"
    table.unlink()
    assert mounts.mounts() == ()
    assert not is_network("/home")


def test_the_root_of_this_system_is_mounted() -> None:
    if not mounts.TABLE.exists():
        pytest.skip("Linux has a table of mounts")
    assert "/" in {mount.point for mount in mounts.mounts()}
