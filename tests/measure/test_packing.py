"""A candidate that packs constants is packed once, before the timed calls, as in deployment."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.faulty import Given
from support.operators import OPERATORS

from felixlike import _tvm, codegen
from felixlike.errors import InvalidSchedule
from felixlike.frontend import Task, make_task
from felixlike.frontend.constants import PACKING
from felixlike.hardware import resolve_target
from felixlike.measure import MeasurePool, Status
from felixlike.measure.child.trial_process import _compile
from felixlike.measure.packing import Packing, cut, packing_functions
from felixlike.symbolic import sketches


@pytest.fixture(scope="module")
def pool() -> Iterator[MeasurePool]:
    with MeasurePool(resolve_target("cpu"), workers=1) as opened:
        yield opened


def task_of(name: str, constants: tuple[int, ...] = (1,)) -> Task:
    return make_task(OPERATORS[name](small_size=True), resolve_target("cpu"), name=name, constants=constants)


def packing_schedule(task: Task) -> Any:
    sketch = sketches(task)[0]
    schedule = sketch.schedule(sketch.sample(1, seed=4)[0].tolist())
    assert PACKING in schedule.mod.script()
    return schedule.mod


def padded(n: int = 13, k: int = 16, m: int = 20) -> tuple[Task, Any]:
    """Return a task for relu(A · B + b) and a schedule whose packing block pads the constant B to whole tiles."""
    te = _tvm.te
    a, b, bias = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B"), te.placeholder((m,), name="b")
    r = te.reduce_axis((0, k), name="k")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    func = te.create_prim_func([a, b, bias, te.compute((n, m), lambda i, j: te.max(c[i, j] + bias[j], 0.0), name="D")])
    task = make_task(func, resolve_target("cpu"), name="padded", constants=(1, 2))
    schedule = _tvm.Schedule(task.module)
    block = schedule.get_sblock("C")
    schedule.pad_einsum(block, [4, 16, 1])
    pack = schedule.get_sblock("B_pad")
    schedule.transform_layout(pack, ("write", 0), lambda k, j: (j // 16, k, j % 16))
    schedule.annotate(pack, PACKING, True)
    schedule.compute_inline(schedule.get_sblock("C_pad"))
    return task, schedule.mod


def test_the_kernel_and_its_packing_match_the_schedule() -> None:
    task = task_of("dense_bias_relu")
    module = packing_schedule(task)
    kernel, (packing,) = cut(module["main"])
    assert PACKING not in kernel.script() + packing.function.script()
    assert packing.parameter == 1
    assert len(packing.shape) > 2
    assert tuple(int(e) for e in kernel.params[1].shape) == packing.shape
    rng = np.random.default_rng(0)
    shapes = [tuple(int(e) for e in param.shape) for param in task.module["main"].params]
    arrays = [_tvm.runtime.tensor(rng.standard_normal(shape).astype("float32")) for shape in shapes]
    codegen.compile_primfuncs(module, task.target)["main"](*arrays)
    expected = arrays[-1].numpy().copy()
    packed = _tvm.runtime.empty(packing.shape, packing.dtype)
    _tvm.tvm.compile(packing.function.with_attr("global_symbol", "pack"))["pack"](arrays[1], packed)
    assert sorted(packed.numpy().ravel()) == sorted(arrays[1].numpy().ravel())
    output = _tvm.runtime.empty(shapes[-1], "float32")
    codegen.compile_primfuncs(_tvm.IRModule({"main": kernel}), task.target)["main"](
        arrays[0], packed, arrays[2], output
    )
    np.testing.assert_array_equal(output.numpy(), expected)


def test_a_schedule_without_packing_is_unchanged() -> None:
    main = task_of("dense_bias_relu").module["main"]
    kernel, packings = cut(main)
    assert kernel.same_as(main)
    assert packings == ()


def test_the_timed_function_takes_packed_constants() -> None:
    task = task_of("conv2d_odd")
    executable, ((parameter, shape, dtype),) = _compile(packing_schedule(task), task.target)
    assert (parameter, dtype) == (1, "float32")
    assert np.prod(shape) == 5 * 3 * 3 * 3
    wrong_shape = _tvm.runtime.empty((5, 3, 3, 3, 1), "float32")
    sizes = [[int(e) for e in p.shape] for p in task.module["main"].params]
    with pytest.raises(Exception, match=r"ndim|shape"):  # the kernel expects the packed layout
        executable.jit()["main"](
            _tvm.runtime.empty(sizes[0], "float32"), wrong_shape, _tvm.runtime.empty(sizes[-1], "float32")
        )


@pytest.mark.parametrize("name", ["dense_bias_relu", "conv2d_odd", "depthwise", "conv2d_grouped", "batch_matmul"])
def test_outputs_of_packed_candidates_are_correct(pool: MeasurePool, name: str) -> None:
    task = task_of(name)
    measurement = pool.measure(task, [Given(packing_schedule(task))])[0]
    assert measurement.status is Status.OK, measurement.message
    assert measurement.repeats
    assert measurement.error is not None
    assert measurement.error < 1e-5


def test_packing_can_pad(pool: MeasurePool) -> None:
    task, module = padded()
    _, (packing,) = cut(module["main"])
    assert packing.shape == (2, 16, 16)
    measurement = pool.measure(task, [Given(module)])[0]
    assert measurement.status is Status.OK, measurement.message
    assert measurement.error is not None
    assert measurement.error < 1e-5


def test_a_wrong_packing_is_detected(pool: MeasurePool) -> None:
    task, module = padded()
    text = module.script()
    assert "T.float32(0.0)" in text
    broken = _tvm.tvm.script.from_source(
        text.replace("T.if_then_else(v1 < 20, B[v0, v1]", "T.if_then_else(v1 < 19, B[v0, v1]")
    )
    measurement = pool.measure(task, [Given(broken)])[0]
    assert measurement.status is Status.WRONG


def _copying(rows: int, columns: int, *, nested: bool) -> Any:
    """Return y[i // 16, j, i % 16] = x[i, j], with one loop for each axis, or one more if it is `nested`."""
    x = _tvm.te.placeholder((rows, columns), name="x")
    func = _tvm.te.create_prim_func([x, _tvm.te.compute(x.shape, lambda i, j: x[i, j], name="y")])
    schedule = _tvm.Schedule(_tvm.IRModule({"main": func}))
    block = schedule.get_sblock("y")
    schedule.transform_layout(block, ("write", 0), lambda i, j: (i // 16, j, i % 16))
    if nested:
        schedule.split(schedule.get_loops(block)[0], [None, 5])
    return schedule.mod["main"]


@pytest.mark.parametrize(
    ("columns", "nested", "parallel"), [(515, False, True), (515, True, False), (511, False, False)]
)
def test_large_constants_are_packed_in_order_on_all_cores(columns: int, nested: bool, parallel: bool) -> None:
    """Those of fewer than 2¹⁸ elements and those with other loops are copied as scheduled."""
    rows = 512
    func = _copying(rows, columns, nested=nested)
    shape = (rows // 16, columns, 16)
    target = _tvm.Target("llvm")
    module = packing_functions({"pack": Packing(0, shape, "float32", func)}, target)
    loops = _tvm.found(module["pack"].body, _tvm.tirx.For)
    assert any(loop.kind == _tvm.tirx.ForKind.PARALLEL for loop in loops) is parallel
    constant = np.random.default_rng(0).standard_normal((rows, columns)).astype("float32")
    packed = _tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    codegen.compile_primfuncs(module, target).jit()["pack"](_tvm.runtime.tensor(constant), packed)
    np.testing.assert_array_equal(packed.numpy(), constant.reshape(-1, 16, columns).transpose(0, 2, 1))


def test_packing_something_other_than_a_parameter_is_invalid() -> None:
    """The second copy packs the output of the first, which is not a parameter."""
    task = task_of("dense_bias_relu")
    schedule = _tvm.Schedule(task.module)
    first_copy = schedule.cache_read(schedule.get_sblock("Y"), 1, "global")
    second_copy = schedule.cache_read(schedule.get_sblock("Y"), 1, "global")
    schedule.annotate(second_copy, PACKING, True)
    with pytest.raises(InvalidSchedule, match=r"block .*parameter of the function"):
        cut(schedule.mod["main"])
    schedule.unannotate(second_copy, PACKING)
    schedule.annotate(first_copy, PACKING, True)
    assert len(cut(schedule.mod["main"])[1]) == 1
