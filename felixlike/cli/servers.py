"""Check a tracker and its servers for `felixlike doctor`.

Inputs: a tracker's address, a key or None, a target. Output: a Finding for the tracker, for each key and for each
server.
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
"""Seconds to wait for a server."""


def examine_servers(tracker: str, key: str | None, target: str) -> Iterator[Finding]:
    """Query the tracker, then measure a small matrix product on every free server."""
    from felixlike.hardware import resolve_target
    from felixlike.measure.rpc.tracker import Tracker

    try:
        servers_by_key = Tracker(tracker).servers()
    except FelixlikeError as error:
        yield Finding("tracker", tracker, error.what, _sentence(error.remedy))
        return
    yield Finding(
        "tracker", f"{tracker}, {counted(sum(len(servers.addresses) for servers in servers_by_key.values()), 'server')}"
    )
    yield from _sessions()
    keys = sorted(servers_by_key) if key is None else [key]
    if not keys:
        yield Finding("servers", "none", "no server is registered with the tracker", _start(tracker, "KEY"))
    for name in keys:
        if name not in servers_by_key:
            others = f"keys with servers: {', '.join(servers_by_key) or 'none'}"
            yield Finding(f"key {name}", others, "no server is registered under this key", _start(tracker, name))
            continue
        yield from _key(tracker, name, servers_by_key[name], resolve_target(target))


def _sessions() -> Iterator[Finding]:
    """Report which protections against hostile servers this machine lacks."""
    from felixlike.measure.child import sandbox

    missing = sandbox.missing()
    if missing:
        problem = f"this machine lacks protections against hostile servers: {'; '.join(missing)}"
        remedy = "See the section Security in docs/rpc.md."
        yield Finding("sessions", "run with some of your permissions", problem, remedy, fatal=False)


def _key(tracker: str, key: str, servers: Servers, target: Any) -> Iterator[Finding]:
    """Check the servers under one key."""
    from felixlike.measure import RpcPool
    from felixlike.measure.rpc.server_pool import as_text

    yield Finding(f"key {key}", f"{counted(len(servers.addresses), 'server')}, {servers.free} free")
    try:
        with RpcPool(target, tracker=tracker, key=key, patience=_PATIENCE_SECONDS) as pool:
            probes = pool.survey(_product(target))
    except FelixlikeError as error:
        yield Finding(f"servers of {key}", "not checked", error.what, _sentence(error.remedy))
        return
    some_fit = any(not _problem(probe)[0] for probe in probes)
    for probe in probes:
        problem, remedy = _problem(probe)
        facts = [probe.device] if probe.device else []
        facts += [f"TVM {probe.version}"] if probe.version else []
        if probe.measurement is not None and not problem:
            facts.append(f"a product of 64×64 matrices in {probe.measurement.seconds * 1e6:.1f} µs")
        yield Finding(f"server {as_text(probe.address)}", ", ".join(facts), problem, remedy, fatal=not some_fit)
    for address in sorted(set(servers.addresses) - {probe.address for probe in probes}):
        yield Finding(
            f"server {as_text(address)}",
            "not checked",
            "it is registered but not free",
            "Another client may be using it; restart it if it stays busy.",
            fatal=False,
        )


def _problem(probe: Seen) -> tuple[str, str]:
    """Return (problem, remedy) of a server; empty strings if it has none."""
    if probe.problem:
        return probe.problem, "" if "TVM_NUM_THREADS" in probe.problem else "See docs/rpc.md for what a server needs."
    if probe.version not in (_tvm.version(), "unknown"):
        return f"TVM on this machine is {_tvm.version()}", "Install the same version on both machines."
    if probe.measurement is not None and probe.measurement.message:
        return (
            f"measuring a small product failed: {probe.measurement.status}, {probe.measurement.message}",
            "Check the output of the server.",
        )
    return "", ""


def _product(target: Any) -> Task:
    """Create the task of a product of two 64×64 matrices."""
    from felixlike.frontend import make_task

    te = _tvm.te
    a, b = te.placeholder((64, 64), name="a"), te.placeholder((64, 64), name="b")
    k = te.reduce_axis((0, 64), name="k")
    c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return make_task(te.create_prim_func([a, b, c]), target, name="product")


def _start(tracker: str, key: str) -> str:
    """Return the remedy that starts a server."""
    return f"Start one: python -m tvm.exec.rpc_server --tracker {tracker} --key {key}."


def _sentence(remedy: str) -> str:
    """Return a remedy as a sentence."""
    return remedy[:1].upper() + remedy[1:] + "." * bool(remedy)
