"""Describe the supported target kinds.

What is done to models, schedules and code of a kind is in tables by the kind's name: `frontend/rewrites/pipeline.py`,
`spaces/design.py` and `codegen/pipeline.py`. `spaces/pipelines.py` combines them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike.errors import UnknownTarget


@dataclass(frozen=True, slots=True)
class Kind:
    """Properties of a target kind.

    Attributes:
        name: TVM's name of the kind.
        device: TVM's name of the device that runs its code. Cost model weights are shipped under this name.
        needs: Target attributes that TVM's rules read.
        on_host: Whether code runs on the processors of the calling process.
        binds_threads: Whether loops run by being bound to threads, so that plain loops cannot run.
        waiting: Built candidates for each worker that wait for interleaved timing.
    """

    name: str
    device: str
    needs: tuple[str, ...]
    on_host: bool
    binds_threads: bool
    waiting: int


KINDS = {
    "llvm": Kind(
        name="llvm",
        device="cpu",
        needs=("num-cores",),
        on_host=True,
        binds_threads=False,
        waiting=8,  # all of a round, on two cores
    ),
    "cuda": Kind(
        name="cuda",
        device="cuda",
        needs=("arch", "max_threads_per_block", "max_shared_memory_per_block", "thread_warp_size"),
        on_host=False,
        binds_threads=True,
        waiting=1,  # a waiting process occupies GPU memory
    ),
}
"""The supported kinds by name."""


def kind_of(target: Any) -> Kind:
    """Return the kind of a TVM target.

    Args:
        target: A TVM target.

    Raises:
        UnknownTarget: If the kind is not supported.
    """
    name = str(target.kind.name)
    if name not in KINDS:
        raise UnknownTarget(f"targets of kind {name!r} are not supported", where="target", remedy='use "cpu" or "cuda"')
    return KINDS[name]
