"""Test that programs compute what NumPy computes, and that errors of invalid programs have the right location."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tc_cases import cases, contents, expected, spec, tensor
from tc_interpreter import interpret

import felixlike as fx
from felixlike.errors import TCCallError, TCError, TCRangeError, TCSemanticError, TCSyntaxError
from felixlike.tc.call import Given
from felixlike.tc.entry import read
from felixlike.tc.instance import instance

_KINDS = {"parse": TCSyntaxError, "sema": TCSemanticError, "range": TCRangeError, "call": TCCallError}


@pytest.mark.parametrize("case", cases("valid"), ids=lambda case: str(case["name"]))
def test_programs_equal_numpy(case: dict[str, Any]) -> None:
    arrays = contents(case, "inputs", "given")
    inputs = [tensor(arrays[spec(text).name]) for text in case["inputs"]]
    accumulators = {spec(text).name: tensor(arrays[spec(text).name]) for text in case["given"]}
    outputs = fx.tc.define(case["program"], name=case["entry"])(*inputs, out=accumulators or None)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    expected_outputs = expected(case, arrays)
    for output, result in zip(map(spec, case["outputs"]), outputs, strict=True):
        assert (tuple(result.shape), str(result.dtype)) == (output.shape, f"torch.{output.dtype}")
        expected_output = np.asarray(expected_outputs[output.name]).astype(np.float64)
        error = np.abs(result.numpy().astype(np.float64) - expected_output).max()
        assert error <= 2e-5 * max(1.0, np.abs(expected_output).max())
        if output.name in accumulators:
            assert result is accumulators[output.name]


@pytest.mark.parametrize("case", cases("valid"), ids=lambda case: str(case["name"]))
def test_the_interpreter_equals_numpy(case: dict[str, Any]) -> None:
    arrays = contents(case, "inputs", "given")
    program = read(case["program"], case["entry"])
    program_instance = instance(program, [Given(spec(text).shape, spec(text).dtype) for text in case["inputs"]])
    outputs = interpret(program, program_instance.sizes, program_instance.ranges, arrays)
    expected_outputs = expected(case, arrays)
    for output in map(spec, case["outputs"]):
        assert str(outputs[output.name].dtype) == output.dtype
        np.testing.assert_allclose(outputs[output.name], expected_outputs[output.name], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", cases("malformed"), ids=lambda case: str(case["name"]))
def test_invalid_programs_raise_errors_with_their_location(case: dict[str, Any]) -> None:
    if "inputs" in case:
        defined = fx.tc.define(case["program"], name=case["entry"])
        with pytest.raises(TCError) as caught:
            defined(*map(tensor, contents(case, "inputs").values()))
    else:
        with pytest.raises(TCError) as caught:
            fx.tc.define(case["program"], name=case["entry"])
    error = caught.value
    assert isinstance(error, _KINDS[case["stage"]])
    assert any(word.lower() in str(error).lower() for word in case["words"])
    assert error.underlined == case["underlined"]
    if error.line:
        line = case["program"].splitlines()[error.line - 1]
        assert line[error.column - 1 :].startswith(error.underlined.split("\n")[0])
        assert line[:20] in str(error) or len(line) > 100


@pytest.mark.parametrize("case", cases("valid"), ids=lambda case: str(case["name"]))
def test_explain_lists_the_outputs(case: dict[str, Any]) -> None:
    defined = fx.tc.define(case["program"], name=case["entry"])
    assert defined.explain().startswith(f"def {case['entry']}(")
    text = defined.explain(*map(tensor, contents(case, "inputs").values()))
    for output in map(spec, case["outputs"]):
        assert f"  {output.name}: " in text
