"""Test that the C code of comprehensions, compiled by gcc, computes what NumPy and the interpreter compute."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tc_cases import Array, cases, contents, expected, spec
from tc_interpreter import interpret
from tc_programs import Made, programs

import felixlike as fx
from felixlike.errors import TCError
from felixlike.tc.c_code import c_code
from felixlike.tc.call import Given
from felixlike.tc.entry import read
from felixlike.tc.instance import Instance, inputs, instance
from felixlike.tc.scalars import canonical

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc compiles the code")

_CTYPES = {"float32": ctypes.c_float, "float64": ctypes.c_double, "bool": ctypes.c_bool}
_WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-type-limits")
_FLAGS = ("-O1", "-fwrapv", "-ffp-contract=off", "-shared", "-fPIC")
_FUSIONS = ("Max", "Preserve3Coincident", "Min")


def _run(
    code: str, folder: Path, made: Instance, arrays: Mapping[str, Array], warnings: Sequence[str] = _WARNINGS
) -> dict[str, Array]:
    """Compile the code, call it with copies of the arrays, and return its outputs."""
    source, library = folder / "code.c", folder / f"code{len(list(folder.iterdir()))}.so"
    source.write_text(code)
    subprocess.run(["gcc", *_FLAGS, *warnings, "-o", str(library), str(source), "-lm"], check=True, capture_output=True)
    function = re.findall(r"^void (\w+)\(", code, re.MULTILINE)[-1]
    outputs: dict[str, Array] = {}
    arguments: list[Any] = []
    for parameter in made.program.parameters:
        array = np.ascontiguousarray(arrays[parameter.name])
        number_type = _CTYPES.get(parameter.dtype) or getattr(ctypes, f"c_{parameter.dtype}")
        arguments.append(array.ctypes if parameter.dims else number_type(array.item()))
    for output in made.program.outputs:
        shape = made.ranges.shape(output.name)
        array = np.array(arrays[output.name]) if output.given else np.zeros(shape, output.dtype)
        outputs[output.name] = array
        arguments.append(array.ctypes)
    getattr(ctypes.CDLL(str(library)), function)(*arguments)
    return outputs


def _instance(source: str, name: str | None, tensors: Sequence[tuple[str, tuple[int, ...]]]) -> Instance:
    return instance(read(source, name), [Given(shape, dtype) for dtype, shape in tensors])


@pytest.mark.parametrize("fusion", _FUSIONS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 7, 3), (33, 16, 20)])
def test_products_equal_numpy(sizes: tuple[int, int, int], fusion: str, tmp_path: Path) -> None:
    n, m, k = sizes
    source = """def sgemm(float a, float b, float(N,M) A, float(M,K) B) -> (C) {
      C(i, j) = b * C(i, j)
      C(i, j) += a * A(i, k) * B(k, j)
    }"""
    shapes = [(), (), (n, m), (m, k)]
    random = np.random.default_rng(0)
    arrays = {name: np.asarray(random.standard_normal(s), "float32") for name, s in zip("abAB", shapes, strict=True)}
    arrays["C"] = np.asarray(random.standard_normal((n, k)), "float32")
    code = fx.tc.define(source, options=fx.tc.Options().fuse(fusion)).to_c(*shapes)
    result = _run(code, tmp_path, _instance(source, None, [("float32", s) for s in shapes]), arrays)["C"]
    np.testing.assert_allclose(
        result, arrays["b"] * arrays["C"] + arrays["a"] * (arrays["A"] @ arrays["B"]), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("sizes", [(1, 1), (4, 9), (17, 64)])
def test_softmax_shares_the_loop_over_rows(sizes: tuple[int, int], tmp_path: Path) -> None:
    source = """def softmax(float(N,D) A) -> (M, E, S, O) {
      M(n) max=! A(n, d)  E(n, d) = exp(A(n, d) - M(n))  S(n) +=! E(n, d)  O(n, d) = E(n, d) / S(n)
    }"""
    a = np.asarray(np.random.default_rng(0).standard_normal(sizes), "float32")
    code = fx.tc.define(source).to_c(sizes)
    assert code.count("int n = 0") == (sizes[0] > 1)
    outputs = _run(code, tmp_path, _instance(source, None, [("float32", sizes)]), {"A": a})
    exponentials = np.exp(a - a.max(1, keepdims=True))
    np.testing.assert_allclose(outputs["O"], exponentials / exponentials.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("tiles", [(4,), (3, 5), (4, 4, 4), (64, 64, 64, 64)])
@pytest.mark.parametrize("fusion", _FUSIONS)
def test_tiles_equal_numpy(tiles: tuple[int, ...], fusion: str, tmp_path: Path) -> None:
    source = """def two(float(N,K) A, float(K,M) B, float(M) b) -> (C, D) {
      C(i, j) +=! A(i, k) * B(k, j)
      C(i, j) = fmax(C(i, j) + b(j), 0)
      D(i) max=! C(i, j)
    }"""
    shapes = [(10, 7), (7, 9), (9,)]
    random = np.random.default_rng(0)
    arrays = {name: np.asarray(random.standard_normal(s), "float32") for name, s in zip("ABb", shapes, strict=True)}
    code = fx.tc.define(source, options=fx.tc.Options().fuse(fusion).tile(*tiles)).to_c(*shapes)
    assert f"tiles {' × '.join(map(str, tiles))}" in code
    outputs = _run(code, tmp_path, _instance(source, None, [("float32", s) for s in shapes]), arrays)
    expected_output = np.maximum(arrays["A"] @ arrays["B"] + arrays["b"], 0)
    np.testing.assert_allclose(outputs["C"], expected_output, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs["D"], expected_output.max(1), rtol=1e-4, atol=1e-5)


def test_skewed_loops_equal_numpy(tmp_path: Path) -> None:
    source = "def f(float(N) A) -> (O, T) { T(i, j) = A(i) * A(j) + A(i) O(i) +=! T(i, j) + T(j, i) }"
    code = fx.tc.define(source, options=fx.tc.Options().fuse_statements(1, 2)).to_c((5,))
    assert "max(0, i - 4)" in code
    a = np.asarray(np.random.default_rng(0).standard_normal(5), "float32")
    outputs = _run(code, tmp_path, _instance(source, None, [("float32", (5,))]), {"A": a})
    products = np.outer(a, a) + a[:, None]
    np.testing.assert_allclose(outputs["O"], (products + products.T).sum(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", cases("valid"), ids=lambda case: str(case["name"]))
def test_code_equals_numpy(case: dict[str, Any], tmp_path: Path) -> None:
    arrays = contents(case, "inputs", "given")
    made = _instance(case["program"], case["entry"], [(spec(text).dtype, spec(text).shape) for text in case["inputs"]])
    try:
        code = c_code(made, "Max")
    except TCError as error:
        if "no function" in str(error) or "already changed" in str(error):
            pytest.skip(str(error))
        raise
    outputs = _run(code, tmp_path, made, arrays)
    expected_outputs = expected(case, arrays)
    for output in map(spec, case["outputs"]):
        expected_output = np.asarray(expected_outputs[output.name]).astype(np.float64)
        distance = np.abs(outputs[output.name].astype(np.float64) - expected_output).max()
        assert distance <= 2e-5 * max(1.0, np.abs(expected_output).max()), code


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck))
@given(programs(), st.sampled_from(_FUSIONS))
def test_code_of_random_programs_equals_the_interpreter(
    tmp_path_factory: pytest.TempPathFactory, program: Made, fusion: str
) -> None:
    try:
        made = _instance(program.source, None, [(canonical(dtype), shape) for dtype, shape in program.inputs])
        code = c_code(made, fusion)
    except TCError:
        return
    if made.bounds.checks:
        return  # random subscripts may fail the assertions, which end the process
    random = np.random.default_rng(0)
    arrays = {
        name: np.asarray(random.integers(-8, 9, shape) / 4 if "float" in dtype else random.integers(0, 2, shape), dtype)
        for name, shape, dtype in inputs(made)
    }
    expected_outputs = interpret(made.program, made.sizes, made.ranges, arrays)
    outputs = _run(
        code, tmp_path_factory.mktemp("code"), made, arrays, ()
    )  # random programs compare a value with itself
    for name, output in outputs.items():
        values = expected_outputs[name].astype(np.float64)
        usable = np.isfinite(values) & (np.abs(values) < 2**30)  # beyond, conversions to integers are undefined in C
        np.testing.assert_allclose(
            output.astype(np.float64)[usable], values[usable], rtol=2e-4, atol=2e-4, err_msg=f"{program.source}\n{code}"
        )


def test_names_that_c_does_not_allow_are_changed(tmp_path: Path) -> None:
    source = "def main(float(N) double_, float(N) int, float(N) linux, int32 INT32_MAX) -> (_X, assert) {\n"
    source += "  _X(for) = int(for) + linux(for) * float(INT32_MAX)  assert(i) = _X(i) + double_(i) }"
    code = fx.tc.define(source).to_c((3,), (3,), (3,), ())
    assert "void main_(" in code
    ones = np.ones(3, "float32")
    arrays = {"double_": ones, "int": ones, "linux": ones, "INT32_MAX": np.array(5, "int32")}
    made = _instance(source, None, [*[("float32", (3,))] * 3, ("int32", ())])
    outputs = _run(code, tmp_path, made, arrays)
    assert outputs["assert"].tolist() == [7.0] * 3


def test_subscripts_from_tensors_are_asserted(tmp_path: Path) -> None:
    source = "def gather(float(N) A, int32(M) I) -> (O) { O(i) = A(I(i)) }"
    code = fx.tc.define(source).to_c((3,), (2,))
    assert "A[at_int64(I[i], 0, 2)]" in code
    made = _instance(source, None, [("float32", (3,)), ("int32", (2,))])
    outputs = _run(code, tmp_path, made, {"A": np.arange(3, dtype="float32"), "I": np.array([2, 1], "int32")})
    assert outputs["O"].tolist() == [2.0, 1.0]
    main = "int main(void) { float A[3] = {0}, O[2]; int I[2] = {0, 3}; gather(A, I, O); return 0; }"
    (tmp_path / "main.c").write_text(f"{code}\n{main}")
    program = tmp_path / "main"
    subprocess.run(["gcc", "-o", str(program), str(tmp_path / "main.c"), "-lm"], check=True, capture_output=True)
    ended = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "low <= place && place <= high" in ended.stderr


def test_what_c_cannot_compute_is_refused() -> None:
    with pytest.raises(TCError, match=r"C has no function `erfinv`"):
        fx.tc.define("def f(float(N) A) -> (O) { O(i) = erfinv(A(i)) }").to_c((4,))
    for statement in ("O(i) = O(3 - i) where i in 0:4", "O(i) +=! O(i) * A(j)"):
        with pytest.raises(TCError, match=r"line 1.*`O` that the statement has already changed.*another output"):
            fx.tc.define(f"def f(float(N) A) -> (O) {{ O(i) = A(i) {statement} }}").to_c((4,))
