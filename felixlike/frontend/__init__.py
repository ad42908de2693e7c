"""From a user's model to tasks: `import_model` reads any kind of model, `make_task` a single PrimFunc."""

from felixlike.frontend.imported import Imported, InputSpec
from felixlike.frontend.importer import import_model
from felixlike.frontend.shapes import parse_shapes
from felixlike.frontend.structure import Structure
from felixlike.frontend.task import Task, make_task

__all__ = ["Imported", "InputSpec", "Structure", "Task", "import_model", "make_task", "parse_shapes"]
