import os
import signal
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from felixlike.errors import WorkerFailed
from felixlike.measure.local import fork_client
from felixlike.measure.local.fork_client import ForkServer, ServerDied


def test_the_error_of_a_server_that_does_not_start_has_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        fork_client, "COMMAND", (fork_client.COMMAND[0], "-c", "raise SystemExit('no TVM on this machine')")
    )
    server = ForkServer(tmp_path, threads=1)
    with pytest.raises(WorkerFailed, match=r"no TVM on this machine.*felixlike doctor"):
        server.fork()


def test_a_missing_interpreter_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_client, "COMMAND", (str(tmp_path / "python"),))
    with pytest.raises(WorkerFailed, match="No such file"):
        ForkServer(tmp_path, threads=1).start()


def test_processes_end_if_their_channel_closes_or_they_are_killed(tmp_path: Path) -> None:
    server = ForkServer(tmp_path, threads=1)
    try:
        process, channel = server.fork()
        channel.close()
        assert server.end(process, kill=False).status == 1  # it read the end of its channel and exited
        process, channel = server.fork()
        with channel:
            assert server.end(process, kill=True).status == -9
        generation = server.generation
        assert server.alive(generation)
    finally:
        server.close()
    assert not server.alive(generation)
    with pytest.raises(ServerDied):
        server.end(process, kill=True)


def test_a_dropped_process_is_killed_and_requests_go_on(tmp_path: Path) -> None:
    server = ForkServer(tmp_path, threads=1)
    try:
        process, channel = server.fork()
        with channel:
            server.drop(process)
            assert channel.recv(1) == b""
            for _ in range(100):  # its files are closed some time before it can be waited for
                other, channel_of_other = server.fork()
                with channel_of_other:
                    assert server.end(other, kill=True).status == -9
                if not psutil.pid_exists(process):  # the server has waited for it
                    break
            else:
                pytest.fail("the server did not wait for the dropped process")
            assert server.generation == 1
    finally:
        server.close()
    with pytest.raises(ServerDied):
        server.drop(process)


def test_processes_die_with_their_server(tmp_path: Path) -> None:
    server = ForkServer(tmp_path, threads=1)
    try:
        _, channel = server.fork()
        with channel:
            assert server._process is not None
            os.kill(server._process.pid, signal.SIGKILL)  # only the server, not its process group
            assert channel.recv(1) == b""
    finally:
        server.close()


def test_a_hanging_server_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ForkServer(tmp_path, threads=1)
    try:
        process, channel = server.fork()
        channel.close()
        assert server._process is not None
        os.kill(server._process.pid, signal.SIGSTOP)
        monkeypatch.setattr(fork_client, "_TIMEOUTS", replace(fork_client._TIMEOUTS, reply=1))
        with pytest.raises(ServerDied, match="within 1 s"):
            server.end(process, kill=True)
    finally:
        server.close()


def test_one_timeout_of_a_wait_is_tolerated(tmp_path: Path) -> None:
    """After a machine has slept, the deadline has passed although the reply is still to come."""
    server = ForkServer(tmp_path, threads=1)
    server._control = Mock(recv=Mock(side_effect=[TimeoutError, TimeoutError, b'{"process": 7}']))
    assert server._reply(3) == {"process": 7}
    server._control = Mock(recv=Mock(side_effect=[TimeoutError] * 3))
    with pytest.raises(ServerDied, match="within 3 s"):
        server._reply(3)
