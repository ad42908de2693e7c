import math
from typing import Any

import pytest
from support.faulty import elementwise, matmul, te, tirx, topi

from felixlike.errors import InvalidModel
from felixlike.frontend.signature.arguments import arguments


def table_lookup(indices: Any, table: tuple[int, ...] = (50, 8)) -> Any:
    """Return a PrimFunc with a table and an index vector. `indices(table, index)` computes its output."""
    w, i = te.placeholder(table, name="W"), te.placeholder((4,), "int64", name="I")
    return te.create_prim_func([w, i, indices(w, i)])


def test_arguments_of_a_product() -> None:
    a, b, c = arguments(matmul(16))
    assert (a.name, a.shape, a.dtype, a.bytes) == ("A", (16, 16), "float32", 1024)
    assert not a.written
    assert not b.written
    assert c.written
    assert c.read  # it holds the running sum


def test_an_elementwise_output_is_not_read() -> None:
    x, y = arguments(elementwise(topi.nn.relu))
    assert (x.read, x.written) == (True, False)
    assert (y.read, y.written) == (False, True)


def test_indices_stay_below_the_dimension_they_index() -> None:
    table, indices, out = arguments(table_lookup(lambda w, i: topi.take(w, i, axis=0, mode="clip")))
    assert indices.below == 50
    assert table.below is None
    assert out.below is None


def test_indices_are_followed_through_other_buffers() -> None:
    def compute(w: Any, i: Any) -> Any:
        shifted = te.compute((4,), lambda n: i[n].astype("int32"), name="narrow")
        again = te.compute((4,), lambda n: shifted[3 - n], name="again")
        return te.compute((4, 8), lambda n, m: w[again[n], m], name="out")

    assert arguments(table_lookup(compute))[1].below == 50


def test_an_index_into_two_dimensions_has_the_smaller_limit() -> None:
    func = table_lookup(lambda w, i: te.compute((4,), lambda n: w[i[n], i[n]], name="out"))
    assert arguments(func)[1].below == 8


def test_dynamic_shapes_are_refused() -> None:
    x = te.placeholder((tirx.Var("n", "int64"), 4), name="X")
    with pytest.raises(InvalidModel, match=r"^parameter X: .*\bshape\b"):
        arguments(te.create_prim_func([x, topi.nn.relu(x)]))


def test_types_without_numpy_are_refused() -> None:
    with pytest.raises(InvalidModel, match=r"^parameter X: .*\bfloat8_e4m3fn\b.*\bfloat32\b"):
        arguments(elementwise(topi.identity, dtype="float8_e4m3fn"))


def test_bfloat16_has_two_bytes_an_element() -> None:
    (x, _) = arguments(elementwise(topi.identity, dtype="bfloat16"))
    assert (x.dtype, x.bytes) == ("bfloat16", 2 * math.prod(x.shape))


def test_a_function_without_output_is_refused() -> None:
    func = matmul(4)
    with pytest.raises(InvalidModel, match=r"^PrimFunc: .*\bparameters\."):
        arguments(func.with_body(tirx.Evaluate(0)))
