"""What all tests share: a machine for which schedules are made, golden texts, a cache of their own."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import exports
import pytest
from nursery import Nursery
from support.loopback import Loopback

from felixlike._util import cache, user_folders
from felixlike.hardware.presets import IMITATED, imitated
from felixlike.measure.local.fork_client import ForkServer

# Before anything asks for them: tests must not use, nor fill, the user's own folders.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="felixlike-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="felixlike-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_DATA_HOME"], ignore_errors=True)

os.environ.pop("COLUMNS", None)  # what is printed must not depend on where the tests are run
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background, and inherited
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TVM_NUM_THREADS", "2")
exports.once_a_run()

_GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """--update-golden rewrites the expected texts; --device makes all tests those of a described machine."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/*.txt")
    parser.addoption("--device", help="make schedules for this machine in all tests, as zen4 or zen4:8 (cores)")


def pytest_configure(config: pytest.Config) -> None:
    """Schedules are made for the machine of --device from here on, also in processes that tests start."""
    if config.getoption("--device"):
        os.environ[IMITATED] = config.getoption("--device")
    if (found := imitated()) is not None:
        os.environ["TVM_NUM_THREADS"] = str(found[1].cores)


def pytest_collection_finish() -> None:
    """What torch, TVM and the tests consist of stays until the end: no collection of garbage goes through it again."""
    gc.freeze()


_FIXED = "zen4"
"""For whom schedules are made in rooms that have nothing to do with the machine that runs the tests."""

_ABOUT_THE_HOST = ("_tvm", "_util", "hardware", "measure", "records", "tuning", "runtime", "cli", "usage")
"""Rooms where schedules are made for the machine that runs them, and the tests of whole runs beside them."""


@pytest.fixture(autouse=True, scope="module")
def machine_of_schedules(request: pytest.FixtureRequest) -> Iterator[None]:
    """What decides about schedules does not depend on who runs the tests: code is for this machine, all else is as for
    a described one."""
    room = request.path.relative_to(Path(__file__).parent).parts[0]
    with pytest.MonkeyPatch.context() as patch:
        if imitated() is None and room not in _ABOUT_THE_HOST and not room.endswith(".py"):
            patch.setenv(IMITATED, _FIXED)
        yield


@pytest.fixture(scope="session")
def loopback() -> Iterator[Loopback]:
    """A tracker with two servers under the key cpu, and two under mortal, which a test may kill."""
    pytest.importorskip("tornado", reason="TVM's tracker needs tornado")
    with Loopback() as opened:
        opened.start(cpu=2, mortal=2)
        yield opened


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where fork servers come from in all rooms but the one that is about them."""
    opened = Nursery()
    yield opened
    opened.close()


@pytest.fixture(autouse=True, scope="module")
def quick_servers(request: pytest.FixtureRequest, nursery: Nursery) -> Iterator[None]:
    """Pools are ready without loading TVM once more; servers are tested as they are in measure/."""
    room = request.path.relative_to(Path(__file__).parent).parts[0]
    with pytest.MonkeyPatch.context() as patch:
        if room != "measure" and hasattr(os, "pidfd_open"):
            patch.setattr(ForkServer, "_spawned", lambda server, control, log: nursery.spawned(server, control, log))
        yield


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own cache folder, in a process that has not warned that it cannot be used."""
    monkeypatch.setattr(user_folders, "_told", False)
    monkeypatch.setattr(user_folders, "_waiting", "")
    monkeypatch.setattr(cache, "_memory", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "felixlike"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(name, text): text must equal tests/golden/<name>.txt."""

    def check(name: str, text: str) -> None:
        path = _GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.rstrip() + "\n")
        if not path.exists():
            pytest.fail(f"{path} does not exist; make it with: pytest --update-golden")
        assert text.rstrip() + "\n" == path.read_text(), f"differs from {path}; if wanted: pytest --update-golden"

    return check
