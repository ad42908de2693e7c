"""The user's folders, locks with a time limit, and one warning where a folder cannot be used."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import pwd
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from felixlike._util import cache, mounts, user_folders
from felixlike.errors import OutputNotWritable, StorageWarning

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


# -- folders -----------------------------------------------------------------------------------------------------------


def test_folders_follow_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_folders.cache_folder() == home / ".cache" / "felixlike"
    assert user_folders.default_store() == user_folders.store_path() == home / ".local/share/felixlike/compiled.sqlite"
    assert (home / ".local/share/felixlike").is_dir()
    assert not (home / ".cache").exists()
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "elsewhere"))
    assert user_folders.cache_folder() == home / "elsewhere" / "felixlike"


def test_the_store_on_a_network_file_system_is_named_after_the_host(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:50 / {home} rw - nfs server:/home rw\n")
    monkeypatch.setattr(mounts, "TABLE", table)
    monkeypatch.setattr(socket, "gethostname", lambda: "node/7.cluster")
    path = user_folders.default_store()
    assert path is not None
    assert path.name == "compiled-node_7.cluster.sqlite"


def test_memory_is_used_without_a_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(_: int) -> Any:
        raise KeyError("getpwuid(): uid not found")

    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    assert user_folders.cache_folder() is None
    with pytest.warns(StorageWarning, match=r"home directory .*\(.*unknown\)"):
        assert user_folders.default_store() is None
    cache.store("kind", "key", [1])
    assert cache.load("kind", "key") == [1]
    assert cache.entries() == cache.trim() == cache.clear() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["/proc/nonexistent", "file"])
def test_an_unusable_data_folder_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / place))
    with pytest.warns(StorageWarning, match=r"/felixlike .*XDG_DATA_HOME") as caught:
        assert user_folders.default_store() is None
    assert user_folders.default_store() is None
    assert len(caught) == 1


def test_an_unwritable_store_warns(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = user_folders.default_store()
    assert path is not None
    path.touch()
    access = os.access
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != path and access(place, mode))
    with pytest.warns(StorageWarning, match=f"{path.parent} .*not writable"):
        assert user_folders.default_store() is None


# -- the warning -------------------------------------------------------------------------------------------------------


def test_a_process_warns_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        user_folders.unusable(Path("/a"), OSError(errno.ENOSPC, "No space left on device", "/a/b"))
        user_folders.unusable(Path("/b"), OSError(errno.EROFS, "Read-only file system"))
        user_folders.warn()
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith("/a ")
    assert "(No space left on device)" in text
    assert "XDG_CACHE_HOME" in text
    assert warning.filename == __file__


def test_held_back_delays_the_warning(recwarn: pytest.WarningsRecorder) -> None:
    with user_folders.held_back():
        with user_folders.held_back():
            user_folders.unusable("/a", OutputNotWritable("no room", where="/a/b"))
        assert not recwarn.list
    warning = user_folders.pending()
    assert isinstance(warning, StorageWarning)
    assert str(warning).startswith("/a ")
    assert "(no room)" in str(warning)
    assert user_folders.pending() is None
    user_folders.unusable("/b", OSError("anything"))
    assert not recwarn.list


def test_a_warning_delayed_by_a_failed_run_is_given_later() -> None:
    @user_folders.held_back()
    def run() -> None:
        user_folders.unusable("/a", OSError("anything"))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run()
    with pytest.warns(StorageWarning, match="^/a "):
        user_folders.unusable("/b", OSError("else"))


# -- locks -------------------------------------------------------------------------------------------------------------


def _hold(path: str, begun: Any, release: Any) -> None:
    with user_folders.locked(Path(path)) as held:
        assert held
        begun.set()
        release.wait(120)


def test_waiting_for_a_lock_ends_at_the_time_limit(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "x.lock"
    spawning = multiprocessing.get_context("spawn")
    begun, release = spawning.Event(), spawning.Event()
    holder = spawning.Process(target=_hold, args=(str(path), begun, release))
    holder.start()
    assert begun.wait(120)
    started = time.monotonic()
    with user_folders.locked(path, seconds=0.2) as held:
        assert not held
    assert time.monotonic() - started < 60
    assert path.exists()
    later = threading.Timer(0.3, release.set)
    later.start()
    with user_folders.locked(path) as held:
        assert held
    holder.join(120)
    assert holder.exitcode == 0
    assert not path.exists()


def test_a_folder_made_for_a_lock_is_private(own_cache: Path, recwarn: pytest.WarningsRecorder) -> None:
    folder = user_folders.cache_folder()
    assert folder is not None
    before = os.umask(0o002)
    try:
        with user_folders.locked(folder / "x.lock") as held:
            assert held
    finally:
        os.umask(before)
    assert cache.write("kind", "name", b"content")
    assert not recwarn.list


def test_a_lock_excludes_other_threads_although_its_file_is_removed(tmp_path: Path) -> None:
    path, inside, most = tmp_path / "x.lock", [0], [0]

    def use() -> None:
        for _ in range(20):
            with user_folders.locked(path) as held:
                assert held
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.001)
                inside[0] -= 1

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (inside, most) == ([0], [1])
    assert not path.exists()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    program = f"""
import os, pathlib, signal
from felixlike._util import user_folders
with user_folders.locked(pathlib.Path({str(path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == -9
    assert path.exists()
    with user_folders.locked(path, seconds=0.0) as held:
        assert held


def _refusing(number: int) -> Callable[..., None]:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EACCES, errno.ENOLCK, errno.EIO])
def test_a_file_system_without_locks_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(fcntl, "flock", _refusing(number))
    with pytest.warns(StorageWarning, match=os.strerror(number)), user_folders.locked(tmp_path / "x.lock") as held:
        assert not held


def test_a_lock_file_that_cannot_be_created_warns(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(StorageWarning), user_folders.locked(tmp_path / "file" / "x.lock") as held:
        assert not held


@pytest.mark.parametrize("kind", ["link", "named pipe"])
def test_a_lock_file_that_is_none_is_neither_followed_nor_waited_for(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "x.lock", tmp_path / "other"
    path.symlink_to(other) if kind == "link" else os.mkfifo(path)
    with pytest.warns(StorageWarning), user_folders.locked(path) as held:
        assert not held
    assert not other.exists()
