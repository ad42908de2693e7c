"""Test that random programs either raise an error of felixlike or compute what the interpreter computes."""

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
from felixlike.errors import InvalidOption, TCError, TCFusionError
from felixlike.hardware import resolve_target
from felixlike.tc.call import Given
from felixlike.tc.entry import read
from felixlike.tc.fusion import with_fusion
from felixlike.tc.instance import Instance, imported, inputs, instance
from felixlike.tc.options import Options
from felixlike.tc.parser import parse
from felixlike.tc.scalars import canonical
from felixlike.tc.source import Source

EXAMPLES = int(os.environ.get("FELIXLIKE_FUZZ", "150"))
"""Examples of each test, always the same. A longer run sets more examples and takes its seed from --hypothesis-seed."""

_settings = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="FELIXLIKE_FUZZ" not in os.environ,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


def _contents(program_instance: Instance) -> dict[str, Any]:
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for name, shape, dtype in inputs(program_instance):
        if dtype.startswith("float"):
            arrays[name] = np.asarray(random.integers(-8, 9, shape) / 4, dtype)
        else:
            arrays[name] = np.asarray(random.integers(0, 2 if dtype == "bool" else 3, shape), dtype)
    return arrays


def _instance(made: Made) -> Instance | None:
    """Return None if the program is refused. The error must have a location."""
    try:
        program = read(made.source)
        return instance(program, [Given(shape, canonical(dtype)) for dtype, shape in made.inputs])
    except TCError as error:
        _check_error(error)
        return None


@_settings
@given(programs())
def test_programs_raise_or_equal_the_interpreter(made: Made) -> None:
    program_instance = _instance(made)
    if program_instance is not None:
        _compare_with_the_interpreter(program_instance, made.source)


@settings(_settings, max_examples=EXAMPLES // 2)
@given(programs(), st.sampled_from(("Max", "Preserve3Coincident", "Min", (1, 2), (1, 3), (1, 2, 3))))
def test_fused_programs_raise_or_equal_the_interpreter(made: Made, fusion: str | tuple[int, ...]) -> None:
    program_instance = _instance(made)
    if program_instance is None:
        return
    options = Options().fuse(fusion) if isinstance(fusion, str) else Options().fuse_statements(*fusion)
    try:
        fused = with_fusion(program_instance, options)
    except TCFusionError:
        return
    except InvalidOption:
        assert max(options.fused[0]) > len(program_instance.program.steps)
        return
    together = [{node.step + 1 for node in group.nodes} for group in fused.groups]
    assert isinstance(fusion, str) or set(fusion) in together
    _compare_with_the_interpreter(fused, f"{made.source}\n{fusion}")


def _compare_with_the_interpreter(program_instance: Instance, text: str) -> None:
    """Compile a program, call it with random inputs, and check its results."""
    arrays = _contents(program_instance)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = runtime.compile_model(imported(program_instance, resolve_target("cpu")))
    results = compiled(*(torch.from_numpy(array.copy()) for array in arrays.values()))
    results = results if isinstance(results, tuple) else (results,)
    outputs = program_instance.program.outputs
    if any(int(flag) for flag in results[len(outputs) :]):
        return  # an access outside its tensor raised an error
    expected = interpret(program_instance.program, program_instance.sizes, program_instance.ranges, arrays)
    for output, result in zip(outputs, results, strict=False):
        expected_output = expected[output.name]
        assert (result.shape, str(result.dtype)) == (expected_output.shape, f"torch.{expected_output.dtype}"), text
        if not _is_close(result.numpy(), expected_output):
            raise AssertionError(f"{text}\n{output.name}: {result.numpy()}\nnot {expected_output}")


def _is_close(result: Any, expected: Any) -> bool:
    """Compare within the rounding of sums in any order. Infinite and NaN intermediate values may differ."""
    if expected.dtype.kind != "f":
        return bool(np.array_equal(result, expected))
    finite = np.isfinite(expected)
    largest = float(np.abs(expected[finite]).max(initial=1.0))
    if largest > 1e12 or not finite.all():
        return True
    return bool(np.allclose(result, expected, rtol=1e-4, atol=1e-4 * largest))


_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
"""Types whose arithmetic wraps in every operator."""

_compiled: dict[str, Any] = {}
"""Text of a program → the callable."""


@st.composite
def _integers(draw: st.DrawFn, depth: int) -> str:
    """Draw an integer expression of the index i and of tensors named like their types."""
    form = draw(st.integers(0, 9)) if depth else 0
    if form == 0:
        elements = [f"T_{dtype}(i)" for dtype in _INTEGERS]
        return draw(st.sampled_from((*elements, *elements, "i", "1", "7", "255", "65536", "2147483647")))
    left, right = draw(_integers(depth - 1)), draw(_integers(depth - 1))
    if form <= 4:
        return f"({left} {draw(st.sampled_from('++--**/%'))} {right})"
    if form == 5:
        return f"(-{left})"
    if form == 6:
        return f"{draw(st.sampled_from(('min', 'max')))}({left}, {right})"
    if form == 7:
        other = draw(_integers(depth - 1))
        return f"({left} {draw(st.sampled_from(('<', '<=', '==', '>')))} {right} ? {left} : {other})"
    return f"{draw(st.sampled_from((*_INTEGERS, 'int64', 'float')))}({left})"


# Shrinking takes minutes.
@settings(_settings, max_examples=EXAMPLES // 8, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
@given(_integers(3), st.sampled_from(("=", "=", "+=!", "max=!")), st.integers(0, 2**32 - 1))
def test_integers_wrap_as_the_interpreters_do(expression: str, operator: str, seed: int) -> None:
    """Elements are small, at the limits of their types, or anything."""
    left = "O(i)" if operator == "=" else "O"
    parameters = ", ".join(f"{dtype}(N) T_{dtype}" for dtype in _INTEGERS)
    text = f"def f({parameters}) -> (O) {{ {left} {operator} {expression} where i in 0:N }}"
    try:
        program = read(text)
        made = instance(program, [Given((8,), dtype) for dtype in _INTEGERS])
    except TCError as error:
        _check_error(error)
        return
    if text not in _compiled:  # the same one is drawn with several seeds; LLVM takes up to 20 s for one
        _compiled[text] = runtime.compile_model(imported(made, resolve_target("cpu")))
    random = np.random.default_rng(seed)
    arrays = {}
    for dtype in _INTEGERS:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        special = [0, 1, low, high, high - 1, *random.integers(low, high, 3, dtype, endpoint=True)]
        arrays[f"T_{dtype}"] = random.permutation(np.array(special, dtype))
    (output,) = interpret(program, made.sizes, made.ranges, arrays).values()
    result = _compiled[text](*map(torch.from_numpy, arrays.values())).numpy()
    assert _is_close(result, output), f"{text}\n{arrays}\n{result}\nnot {output}"


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
def test_random_tokens_raise_or_parse(source: str) -> None:
    _read(source)


@_settings
@given(programs(), st.data())
def test_programs_with_a_changed_token_raise_or_parse(made: Made, data: st.DataObject) -> None:
    tokens = made.source.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split()
    position = data.draw(st.integers(0, len(tokens) - 1))
    tokens[position : position + data.draw(st.integers(0, 2))] = [data.draw(st.sampled_from(_TOKENS))]
    _instance(Made(" ".join(tokens), made.inputs)) if _read(" ".join(tokens)) == 1 else None


@_settings
@given(st.text(max_size=60))
def test_random_text_raises_or_parses(source: str) -> None:
    _read(source)


def _read(source: str) -> int:
    """Return the number of definitions, or 0 if the text raises an error of felixlike."""
    try:
        return len(parse(Source(source)))
    except TCError as error:
        _check_error(error)
        return 0


def _check_error(error: TCError) -> None:
    """Check that the error has a location and a message."""
    assert error.line >= 1
    assert error.excerpt
    assert error.reason
