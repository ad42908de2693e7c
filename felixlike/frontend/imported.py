"""Define the frontend's result: a fused Relax module, its inputs and outputs, and its tasks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from felixlike.errors import FelixlikeWarning, TrainingModeWarning
from felixlike.frontend.signature.mutations import NONE, Mutations
from felixlike.frontend.signature.signature import Signature
from felixlike.frontend.signature.structure import Structure
from felixlike.frontend.task import Task


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Describe one tensor.

    Attributes:
        name: Display name.
        shape: Sizes, all known.
        dtype: Element type, such as "float32" or "int64".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


class InputSpec(TensorSpec):
    """Describe one input tensor.

    `name` is the parameter's name, or the tensor's place in the arguments as code reaches it: `state['h'][1]`.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class OutputSpec(TensorSpec):
    """Describe one output tensor.

    `name` is the tensor's place in the output as code reaches it: `output["logits"][0]`.

    Attributes:
        order: Dimensions from the slowest to the fastest in memory. Empty for a contiguous (row-major) tensor.
    """

    order: tuple[int, ...] = ()

    def __str__(self) -> str:
        return TensorSpec.__str__(self)


@dataclass(frozen=True, slots=True)
class Source:
    """Hold a model as read, before any pass.

    Attributes:
        name: Display name.
        module: Relax IRModule with "main". Parameters are bound as constants.
        signature: How the model is called.
        structure: Nesting of the outputs.
        examples: One torch tensor per input, the user's own where provided.
        original: The model as the user passed it, the reference for the compiled one (`originals.original_of`).
        made: Indices of the examples that were made from sizes alone.
        note: A remark on the examples for the report. Empty if there is none.
        orders: Memory order of each output, in which the module returns its dimensions. Empty if all are contiguous.
        roots: For each output the number of the tensor that it is, or is a view of, in PyTorch: that of an input, or
            one from the number of inputs on. Empty if outputs share memory with nothing.
        mutations: What the model changes in place. The module takes and returns further tensors for it.
        training: Parts of an nn.Module that were in training mode and compute something else in eval mode, in which
            the model was read.
        unbounded: Names of dynamic sizes without an upper bound, for which one was chosen.
        assumed: Conditions on dynamic sizes that were taken as facts when the module was made
            (`torch_compat.assumed_of_sizes`), and which `original` may not need.
        needed: Such conditions that were taken as facts when `original`, a program, was exported.
    """

    name: str
    module: Any
    signature: Signature
    structure: Structure
    examples: tuple[Any, ...]
    original: Any
    made: frozenset[int] = frozenset()
    note: str = ""
    orders: tuple[tuple[int, ...], ...] = ()
    roots: tuple[int, ...] = ()
    mutations: Mutations = NONE
    training: tuple[str, ...] = ()
    unbounded: tuple[str, ...] = ()
    assumed: tuple[Any, ...] = ()
    needed: tuple[Any, ...] = ()

    def imported(
        self,
        module: Any,
        target: Any,
        *,
        inputs: tuple[InputSpec, ...],
        tasks: tuple[Task, ...],
        functions: Mapping[str, tuple[str, ...]],
    ) -> "Imported":
        """Return the model with its fused module and its tasks. See `Imported` for the arguments."""
        return Imported(
            name=self.name,
            module=module,
            inputs=inputs,
            signature=self.signature,
            structure=self.structure,
            target=target,
            tasks=tasks,
            functions=functions,
            examples=self.examples,
            original=self.original,
            note=self.note,
            orders=self.orders,
            roots=self.roots,
            mutations=self.mutations,
            training=self.training,
        )


@dataclass(frozen=True, slots=True)
class Imported:
    """Hold a model that is ready to be tuned and compiled.

    Attributes:
        name: Display name.
        module: Fused Relax IRModule. Parameters are constants in it.
        inputs: Input tensors in calling order.
        signature: How the inputs are passed.
        structure: How the outputs are nested.
        target: TVM target.
        tasks: Tasks sorted by descending weight × flops, then by name.
        functions: Maps a task's key to the names of the module's functions that it stands for.
        examples: One torch tensor per input, the user's own where provided, otherwise drawn (`examples.drawn`).
        original: See `Source`.
        note: See `Source`.
        orders: See `Source`.
        roots: See `Source`.
        mutations: See `Source`.
        training: See `Source`.
    """

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
    roots: tuple[int, ...] = ()
    mutations: Mutations = NONE
    training: tuple[str, ...] = ()


def warnings_of(source: Source | Imported) -> list[FelixlikeWarning]:
    """Return the warnings for the user about how a model was read."""
    warnings: list[FelixlikeWarning] = []
    if source.training:
        parts = f"{', '.join(source.training[:3])}{' and others' if len(source.training) > 3 else ''}"
        warnings.append(
            TrainingModeWarning(
                f"{source.name} is in training mode but was optimized in eval mode, which changes the outputs of"
                f" {parts}. Call model.eval() first."
            )
        )
    return warnings
