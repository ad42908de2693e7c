"""Tests for signatures: calls are flattened to tensors, and mismatching arguments are named by their position."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from transformers.modeling_outputs import BaseModelOutput

from felixlike.errors import InputMismatch, InvalidArtefact, InvalidModel
from felixlike.frontend.signature.nesting import same
from felixlike.frontend.signature.signature import Parameter, Signature, parameters_of

A, B, C, D = (object() for _ in range(4))
Pair = namedtuple("Pair", ["first", "second"])


def forward(
    x: Any, mask: Any = None, scale: Any = 1.0, *rest: Any, flag: bool = True, ring: Any = (), **more: Any
) -> None:
    """Declare parameters of every kind."""


def signature_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Signature:
    return Signature.of_call(parameters_of(function), args, kwargs)


def flatten(signature: Signature, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return signature.flatten(args, kwargs, where="m", takes="it takes …")


NESTED = signature_of(forward, A, scale=(B, {"h": [C, 3], "c": None}), flag=False, extra=D)


def test_tensors_are_named_by_their_position() -> None:
    assert NESTED.names == ("x", "scale[0]", "scale[1]['h'][0]", "extra")
    assert signature_of(forward, Pair(A, B), None, 2.0, C, D).names == ("x.first", "x.second", "rest[0]", "rest[1]")
    assert signature_of(forward, BaseModelOutput(last_hidden_state=A)).names == ("x['last_hidden_state']",)


@pytest.mark.parametrize(
    ("signature", "args", "kwargs"),
    [
        (NESTED, (A,), {"scale": (B, {"h": [C, 3], "c": None}), "flag": False, "extra": D}),
        (NESTED, (A, None, [B, OrderedDict(c=None, h=(C, 3))]), {"extra": D}),
        (NESTED, (), {"extra": D, "scale": [B, {"c": None, "h": [C, np.int64(3)]}], "x": A, "flag": np.bool_(False)}),
    ],
)
def test_equivalent_calls_flatten_to_the_same_tensors(signature: Signature, args: Any, kwargs: Any) -> None:
    assert flatten(signature, *args, **kwargs) == (A, B, C, D)


def test_the_call_is_rebuilt_from_tensors() -> None:
    args, kwargs = NESTED.arguments([A, B, C, D])
    assert args == (A,)
    assert kwargs == {"scale": (B, {"h": [C, 3], "c": None}), "flag": False, "extra": D}
    assert NESTED.call(lambda *args, **kwargs: (args, kwargs), [A, B, C, D]) == (args, kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((A,), {"extra": D}, "^m: input 'scale' is missing. it takes …"),
        (
            (A,),
            {"scale": (B, 3), "extra": D},
            r"^m: input scale\[1\] is an int, .*\ba dict\b.*'h', 'c'\.",
        ),
        ((A,), {"scale": (B,), "extra": D}, r"^m: input 'scale' is a tuple .*\b1, .*\ba tuple .*\b2\b"),
        ((A,), {"scale": B, "extra": D}, r"^m: input 'scale' is an object, .*\ba tuple .*\b2\b"),
        (
            (A,),
            {"scale": (B, {"h": [C, 3]}), "extra": D},
            r"^m: input scale\[1\] is a dict .*'h', .*\ba dict .*'h', 'c'\.",
        ),
        (
            (A,),
            {"scale": (B, {"h": [C, 4], "c": None}), "extra": D},
            r"^m: input scale\[1\]\['h'\]\[1\] is 4, .*scale\[1\]\['h'\]\[1\]=3\. optimize",
        ),
        (
            (A,),
            {"scale": (B, {"h": [C, 3], "c": None}), "extra": D, "flag": True},
            r"^m: input 'flag' is True, .*flag=False\. omit it, or optimize",
        ),
        ((A, B), {"extra": D}, "^m: input 'scale' is missing"),
        (
            (A, B, (B, {"h": [C, 3], "c": None})),
            {"extra": D},
            r"^m: input 'mask' is given, .*\(mask=None\)\. omit it, or optimize",
        ),
        (
            (A, None, (B, {"h": [C, 3], "c": None})),
            {"extra": D, "ring": []},
            r"^m: input 'ring' is given, [^(]*\. omit it",
        ),
        ((A,), {"x": A}, "^m: input 'x' is given twice"),
        ((A,), {"other": A}, "^m: .*'other'. it takes …"),
    ],
)
def test_mismatches_are_named_by_position(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(InputMismatch, match=message):
        flatten(NESTED, *args, **kwargs)


def test_namedtuples_and_output_classes() -> None:
    signature = signature_of(lambda pair, output: None, Pair(A, B), BaseModelOutput(last_hidden_state=C))
    assert flatten(signature, Pair(A, B), BaseModelOutput(last_hidden_state=C)) == (A, B, C)
    with pytest.raises(InputMismatch, match=r"^m: input 'pair' is a tuple, .*\ba Pair .*\b2\b"):
        flatten(signature, (A, B), C)
    with pytest.raises(
        InputMismatch, match=r"^m: input 'output' is an object, .* a BaseModelOutput .*'last_hidden_state'"
    ):
        flatten(signature, Pair(A, B), C)


def test_calls_of_tensors_only_are_positional() -> None:
    """A signature is positional if its arguments are the tensors, in order."""
    assert signature_of(forward, A).by_position
    assert signature_of(forward, A, B, C).by_position
    assert signature_of(forward, A, B, C, D).by_position
    assert signature_of(forward, x=A, mask=B).by_position
    assert Signature.plain(["a", "input.1"]).by_position
    for other in (
        signature_of(forward, A, None, B),
        signature_of(forward, x=A, scale=B),
        signature_of(forward, (A,)),
        signature_of(forward, A, flag=B),
        NESTED,
    ):
        assert not other.by_position


def test_equal_names_get_a_suffix() -> None:
    signature = Signature.plain(["a", "a", "b"])
    assert signature.names == ("a", "a_1", "b")
    assert flatten(signature, A, B, b=C) == (A, B, C)


def test_variable_positional_arguments() -> None:
    signature = signature_of(forward, A, None, 1.0, B, C)
    assert flatten(signature, A, None, 1.0, B, C) == (A, B, C)
    with pytest.raises(InputMismatch, match=r"^m: input 'rest' is a tuple .*\b1, .*\ba tuple .*\b2\b"):
        flatten(signature, A, None, 1.0, B)
    with pytest.raises(InputMismatch, match=r"^m: .*at most 2 .*, got 3"):
        flatten(signature_of(lambda x, y: None, A, (B, C)), A, B, C)


@pytest.mark.parametrize(
    ("signature", "text"),
    [
        (Signature.plain(["x", "by"]), "(x: 'f[1]', by: 'f[2]')"),
        (Signature.plain(["input.1"]), "(*tensors, **named)"),
        (Signature.plain(["class"]), "(*tensors, **named)"),
        (
            NESTED,
            "(x: 'f[1]', mask=None, *, scale: \"(f[2], {'h': [f[3], 3], 'c': None})\", flag=False, ring=Ellipsis, "
            "extra: 'f[4]')",
        ),
        (
            signature_of(forward, A, None, 1.0, B),
            "(x: 'f[1]', mask=None, scale=1.0, *rest: '(f[2])', flag=True, ring=Ellipsis)",
        ),
        (signature_of(lambda x, y: None, A, (None, 1)), "(x: 'f[1]', y=Ellipsis)"),
        (signature_of(lambda x: None, Pair(A, B)), "(x: 'Pair(f[1], f[2])')"),
    ],
)
def test_text_of_the_python_signature(signature: Signature, text: str) -> None:
    words = [f"f[{index}]" for index in range(1, len(signature.names) + 1)]
    assert str(signature.as_python(words)) == text


def test_equality_of_constants() -> None:
    equal = [(1, 1), (np.float32(2), 2.0), (np.int64(2), 2), ("a", "a"), (None, None), (math.nan, -math.nan)]
    assert all(same(value, constant) for value, constant in equal)
    others = [(1, True), (1, 1.0), (np.float32(2), 2), (-0.0, 0.0), (0, None), (A, None), ("1", 1), ([], None)]
    assert not any(same(value, constant) for value, constant in others)


def test_signatures_survive_json() -> None:
    for signature in (NESTED, Signature.plain(["a", "input.1"]), signature_of(forward, A, None, 1.0, B)):
        again = Signature.from_json(json.loads(json.dumps(signature.to_json())))
        assert again == signature
        assert again.names == signature.names
    with pytest.raises(InvalidModel, match=r"^input: .*\bcannot be written\b"):
        signature_of(forward, Pair(A, B)).to_json()


PLAIN = Signature.plain(["x"]).to_json()
LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "list of parameters"),
        ({"parameters": {}}, "list of parameters"),
        (PLAIN | {"parameters": [{"name": "x"}]}, "{'name': 'x'} .*parameter"),
        (PLAIN | {"parameters": [{"name": "x", "kind": "ANY", "default": None}]}, "'ANY'.* parameter"),
        (PLAIN | {"parameters": [{"name": "x", "kind": "VAR_KEYWORD", "default": [{}]}]}, "'VAR_KEYWORD'.* parameter"),
        (PLAIN | {"parameters": []}, "1 arguments for 0 parameters"),
        (PLAIN | {"arguments": None}, "tuple and a dictionary"),
        (PLAIN | {"arguments": {"tree": [1, LEAF], "constants": []}}, "tuple and a dictionary"),
        (PLAIN | {"arguments": {"tree": [1]}}, "structure .*range"),
        (
            PLAIN | {"arguments": {"tree": [1, {**LEAF, "type": "os.path"}], "constants": []}},
            r"\bos\.path\b.*import the module",
        ),
        (PLAIN | {"arguments": PLAIN["arguments"] | {"constants": [[4, 1]]}}, r"constant 1 .*\b4 of \d"),
    ],
)
def test_damaged_or_hostile_json_is_refused(data: Any, message: str) -> None:
    with pytest.raises(InvalidArtefact, match=f"^input: .*{message}"):
        Signature.from_json(data)


def test_parameters_of_a_function() -> None:
    kinds = [(p.name, p.kind, p.default) for p in parameters_of(forward)]
    assert kinds[:2] == [("x", "POSITIONAL_OR_KEYWORD", None), ("mask", "POSITIONAL_OR_KEYWORD", (None,))]
    assert kinds[3:6] == [
        ("rest", "VAR_POSITIONAL", None),
        ("flag", "KEYWORD_ONLY", (True,)),
        ("ring", "KEYWORD_ONLY", ()),
    ]
    assert parameters_of(lambda x: None) == (Parameter("x"),)
