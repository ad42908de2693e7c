"""Share fixtures among all tests: the machine that schedules target, golden texts, and a temporary cache."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import exports
import pytest
from nursery import Nursery
from support.loopback import Loopback

from felixlike import codegen
from felixlike._util import cache, user_folders
from felixlike.hardware.presets import IMITATED, imitated
from felixlike.measure.local.fork_client import ForkServer
from felixlike.measure.sides.processes import Sides
from felixlike.search import predicted
from felixlike.tuning import in_context, timing

# Set these before any import reads them: tests must neither use nor fill the user's folders.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="felixlike-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="felixlike-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_DATA_HOME"], ignore_errors=True)

os.environ.pop("COLUMNS", None)  # printed tables must not depend on the terminal's width
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # inherited from a background process of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TVM_NUM_THREADS", "2")
exports.once_a_run()

_GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --update-golden, which rewrites the expected texts, and --device, which selects a described machine for all
    tests.
    """
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/*.txt")
    parser.addoption("--device", help="make schedules for this machine in all tests, as zen4 or zen4:8 (cores)")


def pytest_configure(config: pytest.Config) -> None:
    """Select the machine of --device for schedules, also in subprocesses of tests."""
    if config.getoption("--device"):
        os.environ[IMITATED] = config.getoption("--device")
    if (imitated_machine := imitated()) is not None:
        os.environ["TVM_NUM_THREADS"] = str(imitated_machine[1].cores)


def pytest_collection_finish() -> None:
    """Exclude torch, TVM and the tests from garbage collection, since they live until the end of the run."""
    gc.freeze()


_FIXED = "zen4"
"""The machine that schedules target in tests that do not depend on the host."""

_ABOUT_THE_HOST = ("_tvm", "_util", "hardware", "measure", "records", "tuning", "runtime", "cli", "usage")
"""Test folders in which schedules target the host, including the tests of whole runs."""


@pytest.fixture(autouse=True, scope="module")
def machine_of_schedules(request: pytest.FixtureRequest) -> Iterator[None]:
    """Target a described machine with schedules, so that tests do not depend on the host. Code is compiled for the
    host.
    """
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    with pytest.MonkeyPatch.context() as patch:
        if imitated() is None and folder not in _ABOUT_THE_HOST and not folder.endswith(".py"):
            patch.setenv(IMITATED, _FIXED)
        yield


@pytest.fixture(autouse=True, scope="session")
def small_budgets() -> Iterator[None]:
    """Time calls of whole models for milliseconds, and rank fewer points by prediction: tests do not need the best.

    Schedules are timed in the model, but `whole` lets no call be fast enough for a change, which would be by chance.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predicted, "_POOL", 128)
        patch.setattr(timing, "_SECONDS", 0.002)
        patch.setattr(timing, "_REST", 0.0)
        patch.setattr(timing, "_SECONDS_A_SIDE", 0.1)
        patch.setattr(in_context, "CONTEXT", replace(in_context.CONTEXT, seconds=0.02, whole=1.0))
        patch.setattr(Sides, "compare", partialmethod(Sides.compare, seconds_a_side=0.1))
        yield


@pytest.fixture(scope="session")
def loopback() -> Iterator[Loopback]:
    """Start a tracker with two servers under the key cpu."""
    pytest.importorskip("tornado", reason="TVM's tracker needs tornado")
    with Loopback() as opened:
        opened.start(cpu=2)
        yield opened


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Start the process that forks fork servers for all tests except those of the fork servers."""
    opened = Nursery()
    yield opened
    opened.close()


@pytest.fixture(autouse=True, scope="module")
def quick_servers(request: pytest.FixtureRequest, nursery: Nursery) -> Iterator[None]:
    """Start pools without loading TVM again. Tests in measure/ use regular servers."""
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    with pytest.MonkeyPatch.context() as patch:
        if folder != "measure" and hasattr(os, "pidfd_open"):
            patch.setattr(ForkServer, "_spawned", lambda server, control, log: nursery.spawned(server, control, log))
        yield


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the test's cache folder, and forget earlier warnings of the process about the cache."""
    monkeypatch.setattr(user_folders, "_told", False)
    monkeypatch.setattr(user_folders, "_waiting", "")
    monkeypatch.setattr(cache, "_memory", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "felixlike"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a function golden(name, text) that compares text with tests/golden/<name>.txt."""

    def check(name: str, text: str) -> None:
        path = _GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.rstrip() + "\n")
        if not path.exists():
            pytest.fail(f"{path} does not exist; make it with: pytest --update-golden")
        assert text.rstrip() + "\n" == path.read_text(), f"differs from {path}; if wanted: pytest --update-golden"

    return check


@pytest.fixture
def reused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that were not compiled again."""
    names: list[str] = []
    join = codegen.joined_kernels

    def joined(lowered: Any, target: Any, objects: Any, compiler: str) -> Any:
        names.extend(objects)
        return join(lowered, target, objects, compiler)

    monkeypatch.setattr(codegen, "joined_kernels", joined)
    return names
