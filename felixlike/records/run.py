"""A tuning run as a store remembers it: which model, where, with what, and how long it took."""

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
    """id: at random.  model: the same for models with the same tasks on the same target.  device, target, tvm,
    felixlike: as in a Record.  weights: digest of the cost model's weights when the run began.  seed: of the run."""

    id: str
    model: str
    device: str
    target: str
    tvm: str
    felixlike: str
    weights: str
    seed: int


def make_run(tasks: "Sequence[Task]", *, weights: str, seed: int) -> Run:
    """A run over these tasks (at least one, all of one target) that begins now, on the target's device."""
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
