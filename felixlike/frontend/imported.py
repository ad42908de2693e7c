"""What the frontend hands on: a fused Relax module, its inputs and outputs, and the tasks in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from felixlike.errors import FelixlikeWarning, InputUnchangedWarning, TrainingModeWarning
from felixlike.frontend.signature.signature import Signature
from felixlike.frontend.signature.structure import Structure
from felixlike.frontend.task import Task


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor.  name: for people.  shape: sizes, all known.  dtype: "float32", "int64", …"""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


class InputSpec(TensorSpec):
    """One input tensor.  name: as the model calls it, or where it stands in its arguments: state['h'][1]."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class OutputSpec(TensorSpec):
    """One output tensor.  name: where it stands in the output, as code would reach it: output["logits"][0].
    order: of its dimensions in memory, from the slowest to the fastest; empty for a tensor that lies row by row."""

    order: tuple[int, ...] = ()

    def __str__(self) -> str:
        return TensorSpec.__str__(self)


@dataclass(frozen=True, slots=True)
class Source:
    """A model as read, before any pass.

    name: for people.  module: Relax IRModule with "main", parameters bound.  signature: how it is called.  structure:
    of the outputs.  examples: a torch tensor per input, the user's own where given.  original: the model as given, with
    which the compiled one is compared (`originals.original_of`).  made: which examples were made from sizes alone.
    note: what is to be said of the examples, in words; empty if nothing.  orders: the memory order of each output, in
    which the module returns its dimensions; empty where all lie row by row.  changed_inputs: names of those that the
    model changes in place, and the module does not.  training: the parts of an nn.Module that were in training mode and
    compute something else in eval mode, in which it was read."""

    name: str
    module: Any
    signature: Signature
    structure: Structure
    examples: tuple[Any, ...]
    original: Any
    made: frozenset[int] = frozenset()
    note: str = ""
    orders: tuple[tuple[int, ...], ...] = ()
    changed_inputs: tuple[str, ...] = ()
    training: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Imported:
    """A model ready to be tuned and compiled.

    name: for people.  module: fused Relax IRModule; parameters are constants in it.  inputs: in calling order.
    signature: how they are given.  structure: how outputs are given back.  target: the TVM target.  tasks: heaviest
    first (weight × flops), then by name.  functions: a task's key → the names of the module's functions it stands for.
    examples: a torch tensor per input; the user's own where given, else drawn (`examples.drawn`).
    original, note, orders, changed_inputs, training: see Source."""

    name: str
    module: Any
    inputs: tuple[InputSpec, ...]
    signature: Signature
    structure: Structure
    target: Any
    tasks: tuple[Task, ...]
    functions: Mapping[str, tuple[str, ...]]
    examples: tuple[Any, ...]
    original: Any
    note: str = ""
    orders: tuple[tuple[int, ...], ...] = ()
    changed_inputs: tuple[str, ...] = ()
    training: tuple[str, ...] = ()


def warnings_of(source: Source | Imported) -> list[FelixlikeWarning]:
    """What a user must know of how a model was read."""
    found: list[FelixlikeWarning] = []
    if source.training:
        parts = f"{', '.join(source.training[:3])}{' and others' if len(source.training) > 3 else ''}"
        found.append(
            TrainingModeWarning(
                f"{source.name} is in training mode, and was optimized in eval mode, where {parts} computes something"
                " else. Call model.eval() first."
            )
        )
    if source.changed_inputs:
        found.append(
            InputUnchangedWarning(
                f"{source.name} changes {', '.join(source.changed_inputs)} in place. The optimized model gives the same"
                " outputs, but leaves the caller's tensors as they are."
            )
        )
    return found
