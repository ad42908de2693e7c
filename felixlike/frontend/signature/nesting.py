"""Compare the nested arguments of a call with those that a model was compiled for.

Input: torch's TreeSpec of one argument, and the user's values. Output: its tensors in order, or an InputMismatch that
names the place as code reaches it: `state['h'][1]`. Torch's own flattening names no place, refuses lists for tuples,
and depends on the order of keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from felixlike._util.torch_compat import pytree
from felixlike._util.wording import kind_of, shown
from felixlike.errors import InputMismatch
from felixlike.frontend.signature.structure import SCALARS

TENSOR: Any = ...
"""Marks a tensor among the leaves of a structure. All other leaves are constants."""


@dataclass(frozen=True, slots=True)
class Node:
    """Describe a part of an argument.

    Attributes:
        place: Where the part is, as code reaches it.
        kind: Its class, None for a tensor or constant.
        context: Context of torch's pytree node.
        keys: Keys of a mapping.
        children: Parts of a container.
        constant: The value of a constant, TENSOR for a tensor.
    """

    place: str
    kind: type | None
    context: Any
    keys: tuple[Any, ...]
    children: tuple[Node, ...]
    constant: Any

    def places(self) -> Iterator[str]:
        """Yield the places of the tensors in this part, in order."""
        if self.kind is None and self.constant is TENSOR:
            yield self.place
        for child in self.children:
            yield from child.places()

    def describe(self, tensors: Iterator[str]) -> str:
        """Return a description of the part. `tensors` yields those of its tensors."""
        if self.kind is None:
            return next(tensors) if self.constant is TENSOR else repr(self.constant)
        parts = [child.describe(tensors) for child in self.children]
        if self.keys:
            return "{" + ", ".join(f"{k!r}: {part}" for k, part in zip(self.keys, parts, strict=True)) + "}"
        name = "" if self.kind in (tuple, list, dict) else self.kind.__name__
        left, right = "[]" if self.kind is list else "()"
        return f"{name}{left}{', '.join(parts)}{right}"

    def value(self) -> Any:
        """Return the constant, or `...` for a container without tensors."""
        return self.constant if self.kind is None else ...

    def collect(self, value: Any, found: list[Any], where: str) -> None:
        """Append the part's tensors to `found` without checking their type.

        Raises InputMismatch if the value is nested differently or a constant differs.
        """
        if self.kind is None:
            if self.constant is TENSOR:
                found.append(value)
            else:
                self._check_constant(value, where)
            return
        parts = self._parts(value, where)
        for child, part in zip(self.children, parts, strict=True):
            child.collect(part, found, where)

    def _check_constant(self, value: Any, where: str) -> None:
        """Raise InputMismatch unless the value equals the constant."""
        if not same(value, self.constant):
            raise InputMismatch(
                f"input {quoted(self.place)} is {said(value)}, but the model was compiled for"
                f" {self.place}={shown(self.constant)}",
                where=where,
                remedy="omit it, or optimize the model with this value"
                if self.place.isidentifier()
                else "optimize the model with this value",
            )

    def _parts(self, value: Any, where: str) -> Iterable[Any]:
        """Return the parts of a value in the order of the children.  Raises InputMismatch."""
        if self.kind in (tuple, list):
            if not isinstance(value, tuple | list):
                raise self._otherwise(kind_of(value), where)
            if len(value) != len(self.children):
                raise self._otherwise(f"{kind_of(value)} of length {len(value)}", where)
            return value
        if self.keys or self.kind is dict:
            if not isinstance(value, Mapping):
                raise self._otherwise(kind_of(value), where)
            if set(value) != set(self.keys):
                raise self._otherwise(f"{kind_of(value)} with {_keys(value)}", where)
            return [value[key] for key in self.keys]
        return self._parts_of_class(value, where)

    def _parts_of_class(self, value: Any, where: str) -> Iterable[Any]:
        """Return the parts of an instance of a registered class.  Raises InputMismatch."""
        assert self.kind is not None
        if not isinstance(value, self.kind):
            raise self._otherwise(kind_of(value), where)
        parts, context = pytree().SUPPORTED_NODES[node_type(value)].flatten_fn(value)
        if len(parts) != len(self.children) or context != self.context:
            raise self._otherwise(f"{kind_of(value)} with other fields", where)
        return list(parts)

    def _otherwise(self, what: str, where: str) -> InputMismatch:
        """Return the error for a value that is nested differently."""
        assert self.kind is not None
        name = self.kind.__name__
        if self.keys:
            expected = f"a {name} with {_keys(self.keys)}"
        else:
            expected = f"a {name} of length {len(self.children)}"
        return InputMismatch(
            f"input {quoted(self.place)} is {what}, but the model was compiled for {expected}",
            where=where,
            remedy="nest the inputs like the examples",
        )


def node_of(value: Any, spec: Any, leaves: Iterator[Any], place: str) -> Node:
    """Return the node of a part of a structure.

    value: an instance of the part, with any leaves.  leaves: iterator over TENSOR and constants, in order; the part's
    own are consumed.
    """
    if spec.is_leaf():
        return Node(place, None, None, (), (), next(leaves))
    known = pytree().SUPPORTED_NODES[node_type(value)]
    parts, context = known.flatten_fn(value)
    if known.flatten_with_keys_fn is not None:
        names = [pytree().keystr((key,)) for key, _ in known.flatten_with_keys_fn(value)[0]]
    else:  # the class is registered without key names
        names = [f"[{index}]" for index in range(len(parts))]
    children = zip(parts, spec.children(), names, strict=True)
    nodes = tuple(node_of(part, child, leaves, f"{place}{name}") for part, child, name in children)
    keys = tuple(value) if isinstance(value, dict) and len(value) == len(nodes) else ()
    return Node(place, type(value), context, keys, nodes, None)


def node_type(value: Any) -> Any:
    """Return the type under which torch's pytrees register a value's class. All named tuples share one."""
    return pytree()._get_node_type(value)


def same(value: Any, constant: Any) -> bool:
    """Return whether a value equals a constant in value and kind, so that a model computes the same with it.

    2 is not 2.0, since products of integers with them have different dtypes, nor is 0.0 equal to -0.0. NaN equals NaN.
    """
    if isinstance(value, np.generic):
        value = value.item()
    kinds = [next((kind for kind in SCALARS if isinstance(v, kind)), None) for v in (value, constant)]
    if kinds[0] is None or kinds[0] is not kinds[1]:
        return False
    return bool(value.hex() == constant.hex() if kinds[0] is float else value == constant)


def _keys(keys: Collection[Any]) -> str:
    """Return the keys of a mapping for a message."""
    return f"keys {', '.join(map(repr, keys))}" if keys else "no keys"


def said(value: Any) -> str:
    """Return a value for a message: constants as they are, others by their type."""
    return shown(value) if isinstance(value, SCALARS) else kind_of(value)


def quoted(place: str) -> str:
    """Return a place for a message: 'x', but state['h'][1] without quotes."""
    return repr(place) if "[" not in place else place
