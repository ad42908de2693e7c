"""Run a candidate on a server: connect, identify the machine, upload, call, check, time.

The input is one request of an RpcPool. The output is the answer of a local candidate, and the server's device, why it
is unsuitable, or that the connection was lost. Only this process communicates with servers, so a session that hangs
does not block the user's process, and a server that controls TVM's client does not have the user's rights.
"""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from felixlike import _tvm
from felixlike.measure.check import runner
from felixlike.measure.child import sandbox, server_machine
from felixlike.measure.crash_guard import CrashGuard
from felixlike.measure.measurement import Status
from felixlike.measure.messages import Message


def visit_without_rights(request: Message, channel: int) -> Message:
    """Enter the sandbox (see `sandbox`), then call `visit`; `channel` is the descriptor of the answer's channel.

    The server's name is resolved before, since that reads files and connects to other machines."""
    started = time.perf_counter()
    host, port, password = request["server"]
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
        sandbox.enter(_files(request), port, keep=channel)
    except OSError as error:
        message = f"the session could not be started: {error.strerror or error}"
        elapsed = time.perf_counter() - started
        return {"status": Status.CRASHED, "message": message, "lost": "before", "elapsed": elapsed}
    return visit({**request, "server": [address, port, password]})


def _files(request: Message) -> Iterator[Path]:
    """Yield the files and folders that a session reads on this machine."""
    yield Path(request["assistant"])
    if request["library"] is not None:
        yield Path(request["library"]).parent
    for argument in (request["run"] or {}).get("arguments", ()):
        yield from (Path(argument[name]) for name in ("file", "reference") if argument[name] is not None)


def visit(request: Message) -> Message:
    """Open a session with a server, identify the machine, and run a candidate there.

    Args:
        request: A message with these keys. "server": host, port and password. "seconds": time limit of the session, s.
            "assistant": path of the library of `crash_guard`. "target": TVM's text. "memory": memory limit of the
            session, bytes. "library": path of the candidate, or None to identify the machine only. "run": the run
            request of `runner.run`. "survey": whether to return the version of TVM.

    Returns:
        The candidate's answer with these keys. "device": name of the server's device. "version": version of TVM there,
        if requested. "unfit": how the server differs from the target. "lost": the session ended "before" the candidate
        ran or "during" its run.
    """
    started = time.perf_counter()
    session = None
    stage = "before"
    answer: Message
    try:
        host, port, password = request["server"]
        session = _tvm.rpc.connect(host, port, password, session_timeout=request["seconds"])
        target = _tvm.Target(request["target"])
        assistant = CrashGuard(session, Path(request["assistant"]))
        machine = server_machine.look(session, assistant, target)
        answer = {"status": Status.OK, "device": machine.name, "unfit": server_machine.unfit(machine, target)}
        if request["survey"]:
            answer["version"] = server_machine.version(session, assistant)
        if request["library"] is not None and not answer["unfit"]:
            stage = "during"
            assistant.limit_memory(request["memory"])
            answer.update(_run(session, target, request))
    except Exception as error:
        failure = runner.failure(error, Status.RUN_ERROR, started)
        # A server that ends a session at its time limit reports it, unless other data was being sent.
        late = isinstance(error, _tvm.SessionTimeout) or failure["elapsed"] > request["seconds"]
        if stage == "during" and late:
            answer = {"status": Status.TIMEOUT, "message": f"stopped after {failure['elapsed']:.1f} s"}
        elif stage == "during" and _alive(session):
            answer = failure
        else:
            answer = {"status": Status.CRASHED, "message": failure["message"], "lost": stage}
    return {**answer, "elapsed": time.perf_counter() - started}


def _run(session: Any, target: Any, request: Message) -> Message:
    """Upload the candidate's library and call, check and time it as a local candidate's process does."""
    library = Path(request["library"])
    session.upload(str(library))
    built = runner.Built.beside(session.load_module(library.name), library)
    return runner.run(built, _tvm.remote_device(session, target), request["run"])[0]


def _alive(session: Any) -> bool:
    """Return whether the server still answers."""
    try:
        session.get_function("runtime.NumThreads")()
    except Exception:
        return False
    return True
