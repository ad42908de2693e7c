"""A task: one fused subgraph to be tuned, as one PrimFunc with static shapes."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """One subgraph of a model.

    name: for people, unique within a model.  module: IRModule {"main": PrimFunc}, static shapes, outputs last.
    target: the TVM target it is tuned for.  weight: call sites in the model.  flops: floating-point operations of
    one call.  key: the same for structurally equal PrimFuncs on the same target, in every process."""

    name: str
    module: Any
    target: Any
    weight: float
    flops: float
    key: str

    def __str__(self) -> str:
        return f"{self.name} (×{self.weight:g}, {self.flops / 1e6:.1f} MFLOP)"


def make_task(func: Any, target: Any, *, name: str, weight: float = 1.0) -> Task:
    """The task of one PrimFunc.  func: a PrimFunc; its own name and attributes do not enter the key."""
    import hashlib

    from felixlike import tvmlib

    # A private copy under the one name that traces know, so that equal bodies have equal keys.
    # Nor may the layouts of buffers be free: TVM's operators say so of their weights; but nothing says that they are
    # constant here, and what is not would be laid out anew in every call.
    main = tvmlib.without_attributes(func, "global_symbol", "op_pattern", "layout_free_buffers")
    main = main.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)
    module = tvmlib.IRModule({"main": main})
    digest = hashlib.sha256(f"{tvmlib.structural_hash(main)} {target}".encode()).hexdigest()
    return Task(
        name=name,
        module=module,
        target=target,
        weight=float(weight),
        flops=float(tvmlib.estimate_tir_flops(module)),
        key=digest[:32],
    )
