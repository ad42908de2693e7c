"""The fork server has loaded whatever the processes that it forks need."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from felixlike.measure.local.fork_client import ForkServer


@pytest.mark.skipif(sys.platform != "linux", reason="looks at what a process has mapped")
def test_forked_processes_find_tvm_loaded(tmp_path: Path) -> None:
    running = ForkServer(tmp_path, threads=1)
    try:
        process, channel = running.fork()
        with channel:
            assert "libtvm" in Path(f"/proc/{process}/maps").read_text()
            running.end(process, kill=True)
    finally:
        running.close()
