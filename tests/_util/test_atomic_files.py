"""Files are written completely or not at all, and only regular files are replaced."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from felixlike._util.atomic_files import written_whole
from felixlike.errors import OutputNotWritable
from felixlike.runtime import check_writable


def write(path: Path, content: bytes = b"new") -> None:
    with written_whole(path) as file:
        file.write(content)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_permissions_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "m.flx")
    finally:
        os.umask(before)
    assert (tmp_path / "m.flx").read_bytes() == b"new"
    assert mode(tmp_path / "m.flx") == 0o640


def test_an_existing_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "m.flx"
    path.write_bytes(b"old")
    path.chmod(0o604)
    write(path)
    assert path.read_bytes() == b"new"
    assert mode(path) == 0o604
    assert [p.name for p in tmp_path.iterdir()] == ["m.flx"]


def test_writing_through_a_link_replaces_its_target(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link, further = tmp_path / "there" / "v1.flx", tmp_path / "latest.flx", tmp_path / "further.flx"
    link.symlink_to(Path("there") / "v1.flx")
    further.symlink_to(link)
    write(link, b"first")  # the target does not exist yet
    assert link.is_symlink()
    assert target.read_bytes() == b"first"
    write(further, b"second")
    assert link.is_symlink()
    assert further.is_symlink()
    assert target.read_bytes() == b"second"
    assert [p.name for p in (tmp_path / "there").iterdir()] == ["v1.flx"]


def test_a_file_does_not_replace_an_input(tmp_path: Path) -> None:
    path, new = tmp_path / "store", tmp_path / "new"
    path.touch()
    (tmp_path / "symbolic").symlink_to(path)
    (tmp_path / "hard").hardlink_to(path)
    for name in ("store", "symbolic", "hard"):
        with pytest.raises(OutputNotWritable, match=rf"{name}: it would overwrite {path}\. give it another name"):
            check_writable(tmp_path / name, new, path)
    with pytest.raises(OutputNotWritable, match=f"it would overwrite {new}"):
        check_writable(new, path, new)
    assert check_writable(new, path, tmp_path / "other") == new


def test_broken_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    with pytest.raises(OutputNotWritable, match=os.strerror(errno.ELOOP)):
        write(tmp_path / "one")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere" / "m.flx")
    with pytest.raises(OutputNotWritable, match=r"directory .*nowhere\b"):
        write(tmp_path / "lost")
    (tmp_path / "null").symlink_to("/dev/null")
    with pytest.raises(OutputNotWritable, match="a device"):
        write(tmp_path / "null")


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full", "/dev/stdout"])
def test_devices_are_refused(device: str) -> None:
    before = os.stat(device, follow_symlinks=False)
    if device != "/dev/stdout" or not stat.S_ISREG(os.stat(device).st_mode):
        with pytest.raises(OutputNotWritable, match=rf"{device}: .*\ba (device|named pipe|socket)"):
            write(Path(device))
    assert os.stat(device, follow_symlinks=False).st_mode == before.st_mode


def test_pipes_and_sockets_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputNotWritable, match=r"pipe: .*a named pipe"):
        write(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    with pytest.raises(OutputNotWritable, match=r"socket: .*a socket"):
        write(tmp_path / "socket")
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "socket").is_socket()


def test_unwritable_paths_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_writable(str(tmp_path / "m.flx")) == tmp_path / "m.flx"
    with pytest.raises(OutputNotWritable, match=r"directory .*nowhere\b"):
        check_writable(tmp_path / "nowhere" / "m.flx")
    with pytest.raises(OutputNotWritable, match=f"{tmp_path}: .*a directory"):
        check_writable(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputNotWritable, match=rf"directory {tmp_path}/file\b"):
        check_writable(tmp_path / "file" / "m.flx")
    for path in ("", "a\0b", None, 5, b"bytes"):
        with pytest.raises(OutputNotWritable, match=r"str or pathlib\.Path") as caught:
            check_writable(path)  # type: ignore[arg-type]
        assert repr(path) in caught.value.what
        assert caught.value.where == "output"
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(OutputNotWritable, match=rf"directory {tmp_path} is not writable"):
        check_writable(tmp_path / "m.flx")
    with pytest.raises(OutputNotWritable, match=rf"{tmp_path}/file: the file is not writable"):
        check_writable(tmp_path / "file")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "m.flx"
    path.write_bytes(b"old")

    def write_half() -> None:
        with written_whole(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["m.flx"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputNotWritable, match=rf"m\.flx: .*{os.strerror(number)}"):
        write(tmp_path / "m.flx")
    assert not list(tmp_path.iterdir())


def test_the_longest_file_name_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / ("m" * 251 + ".flx")
    write(path)
    assert path.read_bytes() == b"new"
    with pytest.raises(OutputNotWritable, match=os.strerror(errno.ENAMETOOLONG)):
        write(tmp_path / ("m" * 256))
