"""Tests for compilation: schedules replace exactly their task's functions, and calls do not copy or pack constants."""

from math import prod
from typing import Any

import pytest
import torch
from torch import nn

from felixlike import _tvm, codegen
from felixlike.codegen.pipeline import PASSES, Pass
from felixlike.errors import CompilationFailed, InvalidSchedule
from felixlike.frontend import Imported, import_model
from felixlike.hardware import c_compiler
from felixlike.measure import MeasurePool, Status, Untuned
from felixlike.runtime import compile_model
from felixlike.spaces import metaschedule

WIDTH = 512


class Layers(nn.Module):
    """Two equal layers with weights of 1 MiB each, larger than everything else, and a small layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.c = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


@pytest.fixture(scope="module")
def layers() -> tuple[nn.Module, torch.Tensor, Imported]:
    torch.manual_seed(0)
    model, x = Layers().eval(), torch.randn(4, WIDTH)
    return model, x, import_model(model, x)


def task_of(imported: Imported, name: str) -> Any:
    (task,) = [task for task in imported.tasks if task.name == name]
    return task


def split(task: Any, *, annotate: str = "") -> Any:
    """Return a schedule that splits the first block's loop by 2 and makes the outer loop parallel."""
    schedule = _tvm.Schedule(task.module)
    block = schedule.get_sblock("matmul")
    outer, _ = schedule.split(schedule.get_loops(block)[0], [None, 2])
    schedule.parallel(outer)
    if annotate:
        schedule.annotate(block, annotate, 1)
    return schedule


def calls(compiled: Any) -> list[tuple[str, Any]]:
    """Return (callee's name, call) of every call in the model's main function, in order."""
    named_calls: list[tuple[str, Any]] = []

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.relax.Call):
            op = node.op
            name = next(getattr(op, key) for key in ("name", "global_symbol", "name_hint") if hasattr(op, key))
            named_calls.append((str(name), node))

    _tvm.relax.analysis.post_order_visit(compiled.lowered["main"], visit)
    return named_calls


def allocations(compiled: Any) -> list[int]:
    """Return the bytes of every storage that one call of the model allocates."""
    return [int(call.args[0].values[0]) for name, call in calls(compiled) if name == "relax.vm.alloc_storage"]


def kernels(compiled: Any) -> set[str]:
    """Return the names of the generated functions."""
    lowered = compiled.lowered
    return {str(v.name_hint) for v in lowered.get_global_vars() if isinstance(lowered[v], _tvm.PrimFunc)}


def test_an_untuned_model_is_right(layers: Any) -> None:
    model, x, imported = layers
    torch.testing.assert_close(compile_model(imported)(x), model(x))


@pytest.mark.parametrize("form", ["schedule", "module", "function"])
def test_a_schedule_is_used_at_every_call_site(layers: Any, form: str) -> None:
    model, x, imported = layers
    task = task_of(imported, "fused_matmul_add_relu")
    assert task.weight == 2
    schedule = split(task)
    form_of_schedule = {"schedule": schedule, "module": schedule.mod, "function": schedule.mod["main"]}[form]
    compiled = compile_model(imported, {task.key: form_of_schedule})
    torch.testing.assert_close(compiled(x), model(x))
    lowered = compiled.lowered["fused_matmul_add_relu"]
    assert lowered.attrs["tirx.is_scheduled"]
    assert "T.parallel" in lowered.script()
    assert "T.parallel" not in compiled.lowered["fused_matmul1_add1"].script()


def test_the_imported_module_is_not_changed(layers: Any) -> None:
    _, _, imported = layers
    task = task_of(imported, "fused_matmul_add_relu")
    before = imported.module.script()
    compile_model(imported, {task.key: split(task)})
    assert imported.module.script() == before


def test_equal_functions_with_two_names_get_the_same_schedule() -> None:
    """Equal functions with two names are one task, and both get its schedule."""
    relax, te = _tvm.relax, _tvm.te
    a, w = te.placeholder((4, 8), name="a"), te.placeholder((8, 8), name="w")
    k = te.reduce_axis((0, 8), name="k")
    product = te.compute((4, 8), lambda i, j: te.sum(a[i, k] * w[k, j], axis=k), name="matmul")
    func = te.create_prim_func([a, w, product])
    builder = relax.BlockBuilder()
    names = [builder.add_func(func.with_attr("global_symbol", name), name) for name in ("one", "two")]
    kind = relax.TensorType((4, 8), "float32")
    x, y = relax.Var("x", kind), relax.Var("y", relax.TensorType((8, 8), "float32"))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            first = builder.emit(relax.call_tir(names[0], [x, y], kind))
            result = builder.emit_output(relax.call_tir(names[1], [first, y], kind))
        builder.emit_func_output(result)
    imported = import_model(builder.get())
    (task,) = imported.tasks
    compiled = compile_model(imported, {task.key: split(task)})
    assert all("T.parallel" in compiled.lowered[name].script() for name in ("one", "two"))
    x_value, y_value = torch.randn(4, 8), torch.randn(8, 8)
    torch.testing.assert_close(compiled(x_value, y_value), x_value @ y_value @ y_value)


def test_no_weight_is_copied_by_a_call(layers: Any) -> None:
    """Kernels get the constants themselves, and a call allocates less than the size of one weight."""
    _, _, imported = layers
    compiled = compile_model(imported)
    weight = WIDTH * WIDTH * 4
    named_calls = calls(compiled)
    book_keeping = {
        "relax.null_value",
        "vm.builtin.check_tensor_info",
        "vm.builtin.match_shape",
        "relax.vm.alloc_storage",
        "relax.vm.alloc_tensor",
        "relax.vm.kill_object",
    }
    assert {name for name, _ in named_calls} <= book_keeping | kernels(compiled)
    kernel_arguments = [arg for name, call in named_calls if name in kernels(compiled) for arg in call.args]
    constants = [arg.value.numpy().nbytes for arg in kernel_arguments if isinstance(arg, _tvm.ir.GenericConst)]
    assert sorted(constants)[-2:] == [weight, weight]
    assert allocations(compiled)
    assert sum(allocations(compiled)) < weight
    for name in kernels(compiled):
        blocks: list[Any] = []
        _tvm.structural_walk(compiled.lowered[name].body, (_tvm.s_tir.SBlock, blocks.append))
        sizes = [prod(map(int, buffer.shape)) * 4 for block in blocks for buffer in block.alloc_buffers]
        assert sum(sizes) < weight


def test_constants_are_packed_at_compile_time(layers: Any) -> None:
    """A weight's layout transformation runs at compile time, so a call does not execute it."""
    model, x, imported = layers
    task = task_of(imported, "fused_matmul_add_relu")
    free = _tvm.IRModule({"main": task.module["main"].with_attr("layout_free_buffers", [1])})
    schedule = _tvm.Schedule(free)
    block = schedule.get_sblock("matmul")
    i, j, k = schedule.get_loops(block)
    outer, inner = schedule.split(j, [None, 16])
    schedule.reorder(outer, k, i, inner)
    (rewrite,) = [
        post
        for post in metaschedule.tune_context(free, imported.target).space_generator.postprocs
        if type(post).__name__ == "RewriteLayout"
    ]
    assert rewrite.apply(schedule)
    assert "layout_rewrite_preproc" in schedule.mod.script()

    compiled = compile_model(imported, {task.key: schedule})
    torch.testing.assert_close(compiled(x), model(x))
    assert not [name for name in kernels(compiled) if name.endswith("_weight_prepack")]
    assert sum(allocations(compiled)) < WIDTH * WIDTH * 4
    packed = compiled.lowered["fused_matmul_add_relu_prepacked"]
    assert len(packed.params[1].shape) > 2


@pytest.mark.parametrize(
    ("key", "schedule", "message"),
    [
        ("nonsense", None, "Layers: .*'nonsense'"),
        (None, 3, "schedules: .*an int"),
        (None, _tvm.IRModule({}), 'schedules: .*an IRModule.*"main"'),
    ],
)
def test_invalid_schedules_are_refused(layers: Any, key: str | None, schedule: Any, message: str) -> None:
    _, _, imported = layers
    task = task_of(imported, "fused_matmul_add_relu")
    with pytest.raises(InvalidSchedule, match=message):
        compile_model(imported, {key or task.key: schedule if schedule is not None else split(task)})


def test_a_schedule_of_another_task_is_refused(layers: Any) -> None:
    _, _, imported = layers
    one, other = task_of(imported, "fused_matmul_add_relu"), task_of(imported, "fused_matmul1_add1")
    with pytest.raises(InvalidSchedule, match=r"fused_matmul1_add1: expected buffers .*3.*, got .*512"):
        compile_model(imported, {other.key: one.module})


def test_a_schedule_that_tvm_cannot_compile_is_reported(layers: Any) -> None:
    _, _, imported = layers
    task = task_of(imported, "fused_matmul_add_relu")
    schedule = _tvm.Schedule(task.module)
    schedule.bind(schedule.get_loops(schedule.get_sblock("matmul"))[0], "threadIdx.x")
    with pytest.raises(CompilationFailed, match=r'Layers: TVM .*space="default"'):
        compile_model(imported, {task.key: schedule})


@pytest.mark.parametrize("kind", [RuntimeError, TypeError, ValueError])
def test_an_internal_error_is_not_reported_as_tvm_s(
    layers: Any, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(module: Any) -> Any:
        raise kind("ours")

    _, _, imported = layers
    monkeypatch.setitem(PASSES, "llvm", (Pass(fail),))
    with pytest.raises(kind, match="ours"):
        compile_model(imported)


@pytest.fixture(scope="module")
def checked_kernels(layers: Any) -> dict[str, codegen.KernelObject]:
    """Machine code of the unscheduled functions, which a pool has found right."""
    if c_compiler() is None:
        pytest.skip("linking needs a C compiler")
    objects: dict[str, codegen.KernelObject] = {}
    tasks = layers[2].tasks
    with MeasurePool("cpu", objects=objects) as pool:
        assert all(pool.check(task, Untuned(task)).status is Status.OK for task in tasks)
    assert set(objects) == {task.name for task in tasks}
    return objects


def test_a_checked_kernel_is_not_compiled_again(layers: Any, checked_kernels: Any, reused: list[str]) -> None:
    """Except those that read the model's input, which check its strides."""
    model, x, imported = layers
    compiled = compile_model(imported, linked=True, objects=checked_kernels)
    assert reused == ["fused_matmul1_add1"]
    assert torch.equal(compiled(x), compile_model(imported, linked=True)(x))
    torch.testing.assert_close(compiled(x), model(x))


def test_another_schedule_of_a_checked_kernel_is_compiled(layers: Any, checked_kernels: Any, reused: list[str]) -> None:
    model, x, imported = layers
    task = task_of(imported, "fused_matmul1_add1")
    compiled = compile_model(imported, {task.key: split(task)}, linked=True, objects=checked_kernels)
    assert not reused
    torch.testing.assert_close(compiled(x), model(x))


def test_kernels_that_cannot_be_joined_are_compiled(
    layers: Any, checked_kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, imported = layers
    monkeypatch.setattr(codegen.objects, "_JOINED", ("--no-such-option",))
    compiled = compile_model(imported, linked=True, objects=checked_kernels)
    torch.testing.assert_close(compiled(x), model(x))


def test_a_kernel_that_reads_a_view_of_an_input_checks_its_arguments() -> None:
    imported = import_model(nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 7)).eval(), (2, 3, 4))
    symbols = codegen.reads_inputs(compile_model(imported).lowered)
    assert len(symbols) == 1
    assert symbols < {task.name for task in imported.tasks}


def test_a_linked_model_that_cannot_be_loaded_runs_in_memory(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a folder for temporary files that is mounted with noexec."""
    if c_compiler() is None:
        pytest.skip("linking needs a C compiler")
    model, x, imported = layers
    monkeypatch.setattr(codegen, "open_library", lambda path: _tvm.load_module(f"{path}.missing.so"))
    compiled = compile_model(imported, linked=True)
    assert compiled.library is None
    torch.testing.assert_close(compiled(x), model(x))
