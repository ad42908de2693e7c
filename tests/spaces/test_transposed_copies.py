"""The rule `transposed_copies`: golden programs, exact formulas, correct results, and declined operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import workloads
from schedules import as_module, decided_anew, equal_counts, run

from felixlike import _tvm
from felixlike._tvm import te, topi
from felixlike.codegen.passes import transpose
from felixlike.frontend.task import make_task
from felixlike.spaces.cpu.transposed_copies import transposed_copies
from felixlike.symbolic import sketches

AVX512 = _tvm.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2})


def _permuted(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str = "float32") -> Any:
    x = te.placeholder(shape, dtype, name="X")
    return te.create_prim_func([x, topi.transpose(x, axes)])


def test_program_and_exact_formulas(golden: Callable[[str, str], None]) -> None:
    (sketch,) = sketches(make_task(_permuted((2, 4, 8, 48), (0, 3, 1, 2)), AVX512, name="transposed"), space="own")
    assert sketch.is_symbolic, sketch.reason
    golden("programs/own_transposed_copy", str(sketch.program))
    assert equal_counts(sketch, sketch.sample(4, seed=5)) > 0


def test_formulas_are_exact_for_blocks_that_do_not_divide() -> None:
    (sketch,) = sketches(make_task(_permuted((2, 7, 7, 100), (0, 3, 1, 2)), AVX512, name="transposed"), space="own")
    assert sketch.is_symbolic, sketch.reason
    assert equal_counts(sketch, sketch.sample(4, seed=5)) > 0


@pytest.mark.parametrize(
    ("shape", "axes", "size"),
    [
        ((64, 48), (1, 0), 16),
        ((8, 56), (1, 0), 8),
        ((2, 16, 4, 8), (0, 2, 3, 1), 16),
        ((2, 3, 4, 16), (0, 3, 1, 2), 8),
        ((2, 8, 3, 4, 4), (0, 2, 3, 4, 1), 8),
        ((1, 12, 1, 20), (3, 2, 0, 1), 8),
        ((4, 6, 8), (2, 1, 0), 4),
        ((13, 16), (1, 0), 8),
        ((100, 77), (1, 0), 16),
        ((2, 7, 7, 30), (0, 3, 1, 2), 16),
        ((3, 19, 5, 5), (0, 2, 3, 1), 16),
        ((5, 9, 11), (2, 1, 0), 4),
    ],
    ids=str,
)
def test_results_are_correct(shape: tuple[int, ...], axes: tuple[int, ...], size: int) -> None:
    """Schedules with two sets of decisions are correct, and blocks have this size."""
    module = as_module(_permuted(shape, axes))
    (schedule,) = transposed_copies(_tvm.Schedule(module, seed=1), 16)
    assert int(_tvm.found(schedule.mod["main"].body, _tvm.tirx.For)[0].extent) == size
    in_registers = transpose(schedule.mod)["main"].body
    assert _tvm.found(in_registers, _tvm.tirx.Shuffle)
    assert not _tvm.found(in_registers, _tvm.tirx.IfThenElse)
    x = np.arange(np.prod(shape)).reshape(shape).astype("float32")
    for variant in decided_anew(schedule, module):
        _, got = run(variant, [x, np.zeros(x.transpose(axes).shape, "float32")])
        np.testing.assert_array_equal(got, x.transpose(axes))


@pytest.mark.parametrize(
    "func",
    [
        _permuted((2, 12, 8, 64), (0, 2, 1, 3)),
        _permuted((3, 16), (1, 0)),
        _permuted((16, 16), (0, 1)),
        _permuted((16, 16), (1, 0), "bool"),
        workloads.ALL["chain"](),
        workloads.ALL["matmul"](),
        workloads.ALL["softmax"](),
        workloads.ALL["gather"](),
    ],
    ids=["heads", "too few", "in order", "bools", "arithmetic", "product", "rows", "gather"],
)
def test_other_operators_are_declined(func: Any) -> None:
    assert transposed_copies(_tvm.Schedule(as_module(func)), 16) == []


def test_several_outputs_are_declined() -> None:
    x = te.placeholder((8, 8), name="X")
    func = te.create_prim_func([x, te.compute((8, 8), lambda i, j: x[i, j]), topi.transpose(x, (1, 0))])
    assert transposed_copies(_tvm.Schedule(as_module(func)), 8) == []


def test_outputs_that_other_stages_read_are_declined() -> None:
    """An output that another stage reads, like the mask of cross entropy, is not computed where it is read."""
    x = te.placeholder((8, 8), name="X")
    doubled = te.compute((8, 8), lambda i, j: 2.0 * x[i, j])
    func = te.create_prim_func([x, doubled, topi.transpose(doubled, (1, 0))])
    assert transposed_copies(_tvm.Schedule(as_module(func)), 8) == []
