"""Programs in the language give what numpy gives, and wrong ones are refused at the right place."""

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
def test_programs_give_what_numpy_gives(case: dict[str, Any]) -> None:
    arrays = contents(case, "inputs", "given")
    inputs = [tensor(arrays[spec(text).name]) for text in case["inputs"]]
    given = {spec(text).name: tensor(arrays[spec(text).name]) for text in case["given"]}
    found = fx.tc.define(case["program"], name=case["entry"])(*inputs, out=given or None)
    found = found if isinstance(found, tuple) else (found,)
    wanted = expected(case, arrays)
    for output, result in zip(map(spec, case["outputs"]), found, strict=True):
        assert (tuple(result.shape), str(result.dtype)) == (output.shape, f"torch.{output.dtype}")
        right = np.asarray(wanted[output.name]).astype(np.float64)
        error = np.abs(result.numpy().astype(np.float64) - right).max()
        assert error <= 2e-5 * max(1.0, np.abs(right).max())
        if output.name in given:
            assert result is given[output.name]


@pytest.mark.parametrize("case", cases("valid"), ids=lambda case: str(case["name"]))
def test_the_interpreter_gives_what_numpy_gives(case: dict[str, Any]) -> None:
    arrays = contents(case, "inputs", "given")
    program = read(case["program"], case["entry"])
    made = instance(program, [Given(spec(text).shape, spec(text).dtype) for text in case["inputs"]])
    found = interpret(program, made.sizes, made.ranges, arrays)
    wanted = expected(case, arrays)
    for output in map(spec, case["outputs"]):
        assert str(found[output.name].dtype) == output.dtype
        np.testing.assert_allclose(found[output.name], wanted[output.name], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", cases("malformed"), ids=lambda case: str(case["name"]))
def test_wrong_programs_are_refused(case: dict[str, Any]) -> None:
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
def test_programs_are_explained(case: dict[str, Any]) -> None:
    defined = fx.tc.define(case["program"], name=case["entry"])
    assert defined.explain().startswith(f"def {case['entry']}(")
    text = defined.explain(*map(tensor, contents(case, "inputs").values()))
    for output in map(spec, case["outputs"]):
        assert f"  {output.name}: " in text
