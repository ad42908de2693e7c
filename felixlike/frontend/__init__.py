"""From a user's model to tasks: `import_model` reads any kind of model, `make_task` a single PrimFunc."""

from felixlike.frontend.imported import Imported, InputSpec, OutputSpec, TensorSpec
from felixlike.frontend.importer import import_model
from felixlike.frontend.relax import outputs_of
from felixlike.frontend.shapes import parse_shapes
from felixlike.frontend.signature import Signature
from felixlike.frontend.sizes import Sizes
from felixlike.frontend.structure import Structure
from felixlike.frontend.task import Task, make_task

__all__ = [
    "Imported",
    "InputSpec",
    "OutputSpec",
    "Signature",
    "Sizes",
    "Structure",
    "Task",
    "TensorSpec",
    "import_model",
    "make_task",
    "outputs_of",
    "parse_shapes",
]
