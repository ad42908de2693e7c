"""Tests for packed constants: each call site's constant is packed at compile time, and no call packs any."""

import math
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from felixlike import _tvm
from felixlike.errors import InvalidSchedule
from felixlike.frontend import Imported, import_model
from felixlike.frontend.constants import PACKING
from felixlike.hardware import resolve_target, with_precision
from felixlike.runtime import compile_model, load, save
from felixlike.runtime.constant_packing import with_packed_constants
from felixlike.symbolic import sketches


class Net(nn.Module):
    """Two equal convolutions, of which one is called twice, a depthwise convolution and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.each, self.last = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Linear(8 * 36, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.a(torch.relu(self.b(torch.relu(self.a(x))))))
        answer: torch.Tensor = self.last(torch.relu(self.each(x)).flatten(1))
        return answer


@pytest.fixture(scope="module")
def net() -> tuple[nn.Module, torch.Tensor, Imported]:
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(1, 8, 6, 6)
    return model, x, import_model(model, x)


def schedules(imported: Imported) -> dict[str, Any]:
    """Return a random schedule of every task with a weight."""
    by_key = {}
    for task in imported.tasks:
        if task.layout_free:
            sketch = sketches(task)[0]
            by_key[task.key] = sketch.schedule(sketch.sample(1, seed=7)[0].tolist())
            assert PACKING in by_key[task.key].mod.script()
    return by_key


def test_calls_do_not_pack_constants(net: Any) -> None:
    model, x, imported = net
    chosen = schedules(imported)
    assert len(chosen) == 3
    (shared,) = [task for task in imported.tasks if task.weight == 3]
    assert shared.key in chosen
    compiled = compile_model(imported, chosen)
    torch.testing.assert_close(compiled(x), model(x))
    lowered = compiled.lowered
    kernels = {str(v.name_hint): f for v, f in lowered.functions.items() if isinstance(f, _tvm.PrimFunc)}
    assert sum(name.endswith("_prepacked") for name in kernels) == 3
    assert not any(PACKING in func.script() for func in kernels.values())
    calls: list[tuple[str, Any]] = []

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.relax.Call) and str(getattr(node.op, "name_hint", "")) in kernels:
            calls.append((str(node.op.name_hint), node))

    _tvm.relax.analysis.post_order_visit(lowered["main"], visit)
    assert len(calls) == sum(task.weight for task in imported.tasks)
    weights: dict[str, list[Any]] = {}
    for name, call in calls:
        if name.endswith("_prepacked"):
            assert isinstance(call.args[1], _tvm.ir.GenericConst)
            assert tuple(call.args[1].value.shape) == tuple(int(e) for e in kernels[name].params[1].shape)
            weights.setdefault(name, []).append(call.args[1])
    assert sorted(map(len, weights.values())) == [1, 1, 3]


def test_a_constant_is_packed_once_for_equal_calls(net: Any) -> None:
    _, _, imported = net
    (shared,) = [task for task in imported.tasks if task.weight == 3]
    (name,) = imported.functions[shared.key]
    module = _tvm.IRModule(dict(imported.module.functions))
    main = schedules(imported)[shared.key].mod["main"]
    module.update_func(module.get_global_var(name), _tvm.without_attributes(main, "global_symbol"))
    packed = with_packed_constants(module)
    packed_constants = []

    def visit(node: Any) -> None:
        if isinstance(node, _tvm.relax.Call) and str(getattr(node.args[0], "name_hint", "")).endswith("_prepacked"):
            packed_constants.append(node.args[1].fields[1])

    _tvm.relax.analysis.post_order_visit(packed["main"], visit)
    assert len(packed_constants) == 3
    assert len({_tvm.identity(constant.value) for constant in packed_constants}) == 2  # `a` is called twice
    assert all(prod(constant.value.shape) == 8 * 8 * 9 for constant in packed_constants)
    assert name not in [str(v.name_hint) for v in packed.get_global_vars()]


def test_a_packed_model_is_saved_and_loaded(net: Any, tmp_path: Path) -> None:
    model, x, imported = net
    compiled = compile_model(imported, schedules(imported))
    save(compiled, tmp_path / "net.felix", report={})
    again, _ = load(tmp_path / "net.felix")
    assert torch.equal(again(x), compiled(x))
    torch.testing.assert_close(again(x), model(x))


def test_a_module_without_packing_is_unchanged(net: Any) -> None:
    _, _, imported = net
    assert with_packed_constants(imported.module).same_as(imported.module)


def test_schedules_that_pack_inputs_are_refused(net: Any) -> None:
    """A schedule that packs an input is refused, because it would pack at every call."""

    class Product(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a @ b

    imported = import_model(Product(), (torch.randn(8, 12), torch.randn(12, 16)))
    (task,) = imported.tasks
    schedule = _tvm.Schedule(task.module)
    schedule.annotate(schedule.cache_read(schedule.get_sblock("matmul"), 1, "global"), PACKING, True)
    with pytest.raises(InvalidSchedule, match=r"matmul: .*packs parameter 1, which is not a constant"):
        compile_model(imported, {task.key: schedule})


def test_weights_that_overflow_when_they_are_packed_are_refused() -> None:
    """Infinite weights stay infinite. Finite ones that bfloat16 rounds to infinity are refused.

    They have no schedule that rounds them. This one is of equal functions with other weights.
    """
    model = nn.Linear(1024, 1024, bias=False).eval()
    target = with_precision(resolve_target("cpu"), "bfloat16")

    def imported(value: float) -> Any:
        with torch.no_grad():
            model.weight[3, 7] = value
        return import_model(model, torch.zeros(1, 1024), target)

    (task,) = imported(1.0).tasks
    sketch = next(s for s in sketches(task, space="own") if s.precision == "bfloat16")
    schedule = sketch.schedule(sketch.sample(1, seed=0)[0].tolist())

    def compiled(value: float) -> Any:
        one = imported(value)
        return compile_model(one, {one.tasks[0].key: schedule})

    assert compiled(3.3961e38)(torch.eye(1024)[7:8])[0, 3] == torch.tensor(3.3961e38).bfloat16().float()
    assert compiled(math.inf)(torch.ones(1, 1024))[0, 3] == math.inf
    with pytest.raises(InvalidSchedule, match=r"bfloat16 has no number near 3\.3962\d*e\+38.*precision=\"float32\""):
        compiled(-3.3962e38)
    (task,) = imported(-3.3962e38).tasks
    assert {sketch.precision for sketch in sketches(task, space="own")} == {"float32"}
