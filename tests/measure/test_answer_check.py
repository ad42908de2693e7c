from math import inf, nan

import numpy as np
import pytest

from felixlike.measure.check.answer_check import poison, relative_error, tolerance


def test_floats_are_compared_with_the_largest_reference_value() -> None:
    reference = np.array([1.0, -4.0, 2.0])
    assert relative_error(reference.astype(np.float32), reference) == 0.0
    assert relative_error(np.array([1.0, -4.0, 2.5], np.float32), reference) == 0.125


def test_a_reference_of_zeros_is_compared_absolutely() -> None:
    assert relative_error(np.zeros(3, np.float32), np.zeros(3)) == 0.0
    assert relative_error(np.full(3, 0.5, np.float32), np.zeros(3)) == 0.5


@pytest.mark.parametrize("strange", [nan, inf, -inf])
def test_non_finite_values_are_errors_where_the_reference_is_finite(strange: float) -> None:
    assert relative_error(np.array([1.0, strange], np.float32), np.array([1.0, 2.0])) == inf


def test_values_are_compared_where_the_reference_is_not_nan() -> None:
    reference = np.array([nan, -inf, 2.0])
    assert relative_error(np.array([7.0, -inf, 2.0], np.float32), reference) == 0.0
    assert relative_error(np.array([7.0, inf, 2.0], np.float32), reference) == inf
    assert relative_error(np.array([nan]), np.array([nan])) == 0.0


def test_integers_must_be_equal() -> None:
    assert relative_error(np.array([1, 2]), np.array([1, 2])) == 0.0
    assert relative_error(np.array([1, 3]), np.array([1, 2])) == inf
    assert relative_error(np.array([True]), np.array([False])) == inf


def test_narrow_types_have_larger_tolerances() -> None:
    assert tolerance("float32", 1) == 1e-5
    assert tolerance("float64", 1000) == 1e-10
    assert 1e-2 < tolerance("float16", 1) < 2e-2
    assert tolerance("int64", 100) == tolerance("bool", 100) == 0.0


def test_long_sums_have_larger_tolerances() -> None:
    assert tolerance("float32", 4608) == pytest.approx(float(np.finfo(np.float32).eps) * (16 + 2 * 4608**0.5))
    assert tolerance("float32", 10**6) > 2e-4
    assert tolerance("float32", 10**6, 1e-4) == 1e-4
    assert tolerance("float64", 10, 1e-4) == 1e-4


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int64", "bool"])
def test_poison_never_equals_the_reference(dtype: str) -> None:
    reference = np.array([0, 1, 1, 0]).astype("float64" if dtype == "float32" else dtype)
    poisoned = poison(reference, dtype)
    assert poisoned.dtype == np.dtype(dtype)
    for index in range(4):
        assert relative_error(poisoned[index : index + 1], reference[index : index + 1]) == inf


def test_tolerance_follows_the_coarsest_intermediate_type() -> None:
    assert tolerance("float32", 1, rounded="float16") == tolerance("float16", 1)
    assert tolerance("float16", 1, rounded="bfloat16") == tolerance("bfloat16", 1) == 2.0**-7 * 18
    assert tolerance("float32", 1, 1e-4, rounded="float16") == tolerance("float16", 1)
    assert tolerance("int64", 1, rounded="float16") == 0.0


def test_rounded_products_have_larger_tolerances() -> None:
    assert tolerance("float32", 64, products=2e-3) == 2e-3
    assert tolerance("bfloat16", 64, products=2e-3) == tolerance("bfloat16", 64)
    assert tolerance("float32", 64, 1e-6, products=2e-3) == 1e-6  # the tolerance that the user chose
    assert tolerance("int32", 64, products=2e-3) == 0.0
