"""Define the Run of a store: a tuning run's model, device, versions, cost model and seed."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from felixlike._version import __version__
from felixlike.hardware import device_name

if TYPE_CHECKING:
    from felixlike.frontend.task import Task


@dataclass(frozen=True, slots=True)
class Run:
    """Tuning run.

    Attributes:
        id: Random identifier.
        model: Digest of the tasks' keys, equal for models with the same tasks on the same target.
        device: Name of the device (see `Record`).
        target: TVM's text of the target.
        tvm: Version of TVM.
        felixlike: Version of felixlike.
        weights: Digest of the cost model's weights at the beginning of the run.
        seed: Seed of the run.
    """

    id: str
    model: str
    device: str
    target: str
    tvm: str
    felixlike: str
    weights: str
    seed: int


def make_run(tasks: "Sequence[Task]", *, weights: str, seed: int) -> Run:
    """Make the Run of a tuning run that begins now, on the target's device.

    Args:
        tasks: At least one task; all have the same target.
        weights: Digest of the cost model's weights.
        seed: Seed of the run.
    """
    target = tasks[0].target
    keys = " ".join(sorted({task.key for task in tasks}))
    return Run(
        id=secrets.token_hex(16),
        model=hashlib.sha256(keys.encode()).hexdigest()[:32],
        device=device_name(target),
        target=str(target),
        tvm=metadata.version("apache-tvm"),
        felixlike=__version__,
        weights=weights,
        seed=seed,
    )
