"""`tensor_cores` computes each element of a warp's tile once, by NVIDIA's tables, and refuses loops of other forms."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from felixlike import _tvm
from felixlike.codegen.annotations import TensorCores
from felixlike.codegen.passes import tensor_cores
from felixlike.errors import CompilationFailed

ROWS, COLUMNS, STEPS = 16, 8, 16


def _scheduled(
    *,
    steps: int = STEPS,
    rows: int = 2,
    columns: int = 2,
    threads: tuple[int, int] = (8, 4),
    warps: int = 1,
    dtype: str = "float32",
    bound: bool = True,
    transposed: bool = False,
    length: int | None = None,
) -> Any:
    """Return the schedule of a product of one warp's tile, or of several along the columns, with an annotated loop."""
    height, width = threads[0] * rows, warps * threads[1] * columns
    reduction_length = steps if length is None else length
    a, b = (
        _tvm.te.placeholder(s, dtype, name=n)
        for s, n in (((height, reduction_length), "a"), ((reduction_length, width), "b"))
    )
    k = _tvm.te.reduce_axis((0, reduction_length), name="k")
    y = _tvm.te.compute((height, width), lambda i, j: _tvm.te.sum(a[i, k] * b[k, j], axis=k), name="y")
    module = _tvm.IRModule({"main": _tvm.te.create_prim_func([a, b, y]).with_attr("global_symbol", "main")})
    schedule = _tvm.Schedule(module)
    block = schedule.get_sblock("y")
    i, j, loop = schedule.get_loops(block)
    outer, step = schedule.split(loop, [None, steps])
    (g, row), (warp, t, column) = schedule.split(i, [None, rows]), schedule.split(j, [warps, None, columns])
    schedule.reorder(warp, *((t, g) if transposed else (g, t)), outer, step, row, column)
    group = schedule.fuse(*((warp, t, g) if transposed else (warp, g, t)))
    if bound:
        schedule.bind(group, "threadIdx.x")
    TensorCores(1).put(schedule, step)
    schedule.decompose_reduction(block, outer)
    return schedule


def _value(node: Any, values: dict[str, int]) -> int:
    match type(node).__name__:
        case "IntImm":
            return int(node.value)
        case "Var":
            return values[str(node.name)]
    a, b = _value(node.a, values), _value(node.b, values)
    return {"Add": a + b, "Sub": a - b, "Mul": a * b, "FloorDiv": a // (b or 1), "FloorMod": a % (b or 1)}[
        type(node).__name__
    ]


def _calls(module: Any) -> list[Any]:
    """Return (indices of the store, operands) of each instruction."""
    stores = _tvm.found(module["main"].body, _tvm.tirx.BufferStore)
    instructions = [(s.indices, s.value.args) for s in stores if type(s.value).__name__ == "Call"]
    return [(indices, [_load(argument) for argument in arguments[1:]]) for indices, arguments in instructions]


def _load(argument: Any) -> Any:
    """Return an operand, or the load whose address is taken."""
    return argument if type(argument).__name__ == "TensorLoad" else argument.args[0]


@pytest.mark.parametrize(("rows", "columns", "warps"), [*itertools.product((2, 4), (2, 4), (1, 2))])
def test_a_warp_computes_the_product(rows: int, columns: int, warps: int) -> None:
    """The operands of all 32 threads, placed as in NVIDIA's tables, give A·B, and each element has one thread."""
    module = tensor_cores(_scheduled(rows=rows, columns=columns, warps=warps).mod)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((8 * rows, STEPS)), rng.standard_normal((STEPS, warps * 4 * columns))
    result = np.full((8 * rows, warps * 4 * columns), np.nan)
    thread_name = next(
        str(loop.loop_var.name)
        for loop in _tvm.found(module["main"].body, _tvm.tirx.For)
        if loop.thread_binding is not None
    )
    calls = _calls(module)
    assert len(calls) == rows // 2 * columns // 2
    for warp, (indices, operands) in itertools.product(range(warps), calls):
        left, right = np.full((ROWS, STEPS), np.nan), np.full((STEPS, COLUMNS), np.nan)
        outputs: dict[tuple[int, int], tuple[int, ...]] = {}
        for lane in range(32):
            values = {thread_name: 32 * warp + lane, "k_0": 0}
            operand_indices = [tuple(_value(i, values) for i in load.indices) for load in operands]
            g, t = lane // 4, lane % 4
            c0, c1, c2, c3 = operand_indices[:4]
            assert c0 == tuple(_value(i, values) for i in indices)
            # Each instruction of 8 steps: A is (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4); B is (t, g), (t + 4, g).
            for half in range(2):
                for part in range(2):
                    step = 8 * half + 4 * part + t
                    left[g, step], left[g + 8, step] = (
                        a[operand_indices[4 + 2 * half + part]],
                        a[operand_indices[8 + 2 * half + part]],
                    )
                    right[step, g] = b[operand_indices[12 + 2 * half + part]]
            outputs |= {(g, 2 * t): c0, (g, 2 * t + 1): c1, (g + 8, 2 * t): c2, (g + 8, 2 * t + 1): c3}
        product = left @ right
        for position, element in outputs.items():
            assert np.isnan(result[element])
            result[element] = product[position]
    np.testing.assert_allclose(result, a @ b)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"steps": 8}, "8, 2, 2"),
        ({"rows": 8}, "16, 8, 2"),
        ({"threads": (8, 2)}, "threads, 16"),
        ({"threads": (4, 8)}, "operands"),
        ({"transposed": True}, "operands"),
        ({"bound": False}, "threadIdx.x"),
        ({"dtype": "float64"}, "float32"),
        ({"dtype": "int32"}, "float32"),
        ({"length": 40}, "predicate .*40"),
    ],
)
def test_unsupported_loops_are_errors(changed: dict[str, Any], words: str) -> None:
    # TVM passes an error of a callback on with its class and message, without its fields.
    with pytest.raises(CompilationFailed, match=f"^tensor cores: .*{words}.*report it"):
        tensor_cores(_scheduled(**changed).mod)


def test_annotated_loops_without_a_product_are_errors() -> None:
    x = _tvm.te.placeholder((16,), name="x")
    func = _tvm.te.create_prim_func([x, _tvm.te.compute((16,), lambda i: x[i] * 2.0, name="y")])
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func}))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    thread, step = schedule.split(loop, [1, 16])
    schedule.bind(thread, "threadIdx.x")
    TensorCores(1).put(schedule, step)
    with pytest.raises(CompilationFailed, match="two nested loops"):
        tensor_cores(schedule.mod)


def test_unannotated_modules_are_unchanged() -> None:
    x = _tvm.te.placeholder((16,), name="x")
    func = _tvm.te.create_prim_func([x, _tvm.te.compute((16,), lambda i: x[i] * 2.0, name="y")])
    module = _tvm.IRModule({"main": func})
    assert tensor_cores(module) is module
