"""All processes and files of a pool are removed when the user's process ends, also by a signal."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

# A user's script. It prints the server's process id and the pool's folder, then measures a candidate that hangs.
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from support.faulty import calling, matmul, task_of, tiled
from felixlike.measure import Limits, MeasurePool

task = task_of(matmul())
with MeasurePool(task.target, limits=Limits(run_seconds=100.0)) as pool:
    pool.measure(task, [tiled()])
    processes = pool._builder.processes
    print(processes.server._process.pid, processes.directory, flush=True)
    pool.measure(task, [calling(task.module["main"], "pause")])
"""


def members(session: int) -> list[int]:
    """Return the processes of a session that are not zombies."""
    processes = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state != "Z":
            processes.append(int(entry.name))
    return processes


def until_gone(session: int, directory: Path) -> None:
    deadline = time.monotonic() + 20
    while members(session) or directory.exists():
        assert time.monotonic() < deadline, (members(session), directory.exists())
        time.sleep(0.02)


def _enable_interrupts() -> None:
    """Enable Ctrl-C. A shell starts background jobs with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_processes_and_files_are_removed(how: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, preexec_fn=_enable_interrupts, **pipes) as user:
        assert user.stdout is not None
        assert user.stderr is not None
        session, directory = user.stdout.readline().split()
        deadline = time.monotonic() + 20
        while len(members(int(session))) < 2:  # the server and the hanging candidate
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.2)
        user.send_signal(how)
        assert user.wait(20) != 0
        if how is signal.SIGINT:
            assert "KeyboardInterrupt" in user.stderr.read()
    until_gone(int(session), Path(directory))
    while list(tmp_path.iterdir()):  # the folder of the user's process is removed last
        assert time.monotonic() < deadline + 20
        time.sleep(0.02)
