"""Measure on servers: a pool as MeasurePool, of a builder on this machine and the servers of a TVM tracker."""

from typing import Any

from felixlike._util import option_checks
from felixlike._util.deadline import Deadline
from felixlike.frontend.task import Task
from felixlike.hardware import require_real, resolve_target
from felixlike.measure.limits import Limits
from felixlike.measure.local.builder import Builder
from felixlike.measure.pool import WorkshopPool
from felixlike.measure.rpc.exports import linker
from felixlike.measure.rpc.remote import Remote
from felixlike.measure.rpc.server_pool import ServerPool
from felixlike.measure.rpc.server_probe import Seen


class RpcPool(WorkshopPool):
    """Servers that measure for one target.

    target: the TVM target of the tasks; servers whose device differs are not used.  tracker: HOST:PORT of a
    tvm.exec.rpc_tracker.  key: that of the servers (tvm.exec.rpc_server --key).  limits: run_seconds count for a whole
    session, sending included.  workers: how many candidates are built here at a time.  reuse, deadline: as
    MeasurePool's.  patience: how long to wait for a server while there is none, s.

    Raises TrackerFailed if the tracker cannot be reached or has no server under the key, WorkerFailed without a C
    compiler, which links what is sent.  Only `check`, which is for what will run on this machine, runs here."""

    def __init__(
        self,
        target: Any,
        *,
        tracker: str,
        key: str,
        limits: Limits | None = None,
        workers: int | None = None,
        reuse: bool = True,
        patience: float = 60.0,
        deadline: Deadline | None = None,
    ) -> None:
        patience = option_checks.real(
            patience, "patience", positive=True, finite=False, where="RpcPool", unit="seconds"
        )
        target = require_real(resolve_target(target), where="RpcPool")
        server_pool, compiler = ServerPool(tracker, key), linker()
        builder = Builder(target, limits=limits, workers=workers, reuse=reuse, deadline=deadline)
        self._remote = Remote(builder, server_pool, compiler=compiler, patience=patience)
        super().__init__(builder, self._remote)

    def survey(self, task: Task) -> tuple[Seen, ...]:
        """Try every server that is free now, also with the task as it is.  Raises WorkerFailed if there is none."""
        return self._remote.survey(task)
