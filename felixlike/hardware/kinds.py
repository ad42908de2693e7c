"""Kinds of targets: what differs between one and another, beside what is done to models, schedules and code for them.

That is in tables by a kind's name where it is done: `frontend/rewrites/pipeline.py`, `spaces/design.py` and
`codegen/pipeline.py`; `spaces/pipelines.py` puts them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from felixlike.errors import UnknownTarget


@dataclass(frozen=True, slots=True)
class Kind:
    """name: TVM's.  device: TVM's name of what its code runs on; weights of the cost model are shipped under it.
    needs: what TVM's rules read from a target.  on_host: code runs on the processors of the process that calls it, and
    not beside them.  binds_threads: loops are run by being bound to threads, so plain ones cannot run.  waiting: built
    candidates, for each worker, that wait for one another to be compared in turns."""

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
        waiting=8,  # on two cores, all of a round
    ),
    "cuda": Kind(
        name="cuda",
        device="cuda",
        needs=("arch", "max_threads_per_block", "max_shared_memory_per_block", "thread_warp_size"),
        on_host=False,
        binds_threads=True,
        waiting=1,  # a process that waits holds memory of the GPU
    ),
}
"""By their names."""


def kind_of(target: Any) -> Kind:
    """The kind of a TVM target.  Raises UnknownTarget for those that nothing is known of."""
    name = str(target.kind.name)
    if name not in KINDS:
        raise UnknownTarget(f"targets of kind {name!r} are not known", where="target", remedy='use "cpu" or "cuda"')
    return KINDS[name]
