"""The part of `felixlike doctor` that tries out a tracker and its servers.

In: a tracker's address, a key or none, a target. Out: a Finding for the tracker, each key and each server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from felixlike import _tvm
from felixlike._util.wording import counted
from felixlike.cli.finding import Finding
from felixlike.errors import FelixlikeError

if TYPE_CHECKING:
    from felixlike.frontend import Task
    from felixlike.measure.rpc.server_probe import Seen
    from felixlike.measure.rpc.tracker import Servers

_PATIENCE_SECONDS = 10.0


def examine_servers(tracker: str, key: str | None, target: str) -> Iterator[Finding]:
    """Ask the tracker, then open a session with every server that is free and measure a small product there."""
    from felixlike.hardware import resolve_target
    from felixlike.measure.rpc.tracker import Tracker

    try:
        found = Tracker(tracker).servers()
    except FelixlikeError as error:
        yield Finding("tracker", tracker, error.what, _sentence(error.remedy))
        return
    yield Finding(
        "tracker", f"{tracker}, {counted(sum(len(servers.addresses) for servers in found.values()), 'server')}"
    )
    yield from _sessions()
    wanted = sorted(found) if key is None else [key]
    if not wanted:
        yield Finding("servers", "none", "no server is registered with the tracker", _start(tracker, "KEY"))
    for name in wanted:
        if name not in found:
            others = f"keys with servers: {', '.join(found) or 'none'}"
            yield Finding(f"key {name}", others, "no server is registered under this key", _start(tracker, name))
            continue
        yield from _key(tracker, name, found[name], resolve_target(target))


def _sessions() -> Iterator[Finding]:
    """What a hostile server could do to this machine, if that is more than it must."""
    from felixlike.measure.child import sandbox

    lacking = sandbox.missing()
    if lacking:
        problem = f"for a hostile server this machine lacks {'; '.join(lacking)}"
        remedy = "See Security in docs/rpc.md."
        yield Finding("sessions", "with some of your rights", problem, remedy, fatal=False)


def _key(tracker: str, key: str, servers: Servers, target: Any) -> Iterator[Finding]:
    from felixlike.measure import RpcPool
    from felixlike.measure.rpc.server_pool import as_text

    yield Finding(f"key {key}", f"{counted(len(servers.addresses), 'server')}, {servers.free} free")
    try:
        with RpcPool(target, tracker=tracker, key=key, patience=_PATIENCE_SECONDS) as pool:
            tried = pool.survey(_product(target))
    except FelixlikeError as error:
        yield Finding(f"servers of {key}", "not tried", error.what, _sentence(error.remedy))
        return
    some_fit = any(not _problem(seen)[0] for seen in tried)
    for seen in tried:
        problem, remedy = _problem(seen)
        found = [seen.device] if seen.device else []
        found += [f"TVM {seen.version}"] if seen.version else []
        if seen.measurement is not None and not problem:
            found.append(f"a product of 64×64 matrices in {seen.measurement.seconds * 1e6:.1f} µs")
        yield Finding(f"server {as_text(seen.address)}", ", ".join(found), problem, remedy, fatal=not some_fit)
    for address in sorted(set(servers.addresses) - {seen.address for seen in tried}):
        yield Finding(
            f"server {as_text(address)}",
            "not tried",
            "it is registered but not free",
            "It may be at work for somebody; if it stays so, start it again.",
            fatal=False,
        )


def _problem(seen: Seen) -> tuple[str, str]:
    """(what is wrong with a server, what to do); empty if nothing."""
    if seen.problem:
        return seen.problem, "" if "TVM_NUM_THREADS" in seen.problem else "See docs/rpc.md for what a server needs."
    if seen.version not in (_tvm.version(), "unknown"):
        return f"here TVM is {_tvm.version()}", "Install the same version on both machines."
    if seen.measurement is not None and seen.measurement.message:
        return f"a small product: {seen.measurement.status}, {seen.measurement.message}", "See what the server printed."
    return "", ""


def _product(target: Any) -> Task:
    """A product of two small matrices."""
    from felixlike.frontend import make_task

    te = _tvm.te
    a, b = te.placeholder((64, 64), name="a"), te.placeholder((64, 64), name="b")
    k = te.reduce_axis((0, 64), name="k")
    c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return make_task(te.create_prim_func([a, b, c]), target, name="product")


def _start(tracker: str, key: str) -> str:
    return f"Start one: python -m tvm.exec.rpc_server --tracker {tracker} --key {key}."


def _sentence(remedy: str) -> str:
    return remedy[:1].upper() + remedy[1:] + "." * bool(remedy)
