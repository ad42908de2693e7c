import numpy as np
import pytest

from felixlike.frontend.signature.arguments import Argument
from felixlike.measure.check.inputs import contents


def argument(dtype: str, *, written: bool = False, read: bool = True, below: int | None = None) -> Argument:
    return Argument("X", (40, 50), dtype, written=written, read=read, below=below)


def test_inputs_are_deterministic() -> None:
    first, second = (contents([argument("float32"), argument("int8")], positive=False) for _ in range(2))
    for left, right in zip(first, second, strict=True):
        assert left is not None
        assert right is not None
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_have_both_signs_unless_positive(dtype: str) -> None:
    (signed,), (positive,) = (contents([argument(dtype)], positive=is_positive) for is_positive in (False, True))
    assert signed is not None
    assert positive is not None
    assert signed.dtype == positive.dtype == np.dtype(dtype)
    assert signed.min() < 0 < signed.max()
    assert positive.min() >= 0.5


def test_sums_of_products_have_a_standard_deviation_of_one() -> None:
    left, right = contents([argument("float32"), argument("float32")], positive=False, terms=50)
    assert left is not None
    assert right is not None
    assert 0.8 < np.std(left @ right.T) < 1.2


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers_are_small_and_not_0_if_positive(dtype: str) -> None:
    (signed,), (positive,) = (contents([argument(dtype)], positive=is_positive) for is_positive in (False, True))
    assert signed is not None
    assert positive is not None
    assert set(np.unique(signed)) == set(range(8))
    assert set(np.unique(positive)) == set(range(1, 8))


def test_indices_cover_the_dimension_exactly() -> None:
    (indices,) = contents([argument("int64", below=20)], positive=True)
    assert indices is not None
    assert set(np.unique(indices)) == set(range(20))
    (narrow,) = contents([argument("int8", below=1000)], positive=False)
    assert narrow is not None
    assert narrow.min() >= 0


def test_booleans_have_both_values() -> None:
    (array,) = contents([argument("bool")], positive=True)
    assert array is not None
    assert set(np.unique(array)) == {False, True}


def test_outputs_have_no_contents_unless_they_are_read() -> None:
    pure, updated = contents(
        [argument("float32", written=True, read=False), argument("float32", written=True)], positive=False
    )
    assert pure is None
    assert updated is not None
