"""A candidate's process where it runs on a server: connect, look at the machine, send, call, check, time.

In: one request of an RpcPool. Out: its answer, the same that a local candidate gives, and of the server: its device, or
why it is unfit, or that the connection was lost. The user's process never talks to servers itself, so nothing that
hangs here holds it up, and what a server makes TVM's client do happens without the user's rights.
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
    """Give this process's rights away (see `sandbox`), then `visit`.  channel: the descriptor of the answer's channel.

    The server's name is resolved before: that reads files and asks other machines."""
    started = time.perf_counter()
    host, port, password = request["server"]
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
        sandbox.enter(_files(request), port, keep=channel)
    except OSError as error:
        message = f"no session was begun: {error.strerror or error}"
        elapsed = time.perf_counter() - started
        return {"status": Status.CRASHED, "message": message, "lost": "before", "elapsed": elapsed}
    return visit({**request, "server": [address, port, password]})


def _files(request: Message) -> Iterator[Path]:
    """What a session reads here."""
    yield Path(request["assistant"])
    if request["library"] is not None:
        yield Path(request["library"]).parent
    for argument in (request["run"] or {}).get("arguments", ()):
        yield from (Path(argument[name]) for name in ("file", "reference") if argument[name] is not None)


def visit(request: Message) -> Message:
    """server: host, port, password.  seconds: for the session.  assistant: file of its library.  target: TVM's text.
    memory: bytes for the session.  library: file of the candidate, None to look at the machine only.  run: the run
    request of runner.run.  survey: whether to look at the version, too.

    More in the answer: device: its name.  version: of TVM there, if asked to.  unfit: how the server differs from the
    target.  lost: "before" the candidate was there, or "during" its run."""
    started = time.perf_counter()
    session = None
    stage = "before"
    answer: Message
    try:
        host, port, password = request["server"]
        session = _tvm.rpc.connect(host, port, password, session_timeout=request["seconds"])
        target = _tvm.Target(request["target"])
        assistant = CrashGuard(session, Path(request["assistant"]))
        found = server_machine.look(session, assistant, target)
        answer = {"status": Status.OK, "device": found.name, "unfit": server_machine.unfit(found, target)}
        if request["survey"]:
            answer["version"] = server_machine.version(session, assistant)
        if request["library"] is not None and not answer["unfit"]:
            stage = "during"
            assistant.limit_memory(request["memory"])
            answer.update(_run(session, target, request))
    except Exception as error:
        failure = runner.failure(error, Status.RUN_ERROR, started)
        # A server that ends a session says so, unless something else was being sent.
        late = isinstance(error, _tvm.SessionTimeout) or failure["elapsed"] > request["seconds"]
        if stage == "during" and late:
            answer = {"status": Status.TIMEOUT, "message": f"stopped after {failure['elapsed']:.1f} s"}
        elif stage == "during" and _alive(session):
            answer = failure
        else:
            answer = {"status": Status.CRASHED, "message": failure["message"], "lost": stage}
    return {**answer, "elapsed": time.perf_counter() - started}


def _run(session: Any, target: Any, request: Message) -> Message:
    """What a local candidate's process does once it has built."""
    library = Path(request["library"])
    session.upload(str(library))
    built = runner.Built.beside(session.load_module(library.name), library)
    return runner.run(built, _tvm.remote_device(session, target), request["run"])[0]


def _alive(session: Any) -> bool:
    try:
        session.get_function("runtime.NumThreads")()
    except Exception:
        return False
    return True
