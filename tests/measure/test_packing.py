"""A candidate that packs constants is measured as it is deployed: packed once, before the calls that are timed."""

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
from felixlike.measure.child.trial_process import build
from felixlike.measure.packing import cut
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
    """relu(A · B + b) whose constant B is padded to whole tiles by the block that packs it."""
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


def test_the_kernel_and_its_packing_compute_what_the_schedule_does() -> None:
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
    answer = _tvm.runtime.empty(shapes[-1], "float32")
    codegen.compile_primfuncs(_tvm.IRModule({"main": kernel}), task.target)["main"](
        arrays[0], packed, arrays[2], answer
    )
    np.testing.assert_array_equal(answer.numpy(), expected)


def test_a_schedule_without_packing_is_left_alone() -> None:
    main = task_of("dense_bias_relu").module["main"]
    kernel, packings = cut(main)
    assert kernel.same_as(main)
    assert packings == ()


def test_what_is_timed_does_not_pack() -> None:
    task = task_of("conv2d_odd")
    built, _ = build(str(_tvm.ir.save_json(packing_schedule(task))), task.target)
    ((parameter, shape, dtype),) = built.packed
    assert (parameter, dtype) == (1, "float32")
    assert np.prod(shape) == 5 * 3 * 3 * 3
    wrong = _tvm.runtime.empty((5, 3, 3, 3, 1), "float32")
    sizes = [[int(e) for e in p.shape] for p in task.module["main"].params]
    with pytest.raises(Exception, match=r"ndim|shape"):  # it takes the constant as it is packed
        built.library["main"](_tvm.runtime.empty(sizes[0], "float32"), wrong, _tvm.runtime.empty(sizes[-1], "float32"))


@pytest.mark.parametrize("name", ["dense_bias_relu", "conv2d_odd", "depthwise", "conv2d_grouped", "batch_matmul"])
def test_answers_are_right(pool: MeasurePool, name: str) -> None:
    task = task_of(name)
    found = pool.measure(task, [Given(packing_schedule(task))])[0]
    assert found.status is Status.OK, found.message
    assert found.repeats
    assert found.error is not None
    assert found.error < 1e-5


def test_a_packing_that_pads(pool: MeasurePool) -> None:
    task, module = padded()
    _, (packing,) = cut(module["main"])
    assert packing.shape == (2, 16, 16)
    found = pool.measure(task, [Given(module)])[0]
    assert found.status is Status.OK, found.message
    assert found.error is not None
    assert found.error < 1e-5


def test_a_wrong_packing_is_noticed(pool: MeasurePool) -> None:
    task, module = padded()
    text = module.script()
    assert "T.float32(0.0)" in text
    broken = _tvm.tvm.script.from_source(
        text.replace("T.if_then_else(v1 < 20, B[v0, v1]", "T.if_then_else(v1 < 19, B[v0, v1]")
    )
    found = pool.measure(task, [Given(broken)])[0]
    assert found.status is Status.WRONG


def test_what_cannot_be_cut() -> None:
    """A block that packs what another block makes."""
    task = task_of("dense_bias_relu")
    schedule = _tvm.Schedule(task.module)
    first = schedule.cache_read(schedule.get_sblock("Y"), 1, "global")
    second = schedule.cache_read(schedule.get_sblock("Y"), 1, "global")
    schedule.annotate(second, PACKING, True)
    with pytest.raises(InvalidSchedule, match="it packs something else than one of the function's parameters"):
        cut(schedule.mod["main"])
    schedule.unannotate(second, PACKING)
    schedule.annotate(first, PACKING, True)
    assert len(cut(schedule.mod["main"])[1]) == 1
