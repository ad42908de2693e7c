"""Files that another user could have written are refused, and files written here are private."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from felixlike._util import cache, private_files
from felixlike.errors import StorageWarning


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder that contains the file `kind/name`."""
    root = tmp_path / "deeper" / "root"
    private_files.write(root, "kind", "name", content=b"first")
    return root


def test_written_files_are_readable_and_private(root: Path) -> None:
    before = os.umask(0)
    try:
        private_files.write(root, "kind", "name", content=b"second")
        private_files.make_folder(root, "other")
    finally:
        os.umask(before)
    with private_files.opened(root, "kind", "name") as file:
        assert file.read() == b"second"
    assert [_mode(root), _mode(root / "kind"), _mode(root / "other")] == [0o700] * 3
    assert _mode(root / "kind" / "name") == 0o600
    assert [path.name for path in (root / "kind").iterdir()] == ["name"]


def _others_write(path: str) -> Callable[[Path], None]:
    return lambda root: (root / path).chmod(0o770)


def _linked_file(root: Path) -> None:
    (root / "kind" / "name").rename(root / "elsewhere")
    (root / "kind" / "name").symlink_to(root / "elsewhere")


def _linked_folder(root: Path) -> None:
    (root / "kind").rename(root / "elsewhere")
    (root / "kind").symlink_to(root / "elsewhere")


def _pipe(root: Path) -> None:
    (root / "kind" / "name").unlink()
    os.mkfifo(root / "kind" / "name", 0o600)


@pytest.mark.parametrize(
    "change",
    [_others_write(""), _others_write("kind"), _others_write("kind/name"), _linked_file, _linked_folder, _pipe],
)
def test_files_that_others_may_have_written_are_refused(root: Path, change: Callable[[Path], None]) -> None:
    change(root)
    with pytest.raises(OSError):
        private_files.opened(root, "kind", "name").close()


def test_files_of_another_user_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: root.stat().st_uid + 1)
    with pytest.raises(private_files.NotPrivate, match=rf"\(uid {root.stat().st_uid}\)"):
        private_files.opened(root, "kind", "name").close()
    with pytest.raises(private_files.NotPrivate, match=rf"\(uid {root.stat().st_uid}\)"):
        private_files.write(root, "kind", "name", content=b"second")
    assert (root / "kind" / "name").read_bytes() == b"first"


def test_folders_writable_by_others_are_not_written_to(root: Path) -> None:
    (root / "kind").chmod(0o777)
    with pytest.raises(private_files.NotPrivate, match=r"mode 777.*kind'$"):
        private_files.write(root, "kind", "name", content=b"second")
    assert (root / "kind" / "name").read_bytes() == b"first"


def test_a_write_that_fails_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        private_files.write(root, "kind", "name", content=b"second")
    assert [path.name for path in (root / "kind").iterdir()] == ["name"]


def test_the_cache_warns_once_and_continues_in_memory(own_cache: Path) -> None:
    for name in ("a", "b"):
        cache.store("kind", name, [1, 2])
        (own_cache / "kind" / f"{name}.json").chmod(0o666)
    with pytest.warns(StorageWarning, match=r"a\.json .*mode 666") as caught:
        loaded = [cache.load("kind", name) for name in ("a", "b")]
    assert (loaded, len(caught)) == ([None, None], 1)
    cache.store("kind", "a", [3])
    assert cache.load("kind", "a") == [3]
    own_cache.chmod(0o777)
    cache.store("kind", "b", [4])
    assert cache.load("kind", "b") == [4]
    own_cache.chmod(0o700)
    assert cache.load("kind", "b") is not None
