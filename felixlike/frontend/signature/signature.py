"""Describe how a model is called: its parameters, the nesting of its tensors and the constants between them.

Input: the parameters of a model's forward and the arguments that it was exported with. Output: a `Signature`, which
flattens a call's arguments to tensors and rebuilds the arguments from tensors. The compiled model can then be called
like the model itself, and the model can be called as it was exported, to compare the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any

from felixlike._util.torch_compat import pytree
from felixlike._util.wording import counted, shown
from felixlike.errors import InputMismatch, InvalidArtefact
from felixlike.frontend.signature.nesting import TENSOR, Node, node_of, quoted, same
from felixlike.frontend.signature.structure import SCALARS, Structure, structure_from_leaves

_KINDS = {
    kind.name: kind
    for kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    )
}
_POSITIONAL = ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")


@dataclass(frozen=True, slots=True)
class Parameter:
    """Describe one of a model's parameters.

    Attributes:
        name: Name of the parameter.
        kind: Name of the `inspect.Parameter` kind, such as "POSITIONAL_OR_KEYWORD".
        default: None without a default, a tuple of the value for a constant, an empty tuple for any other default.
    """

    name: str
    kind: str = "POSITIONAL_OR_KEYWORD"
    default: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Signature:
    """Describe a model's parameters and the arguments that it was compiled for.

    Attributes:
        parameters: Parameters of the model's forward, in order.
        structure: Nesting of (arguments, keyword arguments), as the model was exported.
        names: Place of each tensor as code reaches it: `state['h'][1]`.
        by_position: Whether the model can be called with its tensors alone, in order.
    """

    parameters: tuple[Parameter, ...]
    structure: Structure
    names: tuple[str, ...] = field(init=False, compare=False)
    by_position: bool = field(init=False, compare=False)
    _wanted: Mapping[str, Node] = field(init=False, compare=False, repr=False)
    _positional: tuple[str, ...] = field(init=False, compare=False, repr=False)
    _known: frozenset[str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        positional = tuple(p.name for p in self.parameters if p.kind in _POSITIONAL)
        object.__setattr__(self, "_positional", positional)
        nodes = dict(self._nodes())
        names = [place for node in nodes.values() for place in node.places()]
        known = frozenset(p.name for p in self.parameters if not p.kind.startswith("VAR")) | set(nodes)
        rest = [p.name for p in self.parameters if p.kind == "VAR_POSITIONAL" and p.name in nodes]
        in_order = [*positional[: len(nodes) - len(rest)], *rest]
        flat = all(node.kind is None and node.constant is TENSOR for name, node in nodes.items() if name not in rest)
        of_rest = all(child.constant is TENSOR for name in rest for child in nodes[name].children)
        object.__setattr__(self, "names", tuple(names))
        object.__setattr__(self, "by_position", list(nodes) == in_order and flat and of_rest)
        object.__setattr__(self, "_wanted", nodes)
        object.__setattr__(self, "_known", known)

    @classmethod
    def plain(cls, names: Sequence[str]) -> Signature:
        """Return the signature of a model with one tensor per name. A duplicate name gets a number."""
        parameters = [Parameter(f"{n}_{i}" if n in names[:i] else n) for i, n in enumerate(names)]
        return cls.of_call(parameters, tuple(TENSOR for _ in names), {})

    @classmethod
    def of_call(cls, parameters: Sequence[Parameter], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Signature:
        """Return the signature of a model that is called with these arguments.

        Leaves other than None, numbers and strings stand for tensors.
        """
        leaves, spec = pytree().tree_flatten((args, dict(kwargs)))
        return cls(tuple(parameters), structure_from_leaves(spec, leaves))

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the model's (arguments, keyword arguments) for one tensor per name."""
        args, kwargs = self.structure.builder()(tensors)
        return args, kwargs

    def call(self, function: Callable[..., Any], tensors: Sequence[Any]) -> Any:
        """Call a function that has the model's signature with flat tensors."""
        args, kwargs = self.arguments(tensors)
        return function(*args, **kwargs)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, where: str, takes: str) -> tuple[Any, ...]:
        """Flatten the arguments of a call to one value per name. The values are not checked to be tensors.

        A constant, or a parameter that the model was compiled without, may be omitted or have its former value.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.
            where: The model's name, for messages.
            takes: Remedy in the message for a missing or unknown input.

        Returns:
            One value per name, in order.

        Raises:
            InputMismatch: The arguments are nested differently, or an input is missing, unknown or has another
                constant.
        """
        by_name = self._bound(args, kwargs, where, takes)
        tensors: list[Any] = []
        for name, node in self._wanted.items():
            if name in by_name:
                node.collect(by_name[name], tensors, where)
            elif next(node.places(), None) is not None:
                if not kwargs and self.by_position:
                    raise self._miscounted(len(args), where, takes)
                raise InputMismatch(f"input {quoted(name)} is missing", where=where, remedy=takes)
        for name, value in by_name.items():
            if name not in self._wanted:
                self._check_left_out(name, value, where)
        return tuple(tensors)

    def as_python(self, tensors: Sequence[str]) -> inspect.Signature:
        """Return the signature for `inspect.signature`.  tensors: description of each tensor, for the annotations."""
        words, optional = iter(tensors), False
        parameters: list[inspect.Parameter] = []
        annotations = {name: node.describe(words) for name, node in self._wanted.items()}
        known = {parameter.name: parameter for parameter in self.parameters if parameter.kind != "VAR_KEYWORD"}
        extra = {name: Parameter(name, "KEYWORD_ONLY") for name in self._wanted if name not in known}
        try:
            for name, parameter in (known | extra).items():
                compiled_with, kind = name in self._wanted, parameter.kind
                value = annotations.get(name, inspect.Parameter.empty)
                default: Any = inspect.Parameter.empty
                if compiled_with and next(self._wanted[name].places(), None) is None:
                    value, default = inspect.Parameter.empty, self._wanted[name].value()
                elif not compiled_with and kind == "VAR_POSITIONAL":
                    continue
                elif not compiled_with:
                    default = parameter.default[0] if parameter.default else ...
                if compiled_with and default is inspect.Parameter.empty and optional and kind in _POSITIONAL:
                    kind = "KEYWORD_ONLY"  # a required parameter may not follow an optional one
                optional = optional or default is not inspect.Parameter.empty
                if iskeyword(name):
                    raise ValueError(name)
                parameters.append(inspect.Parameter(name, _KINDS[kind], default=default, annotation=value))
            return inspect.Signature(sorted(parameters, key=lambda parameter: parameter.kind))
        except ValueError:  # not a Python name, such as "input.1" in ONNX
            kinds = inspect.Parameter
            return inspect.Signature([kinds("tensors", kinds.VAR_POSITIONAL), kinds("named", kinds.VAR_KEYWORD)])

    def to_json(self) -> Any:
        """Return the signature as JSON data.  Raises InvalidModel if an input's class cannot be named in a file."""
        described = [
            {"name": p.name, "kind": p.kind, "default": None if p.default is None else list(p.default)}
            for p in self.parameters
        ]
        return {"parameters": described, "arguments": self.structure.to_json("input")}

    @classmethod
    def from_json(cls, data: Any) -> Signature:
        """Restore a signature from the data of `to_json`.  Raises InvalidArtefact for other data."""
        if not isinstance(data, dict) or not isinstance(data.get("parameters"), list):
            raise InvalidArtefact("the list of parameters is missing", where="input")
        parameters = tuple(_parameter(entry) for entry in data["parameters"])
        structure = Structure.from_json(data.get("arguments"), "input")
        outer = [] if structure.spec is None else structure.spec.children()
        if [child.type for child in outer] != [tuple, dict] or structure.spec.type is not tuple:
            raise InvalidArtefact("the arguments are not a tuple and a dictionary", where="input")
        try:
            return cls(parameters, structure)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise InvalidArtefact(f"the arguments do not match the parameters: {error}", where="input") from None

    def _nodes(self) -> Iterator[tuple[str, Node]]:
        """Yield (parameter's name, node) of each argument that the model was exported with, in order of the call."""
        spec, constants = self.structure.spec, dict(self.structure.constants)
        leaves = iter([constants.get(index, TENSOR) for index in range(spec.num_leaves)])
        args, kwargs = self.arguments([TENSOR] * (spec.num_leaves - len(constants)))
        of_args, of_kwargs = spec.children()
        positional = self._positional
        specs = of_args.children()
        for name, value, child in zip(positional, args, specs, strict=False):
            yield name, node_of(value, child, leaves, name)
        if len(args) > len(positional):
            rest = next((p.name for p in self.parameters if p.kind == "VAR_POSITIONAL"), None)
            if rest is None:
                raise ValueError(f"{len(args)} arguments for {len(positional)} parameters")
            further = zip(args[len(positional) :], specs[len(positional) :], strict=True)
            nodes = tuple(node_of(v, child, leaves, f"{rest}[{i}]") for i, (v, child) in enumerate(further))
            yield rest, Node(rest, tuple, None, (), nodes, None)
        for (name, value), child in zip(kwargs.items(), of_kwargs.children(), strict=True):
            yield name, node_of(value, child, leaves, name)

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any], where: str, takes: str) -> dict[str, Any]:
        """Return the arguments of a call by parameter name.  Raises InputMismatch."""
        by_name = dict(zip(self._positional, args, strict=False))
        if len(args) > len(self._positional):
            rest = [p.name for p in self.parameters if p.kind == "VAR_POSITIONAL"]
            if not rest:
                raise self._miscounted(len(args), where, takes)
            by_name[rest[0]] = args[len(self._positional) :]
        for name, value in kwargs.items():
            if name not in self._known:
                raise InputMismatch(f"there is no input {name!r}", where=where, remedy=takes)
            if name in by_name:
                raise InputMismatch(
                    f"input {name!r} is given twice", where=where, remedy="pass it by position or by name"
                )
            by_name[name] = value
        return by_name

    def _miscounted(self, count: int, where: str, takes: str) -> InputMismatch:
        """Return the error for a wrong number of inputs."""
        most = len(self._positional)
        expected = counted(len(self.names), "input") if self.by_position else f"at most {most} by position"
        return InputMismatch(f"expected {expected}, got {count}", where=where, remedy=takes)

    def _check_left_out(self, name: str, value: Any, where: str) -> None:
        """Raise InputMismatch unless a parameter that the model was compiled without has its default."""
        default = next((p.default for p in self.parameters if p.name == name), None)
        if not default or not same(value, default[0]):
            value_text = f" ({name}={shown(default[0])})" if default else ""
            raise InputMismatch(
                f"input {name!r} is given, but the model was compiled without it{value_text}",
                where=where,
                remedy="omit it, or optimize the model with an example of it",
            )


def parameters_of(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Return the parameters of a Python function."""
    return tuple(Parameter(p.name, p.kind.name, _default(p)) for p in inspect.signature(function).parameters.values())


def _default(parameter: inspect.Parameter) -> tuple[Any, ...] | None:
    """Return a parameter's default in the form of `Parameter.default`."""
    if parameter.default is inspect.Parameter.empty:
        return None
    return (parameter.default,) if isinstance(parameter.default, SCALARS) else ()


def _parameter(entry: Any) -> Parameter:
    """Restore a parameter from JSON data.  Raises InvalidArtefact."""
    if isinstance(entry, dict) and set(entry) == {"name", "kind", "default"}:
        name, kind, default = entry["name"], entry["kind"], entry["default"]
        valid = default is None or (isinstance(default, list) and len(default) < 2)
        if isinstance(name, str) and kind in _KINDS and valid and all(isinstance(v, SCALARS) for v in default or ()):
            return Parameter(name, kind, None if default is None else tuple(default))
    raise InvalidArtefact(f"{shown(entry)} is not a parameter", where="input")
