import os
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest

from felixlike.errors import WorkerFailed
from felixlike.measure.local import fork_client
from felixlike.measure.local.fork_client import ForkServer, ServerDied


def test_a_server_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        fork_client, "_COMMAND", (fork_client._COMMAND[0], "-c", "raise SystemExit('no TVM on this machine')")
    )
    broken = ForkServer(tmp_path, threads=1)
    with pytest.raises(WorkerFailed, match=r"did not start \(it ended\): no TVM on this machine.*doctor"):
        broken.fork()


def test_an_interpreter_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_client, "_COMMAND", (str(tmp_path / "python"),))
    with pytest.raises(WorkerFailed, match=r"a process cannot be started: .*No such file"):
        ForkServer(tmp_path, threads=1).start()


def test_processes_end_with_their_channel_or_by_force(tmp_path: Path) -> None:
    running = ForkServer(tmp_path, threads=1)
    try:
        process, channel = running.fork()
        channel.close()
        assert running.end(process, kill=False).status == 1  # it heard nothing and left
        process, channel = running.fork()
        with channel:
            assert running.end(process, kill=True).status == -9
        generation = running.generation
        assert running.alive(generation)
    finally:
        running.close()
    assert not running.alive(generation)
    with pytest.raises(ServerDied):
        running.end(process, kill=True)


def test_processes_die_with_their_server(tmp_path: Path) -> None:
    running = ForkServer(tmp_path, threads=1)
    try:
        _, channel = running.fork()
        with channel:
            assert running._process is not None
            os.kill(running._process.pid, signal.SIGKILL)  # the server alone, not its group
            assert channel.recv(1) == b""
    finally:
        running.close()


def test_a_server_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = ForkServer(tmp_path, threads=1)
    try:
        process, channel = running.fork()
        channel.close()
        assert running._process is not None
        os.kill(running._process.pid, signal.SIGSTOP)
        monkeypatch.setattr(fork_client, "_REPLY_SECONDS", 1)
        with pytest.raises(ServerDied, match="no reply within 1 s"):
            running.end(process, kill=True)
    finally:
        running.close()


def test_a_wait_that_is_cut_short_is_one_of_many(tmp_path: Path) -> None:
    """As after a machine has slept: the deadline is over, the reply only comes then."""
    running = ForkServer(tmp_path, threads=1)
    running._control = Mock(recv=Mock(side_effect=[TimeoutError, TimeoutError, b'{"process": 7}']))
    assert running._reply(3) == {"process": 7}
    running._control = Mock(recv=Mock(side_effect=[TimeoutError] * 3))
    with pytest.raises(ServerDied, match="no reply within 3 s"):
        running._reply(3)
