"""Describe how a model's inputs or outputs are nested, rebuild them from flat tensors, and store the nesting as JSON.

It is built on torch's pytrees. Only data is written and read. Types that torch would import or evaluate when reading
(defaultdict, enums as keys) are refused, and classes must be registered with torch by their own library.
"""

import importlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from felixlike._util.torch_compat import pytree
from felixlike._util.torch_modes import alone
from felixlike._util.wording import counted, shown
from felixlike.errors import InvalidArtefact, InvalidModel

_PLAIN = ("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict")
SCALARS = (type(None), bool, int, float, str)
"""Types of constants among the leaves."""

_LIBRARIES = ("transformers.",)
"""Packages whose classes may be imported on reading. The user must import any others beforehand."""


def _only(tensors: Sequence[Any]) -> Any:
    """Return the only tensor. Dynamo cannot trace `operator.itemgetter`."""
    return tensors[0]


@dataclass(frozen=True, slots=True)
class Structure:
    """Describe the nesting of a model's inputs or outputs.

    Attributes:
        spec: torch's TreeSpec, or None for a single tensor.
        constants: (index, value) of each leaf that is not a tensor (None, numbers, strings). All other leaves are
            tensors, in order.
    """

    spec: Any = None
    constants: tuple[tuple[int, Any], ...] = ()

    def builder(self) -> Callable[[Sequence[Any]], Any]:
        """Return a function that nests a sequence of tensors, one per leaf that is not constant.

        Flat tuples and lists, the common cases, skip torch's pytrees, which take longer than a small model.
        """
        if self.spec is None:
            return _only
        flat = all(child.is_leaf() for child in self.spec.children())
        if flat and self.spec.type in (tuple, list) and not self.constants:
            plain: Callable[[Sequence[Any]], Any] = self.spec.type
            return plain
        return self._nest

    def _nest(self, tensors: Sequence[Any]) -> Any:
        """Insert the constants between the tensors and nest the result."""
        leaves = list(tensors)
        for index, value in self.constants:
            leaves.insert(index, value)
        return pytree().tree_unflatten(leaves, self.spec)

    def places(self) -> tuple[str, ...]:
        """Return where each tensor is in the output, as code reaches it."""
        if self.spec is None:
            return ("output",)
        count = self.spec.num_leaves - len(self.constants)
        tensors = [object() for _ in range(count)]
        try:
            paths, _ = pytree().tree_flatten_with_path(self._nest(tensors))
        except (ValueError, TypeError):  # the class is registered without key names
            return tuple(f"output {index}" for index in range(count))
        path_of = {id(leaf): pytree().keystr(path) for path, leaf in paths}
        return tuple(f"output{path_of[id(tensor)]}" for tensor in tensors)

    def to_json(self, where: str = "output") -> Any:
        """Return the structure as JSON data.

        Args:
            where: "output" or "input", for messages.

        Returns:
            JSON data, None for a single tensor.

        Raises:
            InvalidModel: A type cannot be named in a file, such as a plain namedtuple.
        """
        if self.spec is None:
            return None
        with pytree_warnings_off():
            try:
                tree = json.loads(pytree().treespec_dumps(self.spec))
                _check_tree(tree[1], where)
            except (NotImplementedError, TypeError, InvalidArtefact) as error:
                raise InvalidModel(
                    f"the model's {where} cannot be written to a file: {error}",
                    where=where,
                    remedy="use tuples, lists or dictionaries of tensors, or register the class as a torch pytree",
                ) from None
        return {"tree": tree, "constants": [list(pair) for pair in self.constants]}

    @classmethod
    def from_json(cls, data: Any, where: str = "output") -> "Structure":
        """Restore a structure from the data of `to_json`.  Raises InvalidArtefact for other data."""
        if data is None:
            return cls()
        with pytree_warnings_off():
            try:
                _check_tree(data["tree"][1], where)
                constants = tuple((int(index), value) for index, value in data["constants"])
                spec = pytree().treespec_loads(json.dumps(data["tree"]))
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, NotImplementedError) as error:
                raise InvalidArtefact(f"the structure of the {where}s cannot be read: {error}", where=where) from None
        for index, value in constants:
            if not isinstance(value, SCALARS) or not 0 <= index < spec.num_leaves:
                leaves = counted(spec.num_leaves, "leaf", "leaves")
                raise InvalidArtefact(f"invalid constant {shown(value)} at index {index} of {leaves}", where=where)
        return cls(spec, constants)


def structure_of(output: Any) -> Structure:
    """Return the structure of an example output, whose leaves are tensors or placeholders."""
    leaves, spec = pytree().tree_flatten(output)
    return structure_from_leaves(spec, leaves)


def structure_from_leaves(spec: Any, leaves: Sequence[Any]) -> Structure:
    """Return the structure of a TreeSpec with these leaves.

    None, numbers and strings are constants, all other leaves are tensors.
    """
    constants = tuple((index, leaf) for index, leaf in enumerate(leaves) if isinstance(leaf, SCALARS))
    if len(leaves) == 1 and not constants and spec.is_leaf():
        return Structure()
    return Structure(spec, constants)


def _check_tree(node: Any, where: str) -> None:
    """Refuse types that torch's reader would import or evaluate, and import classes of known libraries."""
    kind, context, children = node["type"], node["context"], node["children_spec"]
    if "__enum__" in json.dumps(context):
        raise InvalidArtefact(f"keys of the {where} are enumeration members", where=where)
    if kind is not None and kind not in _PLAIN:
        _require_class(kind, where)
    for child in children:
        _check_tree(child, where)


def _require_class(kind: str, where: str) -> None:
    """Raise InvalidArtefact unless torch's pytrees know a class, after importing it from a known library."""
    if kind.startswith("collections."):
        raise InvalidArtefact(f"an {where} is a {kind}, which is not supported", where=where)
    if kind in pytree().SERIALIZED_TYPE_TO_PYTHON_TYPE:
        return
    if kind.startswith(_LIBRARIES):
        with suppress(ImportError):
            importlib.import_module(kind.rpartition(".")[0])
    if kind not in pytree().SERIALIZED_TYPE_TO_PYTHON_TYPE:
        raise InvalidArtefact(
            f"the {where}'s class {kind} is not registered as a torch pytree",
            where=where,
            remedy="import the module that registers it first",
        )


@contextmanager
def pytree_warnings_off() -> Iterator[None]:
    """Suppress FutureWarnings, which torch's own pytree code raises and a user cannot fix."""
    with alone(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield
