"""Random programs: refused with an error of ours, or computed as the interpreter computes them."""

from __future__ import annotations

import os
import warnings
from typing import Any

import hypothesis
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tc_interpreter import interpret
from tc_programs import Made, programs

from felixlike import runtime
from felixlike.errors import TCError
from felixlike.hardware import resolve_target
from felixlike.tc.call import Given
from felixlike.tc.entry import read
from felixlike.tc.instance import Instance, imported, inputs, instance
from felixlike.tc.parser import parse
from felixlike.tc.scalars import canonical
from felixlike.tc.source import Source

EXAMPLES = int(os.environ.get("FELIXLIKE_FUZZ", "150"))
"""Programs of each test, always the same; a long run sets more, which --hypothesis-seed decides on."""

_settings = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="FELIXLIKE_FUZZ" not in os.environ,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


def _contents(made: Instance) -> dict[str, Any]:
    random = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for name, shape, dtype in inputs(made):
        if dtype.startswith("float"):
            found[name] = np.asarray(random.integers(-8, 9, shape) / 4, dtype)
        else:
            found[name] = np.asarray(random.integers(0, 2 if dtype == "bool" else 3, shape), dtype)
    return found


def _instance(made: Made) -> Instance | None:
    """None where the program is refused, which it must be by an error of ours with a place."""
    try:
        program = read(made.source)
        return instance(program, [Given(shape, canonical(dtype)) for dtype, shape in made.inputs])
    except TCError as error:
        _look_at(error)
        return None


@_settings
@given(programs())
def test_programs_are_refused_or_right(made: Made) -> None:
    found = _instance(made)
    if found is None:
        return
    arrays = _contents(found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = runtime.compile_model(imported(found, resolve_target("cpu")))
    results = compiled(*(torch.from_numpy(array.copy()) for array in arrays.values()))
    results = results if isinstance(results, tuple) else (results,)
    outputs = found.program.outputs
    if any(int(flag) for flag in results[len(outputs) :]):
        return  # an access would have left its tensor
    wanted = interpret(found.program, found.sizes, found.ranges, arrays)
    for output, result in zip(outputs, results, strict=False):
        right = wanted[output.name]
        assert (result.shape, str(result.dtype)) == (right.shape, f"torch.{right.dtype}"), made.source
        if not _is_close(result.numpy(), right):
            raise AssertionError(f"{made.source}\n{output.name}: {result.numpy()}\nnot {right}")


def _is_close(found: Any, right: Any) -> bool:
    """Sums of floats may be taken in any order; what is infinite or NaN in between may differ."""
    if right.dtype.kind != "f":
        return bool(np.array_equal(found, right))
    finite = np.isfinite(right)
    largest = float(np.abs(right[finite]).max(initial=1.0))
    if largest > 1e12 or not finite.all():
        return True
    return bool(np.allclose(found, right, rtol=1e-4, atol=1e-4 * largest))


_TOKENS = [
    *[
        "def",
        "where",
        "in",
        "exists",
        "min",
        "max",
        "float",
        "int32",
        "bool",
        "f",
        "A",
        "O",
        "i",
        "j",
        "N",
        "0",
        "1",
        "2.5",
        "(",
        ")",
        "{",
        "}",
        ",",
        "->",
        "=",
        "+=",
        "+=!",
        "max=!",
        "?",
        ":",
        "&&",
        "||",
    ],
    *["!", "<", "<=", "==", "+", "-", "*", "/", "%", "<=>", "[", ";", ".", "#", "exp"],
]


@_settings
@given(st.lists(st.sampled_from(_TOKENS), max_size=40).map(" ".join))
def test_any_tokens_are_refused_or_read(source: str) -> None:
    _read(source)


@_settings
@given(programs(), st.data())
def test_programs_with_a_token_changed_are_refused_or_read(made: Made, data: st.DataObject) -> None:
    words = made.source.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split()
    place = data.draw(st.integers(0, len(words) - 1))
    words[place : place + data.draw(st.integers(0, 2))] = [data.draw(st.sampled_from(_TOKENS))]
    _instance(Made(" ".join(words), made.inputs)) if _read(" ".join(words)) == 1 else None


@_settings
@given(st.text(max_size=60))
def test_any_text_is_refused_or_read(source: str) -> None:
    _read(source)


def _read(source: str) -> int:
    """The number of definitions; 0 where the text is refused with an error of ours."""
    try:
        return len(parse(Source(source)))
    except TCError as error:
        _look_at(error)
        return 0


def _look_at(error: TCError) -> None:
    """Every error says where, and what is wrong."""
    assert error.line >= 1
    assert error.excerpt
    assert error.reason
