"""Vectorized mathematical functions are compared with float64, on dense grids and at the limits of their range."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from felixlike import _tvm, codegen
from felixlike._tvm import te, tirx
from felixlike.codegen.annotations import LoopAnnotation, Softmax
from felixlike.codegen.passes import FUNCTIONS, vectorise_math
from felixlike.hardware import BFLOAT16, FLOAT32, PRECISIONS, Precision

_INF, _NAN = math.inf, math.nan
_ERF = np.vectorize(math.erf)
_TRUTH: dict[str, Any] = {
    "exp": np.exp,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "erf": _ERF,
    "log": np.log,
    "log2": np.log2,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "nearbyint": np.rint,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
}
_ULP = {"exp": 1.1, "sigmoid": 2.5, "tanh": 1.3, "erf": 3.0, "log": 1.0, "log2": 1.8}
_ULP |= {"rsqrt": 1.5, "nearbyint": 0, "sin": 2.0, "cos": 2.0, "tan": 3.5, "atan": 2.0, "sinh": 4.0, "cosh": 4.0}
_TRIGONOMETRIC, _HYPERBOLIC = ("sin", "cos", "tan"), ("sinh", "cosh")


def _module(
    name: str, length: int, dtype: str = "float32", *, vector: int = 16, mark: LoopAnnotation | None = None
) -> Any:
    """Return y[i] = f(x[i]) as a scheduled function.

    Args:
        name: the function.
        length: number of elements.
        dtype: their type.
        vector: number of lanes; 1 for loops without vectors.
        mark: annotation of the loop over lanes."""
    x = te.placeholder((length,), dtype, name="x")
    y = te.compute((length,), lambda i: getattr(tirx, name)(x[i]), name="y")
    func = te.create_prim_func([x, y]).with_attr("global_symbol", "main")
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func}))
    if vector > 1:
        (loop,) = schedule.get_loops(schedule.get_sblock("y"))
        _, lane = schedule.split(loop, [None, vector])
        schedule.vectorize(lane)
        if mark is not None:
            mark.put(schedule, lane)
    return schedule.mod


def _target(cpu: str | None = None) -> Any:
    return _tvm.Target({"kind": "llvm", "mcpu": cpu or _tvm.host_cpu(), "num-cores": 1})


def _apply(name: str, x: Any, *, vector: int = 16, cpu: str | None = None, mark: LoopAnnotation | None = None) -> Any:
    padded = np.resize(x.astype("float32"), -(-x.size // vector) * vector)
    executable = codegen.compile_primfuncs(_module(name, padded.size, vector=vector, mark=mark), _target(cpu))
    y = _tvm.runtime.tensor(np.zeros_like(padded))
    executable.jit()["main"](_tvm.runtime.tensor(padded), y)
    return y.numpy()[: x.size]


def _points(name: str) -> Any:
    """Return points of every float32 magnitude, which are dense where the function varies."""
    low, high = {"exp": (-87.33, 88.72), "sigmoid": (-87.3, 30.0)}.get(name, (-12.0, 12.0))
    magnitudes = np.arange(0x00800000, 0x7F800000, 4099, dtype=np.int32).view("float32")
    signed = np.concatenate([magnitudes, -magnitudes, np.linspace(low, high, 500_000, dtype="float32")])
    if name in ("log", "log2", "rsqrt"):
        return np.abs(signed[signed != 0])
    if name in _TRIGONOMETRIC:
        return signed[np.abs(signed) < 2**25]
    if name in _HYPERBOLIC:
        return signed[np.abs(signed) < 89.4]
    if name in ("exp", "sigmoid"):
        signed = signed[(signed > low) & (signed < high)]
    return signed


def _error_in_ulp(got: Any, x: Any, name: str) -> float:
    with np.errstate(all="ignore"):
        truth = _TRUTH[name](x.astype("float64"))
    unit = np.maximum(np.spacing(np.abs(truth).astype("float32")).astype("float64"), 2.0**-149)
    return float(np.max(np.abs(got - truth) / unit))


@pytest.mark.parametrize("cpu", [None, "x86-64-v2"])
@pytest.mark.parametrize("name", sorted(_TRUTH))
def test_errors_are_within_the_limit(name: str, cpu: str | None) -> None:
    """The error is within `_ULP` on the host, and on a processor without fused multiply-add."""
    if cpu and not _tvm.host_features() >= {"sse4.2"}:
        pytest.skip("not an x86-64 processor")
    x = _points(name)
    assert _error_in_ulp(_apply(name, x, cpu=cpu), x, name) <= _ULP[name]


@pytest.mark.parametrize(
    ("name", "x", "y"),
    [
        ("exp", [_INF, 89.0, 1e30, -_INF, -88.0, -104.0, -1e30, 0.0, -0.0], [_INF, _INF, _INF, 0, 0, 0, 0, 1, 1]),
        ("sigmoid", [_INF, -_INF, 1e30, -1e30, 0.0], [1, 0, 1, 0, 0.5]),
        ("tanh", [_INF, -_INF, 1e30, -1e30, 0.0, 9.1, -9.1], [1, -1, 1, -1, 0, 1, -1]),
        ("erf", [_INF, -_INF, 1e30, -1e30, 0.0, 4.0, -4.0], [1, -1, 1, -1, 0, 1, -1]),
        ("sin", [0.0, _INF, -_INF], [0, _NAN, _NAN]),
        ("cos", [0.0, _INF, -_INF], [1, _NAN, _NAN]),
        ("atan", [_INF, -_INF, 0.0], [np.float32(np.pi / 2), -np.float32(np.pi / 2), 0]),
        ("sinh", [_INF, -_INF, 90.0, -1e30, 0.0], [_INF, -_INF, _INF, -_INF, 0]),
        ("cosh", [_INF, -_INF, 90.0, -1e30, 0.0], [_INF, _INF, _INF, _INF, 1]),
        ("rsqrt", [_INF, 0.0, 4.0, -1.0], [0, _INF, 0.5, _NAN]),
        ("nearbyint", [0.5, 1.5, 2.5, -0.5, -3.5, 2.0**70, _INF], [0, 2, 2, 0, -4, 2.0**70, _INF]),
        ("log", [_INF, 0.0, -0.0, 1.0, -1.0, -_INF, -1e-40], [_INF, -_INF, -_INF, 0, _NAN, _NAN, _NAN]),
        (
            "log2",
            [_INF, 0.0, -0.0, 1.0, -1.0, -_INF, -1e-40, 2.0**-149],
            [_INF, -_INF, -_INF, 0, _NAN, _NAN, _NAN, -149],
        ),
    ],
)
@pytest.mark.parametrize("vector", [1, 16])
def test_values_at_the_limits_are_exact(name: str, x: list[float], y: list[float], vector: int) -> None:
    np.testing.assert_array_equal(_apply(name, np.array(x), vector=vector), y)


@pytest.mark.parametrize("name", sorted(_TRUTH))
def test_nan_gives_nan(name: str) -> None:
    """NaN of every payload gives NaN, although the payload takes part in integer arithmetic."""
    assert np.isnan(_apply(name, _nan())).all()


def _nan() -> Any:
    """Return NaN of many payloads and both signs."""
    bits = np.arange(0x7F800001, 0x80000000, 8191, dtype=np.uint32)
    return np.concatenate([bits, bits | 0x80000000]).view("float32")


@pytest.mark.parametrize("cpu", [None, "x86-64-v2"])
@pytest.mark.parametrize(("precision", "error"), [(FLOAT32, 1.2e-7), (BFLOAT16, 1e-5)], ids=["float32", "bfloat16"])
def test_exponentials_of_a_softmax(precision: Precision, error: float, cpu: str | None) -> None:
    """They have fewer digits where they are rounded to bfloat16. Arguments are at most 0."""
    if cpu and not _tvm.host_features() >= {"sse4.2"}:
        pytest.skip("not an x86-64 processor")
    mark = Softmax(PRECISIONS.index(precision))
    x = -np.abs(_points("exp"))
    x = np.concatenate([x[x >= -87.33], np.zeros(1, "float32")])
    np.testing.assert_allclose(_apply("exp", x, mark=mark, cpu=cpu), np.exp(x.astype("float64")), rtol=error)
    limits = np.array([-_INF, -88.0, -104.0, -1e30, -3e38])
    np.testing.assert_array_equal(_apply("exp", limits, mark=mark, cpu=cpu), np.zeros(5))
    assert np.isnan(_apply("exp", _nan(), mark=mark, cpu=cpu)).all()


def test_largest_and_smallest_exponentials_are_accurate() -> None:
    x = np.array([88.72283, np.log(2.0**-126) * (1 - 1e-7)], "float32")
    np.testing.assert_allclose(_apply("exp", x), np.exp(x.astype("float64")), rtol=1.2e-7)


@pytest.mark.parametrize("name", ["log", "log2"])
def test_logarithms_of_subnormals_are_accurate(name: str) -> None:
    x = np.arange(1, 0x00800000, 1021, dtype=np.int32).view("float32")
    assert _error_in_ulp(_apply(name, x), x, name) <= _ULP[name]


@pytest.mark.parametrize("cpu", [None, "x86-64-v2"])
def test_binary_logarithms_of_powers_of_2_are_exact(cpu: str | None) -> None:
    """They are exact with and without fused multiply-add, and do not decrease around powers of 2."""
    if cpu and not _tvm.host_features() >= {"sse4.2"}:
        pytest.skip("not an x86-64 processor")
    exponents = np.arange(-149, 128)
    powers = np.ldexp(np.float32(1), exponents).astype("float32")
    np.testing.assert_array_equal(_apply("log2", powers, cpu=cpu), exponents)
    below, above = (_apply("log2", np.nextafter(powers[1:], np.float32(end)), cpu=cpu) for end in (0, _INF))
    assert (below <= exponents[1:]).all()
    assert (above >= exponents[1:]).all()


@pytest.mark.parametrize("name", sorted(_TRUTH))
def test_no_calls_remain(name: str) -> None:
    """The compiled library of a vector loop calls no mathematical functions."""
    executable = codegen.compile_primfuncs(_module(name, 64), _target())
    code = executable.mod.inspect_source("ll")
    assert f"@llvm.{name}.f32" not in code
    assert f"@{name}f" not in code
    assert f"tail call float @{name}" not in code
    assert "<16 x float>" in code


def test_other_types_and_functions_are_unchanged() -> None:
    double = _module("exp", 64, "float64")
    root = _module("sqrt", 64)
    for module in (double, root):
        assert _tvm.structural_hash(vectorise_math(module)) == _tvm.structural_hash(module)


def test_the_original_module_is_unchanged() -> None:
    module = _module("exp", 64)
    before = str(module)
    codegen.compile_primfuncs(module, _target())
    assert str(module) == before
    assert "tirx.exp" in FUNCTIONS


def test_nested_calls_stay_small() -> None:
    x = te.placeholder((64,), name="x")

    def nested(value: Any) -> Any:
        for _ in range(6):
            value = tirx.tanh(tirx.exp(value))
        return value

    func = te.create_prim_func([x, te.compute((64,), lambda i: nested(x[i]), name="y")])
    assert len(str(vectorise_math(_tvm.IRModule({"main": func})))) < 20_000


@pytest.mark.parametrize("exponent", [1, 2, 3, 5, 16, -1, -3])
def test_integer_powers_are_products(exponent: int) -> None:
    module = _power(float(exponent))
    assert not _tvm.found(vectorise_math(module)["main"].body, _tvm.ir.Call)
    x = np.concatenate([np.linspace(-4, 4.1, 997, dtype="float32"), np.array([_INF, -_INF, _NAN], "float32")])
    y = _tvm.runtime.tensor(np.zeros_like(x))
    codegen.compile_primfuncs(module, _target()).jit()["main"](_tvm.runtime.tensor(x), y)
    np.testing.assert_allclose(y.numpy(), x.astype("float64") ** exponent, rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_square_roots_use_the_processors_instruction(exponent: float) -> None:
    x = np.geomspace(1e-30, 1e30, 1000, dtype="float32")
    np.testing.assert_allclose(_powers(_power(exponent), x), x.astype("float64") ** exponent, rtol=1.2e-7)


@pytest.mark.parametrize("exponent", [0.0, 2.5, 17.0, -0.3, 0.333])
def test_other_powers_are_vectorized(exponent: float) -> None:
    x = np.concatenate([np.geomspace(1e-12, 1e12, 500), -np.geomspace(1e-12, 1e12, 500)]).astype("float32")
    with np.errstate(all="ignore"):
        truth = x.astype("float64") ** float(np.float32(exponent))
    normal = (np.abs(truth) < 3.4e38) & (np.abs(truth) > 1.2e-38) | np.isnan(truth)
    np.testing.assert_allclose(_powers(_power(float(np.float32(exponent))), x)[normal], truth[normal], rtol=1.2e-7)


def test_powers_at_the_limits_agree_with_c() -> None:
    """Powers agree with C's pow where |x| or y is at a limit of the range, or the sign depends on y."""
    ends = np.array([0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, 0.3, 1e30, -1e30, _INF, -_INF, _NAN], "float32")
    x, y = (side.ravel() for side in np.meshgrid(ends, ends))
    with np.errstate(all="ignore"):
        truth = x.astype("float64") ** y.astype("float64")
        in_float32 = truth.astype("float32")
    a, b = (te.placeholder(x.shape, name=name) for name in "ab")
    func = te.create_prim_func([a, b, te.compute(x.shape, lambda i: tirx.power(a[i], b[i]), name="y")])
    got = _powers(_tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), x, y)
    normal = ~((np.abs(truth) < 2.0**-126) & (truth != 0))
    np.testing.assert_allclose(got[normal], in_float32[normal], rtol=1.2e-7)
    np.testing.assert_array_equal(np.signbit(got[in_float32 == 0]), np.signbit(in_float32[in_float32 == 0]))


@pytest.mark.parametrize("vector", [1, 2, 12, 16, 64])
def test_remainders_are_those_of_c(vector: int) -> None:
    """Pairs of all exponents, quotients near whole numbers and near 2^24, and limits give C's fmod to the last bit."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2**32, (2, 300_000), dtype=np.uint32).view("float32")
    factors = rng.integers(1, 2**12, 100_000).astype("float32")
    multiples = rng.integers(1, 2**12, 100_000).astype("float32") * factors
    large = (factors.astype("float64") * rng.integers(2**23, 2**25, factors.size)).astype("float32")
    tiny, tiniest = rng.integers(0, 2**23, (2, 100_000), dtype=np.uint32).view("float32")
    ends = _ends()
    left = np.concatenate([x, multiples, np.nextafter(multiples, np.float32(0)), large, -tiny, ends[0]])
    right = np.concatenate([y, factors, -factors, factors, tiniest, ends[1]])
    with np.errstate(all="ignore"):
        truth = np.fmod(left, right)
    got = _binary("truncmod", left, right, vector=vector)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(truth))
    known = ~np.isnan(truth)
    np.testing.assert_array_equal(got[known].view("uint32"), truth[known].view("uint32"))


def test_angles_are_those_of_c() -> None:
    """Angles of all pairs of exponents and of the limits are within 3 ulp of float64, with C's signs and NaN."""
    rng = np.random.default_rng(0)
    random = rng.integers(0, 2**32, (2, 300_000), dtype=np.uint32).view("float32")
    normal = rng.standard_normal((2, 100_000)).astype("float32")
    y, x = (np.concatenate(parts) for parts in zip(random, normal, _ends(), strict=True))
    with np.errstate(all="ignore"):
        truth = np.arctan2(y.astype("float64"), x.astype("float64"))
    got = _binary("atan2", y, x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(truth))
    known = ~np.isnan(truth)
    unit = np.maximum(np.spacing(np.abs(truth).astype("float32")).astype("float64"), 2.0**-149)
    assert np.max((np.abs(got - truth) / unit)[known]) <= 3
    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(truth)[known])


def test_whether_values_are_nan_is_found_in_vectors() -> None:
    x = te.placeholder((208,), name="x")
    y = te.compute(x.shape, lambda i: tirx.Select(tirx.isnan(x[i]), tirx.const(0.0, "float32"), x[i]), name="y")
    module = _tvm.IRModule({"main": te.create_prim_func([x, y]).with_attr("global_symbol", "main")})
    values = np.concatenate([_ends()[0], -_ends()[0]])[:208].astype("float32")
    assert "isnan" not in str(vectorise_math(module))
    np.testing.assert_array_equal(_powers(module, values), np.where(np.isnan(values), 0, values))


def _ends() -> tuple[Any, Any]:
    """Return all pairs of numbers at the limits of float32."""
    ends = np.array([0, -0.0, 1, -1, 0.3, 2, 1e-45, -1e-45, 1e-38, 3e38, -3e38, _INF, -_INF, _NAN], "float32")
    left, right = np.meshgrid(ends, ends)
    return left.ravel(), right.ravel()


def _binary(name: str, x: Any, y: Any, *, vector: int = 16) -> Any:
    """Return what an operator of two numbers computes in vectors. Only those of 12 lanes may call the C library."""
    size = -(-x.size // vector) * vector
    a, b = (te.placeholder((size,), name=side) for side in "ab")
    func = te.create_prim_func([a, b, te.compute((size,), lambda i: getattr(tirx, name)(a[i], b[i]), name="y")])
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    if vector > 1:
        (loop,) = schedule.get_loops(schedule.get_sblock("y"))
        schedule.vectorize(schedule.split(loop, [None, vector])[1])
    executable = codegen.compile_primfuncs(schedule.mod, _target())
    code = executable.mod.inspect_source("ll")
    assert "frem" not in code or vector == 12
    assert "@atan2f" not in code
    got = _tvm.runtime.tensor(np.zeros(size, "float32"))
    executable.jit()["main"](*(_tvm.runtime.tensor(np.resize(side, size)) for side in (x, y)), got)
    return got.numpy()[: x.size]


def _powers(module: Any, *arguments: Any) -> Any:
    assert not [c for c in _tvm.found(vectorise_math(module)["main"].body, _tvm.ir.Call) if "pow" in str(c.op)]
    y = _tvm.runtime.tensor(np.zeros_like(arguments[0]))
    codegen.compile_primfuncs(module, _target()).jit()["main"](*map(_tvm.runtime.tensor, arguments), y)
    return y.numpy()


def _power(exponent: float) -> Any:
    x = te.placeholder((1000,), name="x")
    y = te.compute((1000,), lambda i: tirx.power(x[i], tirx.const(exponent, "float32")), name="y")
    return _tvm.IRModule({"main": te.create_prim_func([x, y]).with_attr("global_symbol", "main")})
