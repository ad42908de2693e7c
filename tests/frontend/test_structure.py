"""Tests for the nesting of outputs, in this process and through a file."""

import json
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput

from felixlike.errors import InvalidArtefact, InvalidModel
from felixlike.frontend.signature.structure import Structure, structure_of

A, B, C = object(), object(), object()
Pair = namedtuple("Pair", ["first", "second"])


@pytest.mark.parametrize(
    ("output", "computed"),
    [
        (A, [A]),
        ((A,), [A]),
        ([A, B], [A, B]),
        ((A, (B, [C])), [A, B, C]),
        ((A, (B,)), [A, B]),
        ({"a": A, "b": (B, None, 3)}, [A, B]),
        (OrderedDict(b=A, a=B), [A, B]),
        ((None, A, 2.5, "text", True), [A]),
    ],
)
def test_outputs_are_rebuilt_also_through_json(output: Any, computed: list[Any]) -> None:
    structure = structure_of(output)
    assert structure.builder()(computed) == output
    again = Structure.from_json(json.loads(json.dumps(structure.to_json())))
    rebuilt = again.builder()(computed)
    assert rebuilt == output
    assert type(rebuilt) is type(output)


def test_an_output_class_of_transformers_is_rebuilt() -> None:
    tensor = torch.ones(2)
    structure = structure_of(BaseModelOutput(last_hidden_state=tensor))
    again = Structure.from_json(json.loads(json.dumps(structure.to_json())))
    rebuilt = again.builder()([tensor])
    assert isinstance(rebuilt, BaseModelOutput)
    assert rebuilt.last_hidden_state is tensor


def test_a_namedtuple_is_rebuilt_but_not_saved() -> None:
    structure = structure_of(Pair(A, B))
    assert structure.builder()([A, B]) == Pair(A, B)
    with pytest.raises(InvalidModel, match=r"^output: .*\bPair\b"):
        structure.to_json()


def _tree(kind: Any, context: Any, children: list[Any]) -> dict[str, Any]:
    return {"tree": [1, {"type": kind, "context": context, "children_spec": children}], "constants": []}


LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (_tree("collections.defaultdict", "{}", []), r"collections\.defaultdict"),
        (_tree("os.path", "null", []), r"\bos\.path\b.*import the module"),
        (_tree("transformers.nowhere.Output", "null", []), r"transformers\.nowhere\.Output\b"),
        (_tree("builtins.dict", '[{"__enum__": true, "fqn": "os:x"}]', [LEAF]), "enumeration"),
        ({"tree": [1]}, "structure .*range"),
        ([], "structure .*indices"),
        ({**_tree("builtins.tuple", "null", [LEAF]), "constants": [[5, None]]}, r"\bNone .*\b5 of 1\b"),
    ],
)
def test_damaged_or_hostile_json_is_refused(data: Any, message: str) -> None:
    with pytest.raises(InvalidArtefact, match=f"^output: .*{message}"):
        Structure.from_json(data)
