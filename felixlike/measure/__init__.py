"""Build, check and time candidates in separate processes.

Names are imported lazily: the fork server and `records` load only the modules that they use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from felixlike.measure.candidate import Schedulable, Untuned
    from felixlike.measure.interface import Pool
    from felixlike.measure.limits import Limits, Timing
    from felixlike.measure.measurement import Measurement, Status
    from felixlike.measure.pool import MeasurePool, measure
    from felixlike.measure.rpc.rpc_pool import RpcPool
    from felixlike.measure.simulated.simulated_pool import SimulatedPool

__all__ = [
    "Limits",
    "MeasurePool",
    "Measurement",
    "Pool",
    "RpcPool",
    "Schedulable",
    "SimulatedPool",
    "Status",
    "Timing",
    "Untuned",
    "measure",
]

_HOME = {
    "Limits": "limits",
    "MeasurePool": "pool",
    "Measurement": "measurement",
    "Pool": "interface",
    "RpcPool": "rpc.rpc_pool",
    "Schedulable": "candidate",
    "SimulatedPool": "simulated.simulated_pool",
    "Status": "measurement",
    "Timing": "limits",
    "Untuned": "candidate",
    "measure": "pool",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
