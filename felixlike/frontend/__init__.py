"""Import a user's model and split it into tuning tasks.

`import_model` accepts every supported kind of model, `make_task` a single PrimFunc.
"""

from felixlike.frontend.imported import Imported, InputSpec, OutputSpec, TensorSpec
from felixlike.frontend.importers.importer import export_model, import_model
from felixlike.frontend.importers.input_shapes import parse_shapes
from felixlike.frontend.importers.relax import outputs_of
from felixlike.frontend.signature.mutations import NONE, Mutations
from felixlike.frontend.signature.signature import Signature
from felixlike.frontend.signature.sizes import Sizes
from felixlike.frontend.signature.structure import Structure
from felixlike.frontend.task import Task, make_task

__all__ = [
    "NONE",
    "Imported",
    "InputSpec",
    "Mutations",
    "OutputSpec",
    "Signature",
    "Sizes",
    "Structure",
    "Task",
    "TensorSpec",
    "export_model",
    "import_model",
    "make_task",
    "outputs_of",
    "parse_shapes",
]
