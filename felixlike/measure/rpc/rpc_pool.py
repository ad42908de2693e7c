"""Measure candidates on the servers of a TVM tracker; this machine builds them."""

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
    """Pool of servers that measure for one target.

    `check` and `checks` run on this machine, since they verify what will run here.

    Args:
        target: Target of the tasks, a name or a TVM target. Servers whose device differs are not used.
        tracker: HOST:PORT of a tvm.exec.rpc_tracker.
        key: Key of the servers (tvm.exec.rpc_server --key).
        limits: Limits of one candidate; None for the defaults of `Limits`. `run_seconds` covers a whole session,
            including the upload.
        workers: Number of candidates that this machine builds at a time; None for the default of `MeasurePool`.
        reuse: Give a candidate the Measurement of an earlier one with the same generated code instead of running it.
        patience: How long to wait for a server while none is free, s.
        deadline: Ends builds and runs that exceed it; None for no limits but those of a candidate.

    Raises:
        TrackerFailed: The tracker cannot be reached or has no server under the key.
        WorkerFailed: There is no C compiler, which links the libraries for the servers.
        InvalidOption: An option is out of range.
        UnknownTarget: The target is unknown or a simulated device.

    Example:
        >>> with RpcPool("cpu", tracker="10.0.0.1:9190", key="graviton2") as pool:
        ...     measurements = pool.measure(task, candidates)
    """

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
        """Probe every free server and run the unscheduled task on it.

        Returns:
            The device, version and Measurement of each server.

        Raises:
            WorkerFailed: No server becomes free within `patience`.
        """
        return self._remote.survey(task)
