"""Tests for task extraction: one task per structure, weighted by call sites, in a fixed order, with unique names."""

from typing import Any

import pytest
import torch
from support.models import bert, mlp
from torch import nn

from felixlike import _tvm
from felixlike.errors import InvalidShape
from felixlike.frontend import import_model
from felixlike.frontend.extract import extract


class Twice(nn.Module):
    """Three layers of the same shape, one of another, and a pooling, which MetaSchedule names "main" or "mean"."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.last = nn.Linear(8, 32)
        self.pool = nn.AdaptiveAvgPool2d((2, 3))

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.pool(self.last(x).reshape(1, 4, 4, 8))


@pytest.fixture(scope="module")
def twice() -> Any:
    return import_model(Twice().eval(), (4, 8))


def test_equal_subgraphs_are_one_task(twice: Any) -> None:
    weights = {task.name: task.weight for task in twice.tasks}
    pools = {"adaptive_avg_pool2d": 1, "adaptive_avg_pool2d1": 1}  # along each dimension
    assert weights == {"fused_matmul_add_relu": 3, "fused_matmul1_add1": 1, **pools}


def test_tasks_are_sorted_by_operations(twice: Any) -> None:
    loads = [task.weight * task.flops for task in twice.tasks]
    assert loads == sorted(loads, reverse=True)
    assert loads[0] > 0


def test_functions_lists_the_functions_of_each_task(twice: Any) -> None:
    assert set(twice.functions) == {task.key for task in twice.tasks}
    called = {name for names in twice.functions.values() for name in names}
    present = {str(var.name_hint) for var in twice.module.get_global_vars()} - {"main"}
    assert called == present


def test_equal_functions_with_two_names_are_one_task() -> None:
    """Two equal PrimFuncs with different names are one task."""
    module = import_model(mlp()[0], mlp()[1]).module
    copy = _tvm.IRModule(dict(module.functions))
    relax = _tvm.relax
    softmax = module["softmax"]
    builder = relax.BlockBuilder(copy)
    first = builder.add_func(softmax.with_attr("global_symbol", "one"), "one")
    second = builder.add_func(softmax.with_attr("global_symbol", "two"), "two")
    x = relax.Var("x", relax.TensorType((8, 10), "float32"))
    kind = relax.TensorType((8, 10), "float32")
    with builder.function("other", [x]):
        y = builder.emit(relax.call_tir(first, [x], kind))
        builder.emit_func_output(builder.emit(relax.call_tir(second, [y], kind)))
    tasks, functions = extract(builder.get(), import_model(mlp()[0], mlp()[1]).target)
    (task,) = [task for task in tasks if task.name == "softmax"]
    assert task.weight == 3
    assert functions[task.key] == ("softmax", "one", "two")
    assert len({task.name for task in tasks}) == len(tasks)


def test_an_uncalled_primfunc_is_ignored(twice: Any) -> None:
    module = _tvm.IRModule(dict(twice.module.functions))
    module["unused"] = twice.module["adaptive_avg_pool2d"].with_attr("global_symbol", "unused")
    tasks, functions = extract(module, twice.target)
    assert [task.name for task in tasks] == [task.name for task in twice.tasks]
    assert "unused" not in {name for names in functions.values() for name in names}


def test_two_imports_give_equal_tasks() -> None:
    model, inputs = bert(layers=1, hidden=64, length=16)
    first, second = import_model(model, inputs), import_model(model, inputs)
    assert [(t.name, t.weight, t.key) for t in first.tasks] == [(t.name, t.weight, t.key) for t in second.tasks]
    names = [task.name for task in first.tasks]
    assert len(set(names)) == len(names)
    assert "main" not in names


def test_a_symbolic_buffer_shape_is_refused(twice: Any) -> None:
    te, n = _tvm.te, _tvm.tirx.Var("n", "int64")
    a = te.placeholder((n, 8), name="a")
    func = te.create_prim_func([a, _tvm.topi.nn.relu(a)]).without_attr("global_symbol")
    relax = _tvm.relax
    builder = relax.BlockBuilder()
    variable = builder.add_func(func, "relu")
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        call = relax.call_tir(variable, [x], relax.TensorType((4, 8), "float32"))
        builder.emit_func_output(builder.emit(call))
    with pytest.raises(InvalidShape, match=r"^relu: buffer a .*\(n, 8\)"):
        extract(builder.get(), twice.target)
