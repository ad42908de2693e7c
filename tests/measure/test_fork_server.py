"""The fork server has loaded TVM before it forks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from felixlike.measure.local.fork_client import ForkServer


@pytest.mark.skipif(sys.platform != "linux", reason="looks at what a process has mapped")
def test_forked_processes_have_tvm_loaded(tmp_path: Path) -> None:
    server = ForkServer(tmp_path, threads=1)
    try:
        process, channel = server.fork()
        with channel:
            assert "libtvm" in Path(f"/proc/{process}/maps").read_text()
            server.end(process, kill=True)
    finally:
        server.close()
