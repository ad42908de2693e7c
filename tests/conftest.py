"""What all tests share: golden texts, a cache of their own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.loopback import Loopback

# Before anything asks for it: tests must not use, nor fill, the user's cache of smooth formulas.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="felixlike-tests-")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TVM_NUM_THREADS", "2")

_GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """--update-golden rewrites the expected texts."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/*.txt")


@pytest.fixture(scope="session")
def loopback() -> Iterator[Loopback]:
    """A tracker with two servers under the key cpu, and two under mortal, which a test may kill."""
    pytest.importorskip("tornado", reason="TVM's tracker needs tornado")
    with Loopback() as opened:
        opened.start(cpu=2, mortal=2)
        yield opened


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
