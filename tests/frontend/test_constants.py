"""Tests for parameters that are constant at every call site, and for weights whose layout is free."""

from typing import Any

import pytest
import torch
from support.operators import OPERATORS
from torch import nn

from felixlike import _tvm
from felixlike.errors import InvalidOption
from felixlike.frontend import import_model, make_task
from felixlike.frontend.constants import constant_arguments, noted_constants
from felixlike.frontend.rewrites import constant_kernels
from felixlike.hardware import resolve_target
from felixlike.runtime import compile_model


class Mixed(nn.Module):
    """Layers with weights and biases, a product of two activations, and a constant addend."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.conv = nn.Linear(8, 12), nn.Conv2d(3, 4, 3)
        self.depthwise, self.table = nn.Conv2d(4, 4, 3, groups=4), nn.Parameter(torch.randn(5, 5))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.depthwise(torch.relu(self.conv(x))), self.dense(y), y @ y.t() + self.table


def layout_free_parameters(module: Any) -> dict[str, tuple[int, ...]]:
    by_name = {}
    for variable, func in module.functions.items():
        if isinstance(func, _tvm.PrimFunc) and "layout_free_buffers" in (func.attrs or {}):
            by_name[str(variable.name_hint)] = tuple(int(i) for i in func.attrs["layout_free_buffers"])
    return by_name


def test_only_weights_have_free_layouts() -> None:
    shapes = (torch.randn(1, 3, 9, 9), torch.randn(5, 8))
    imported = import_model(Mixed().eval(), shapes)
    free = layout_free_parameters(imported.module)
    assert sorted(free.values()) == [(1,), (1,), (1,)]
    assert all("conv2d" in name or "matmul" in name for name in free)
    constants = {task.name: noted_constants(task.module["main"]) for task in imported.tasks}
    assert all(constants[name] == (1, 2) for name in free)  # the biases are constant, too
    assert sum(task.layout_free != () for task in imported.tasks) == 3
    on_gpu = layout_free_parameters(import_model(Mixed().eval(), shapes, "sm_90").module)
    assert sorted(on_gpu.values()) == [(1,), (1,), (1,)]


def test_equal_operators_of_constants_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(torch.randn(3, 7) for _ in range(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for weight in self.weights:
                x = x * weight.cos()
            return x

    kernels: dict[Any, Any] = {}
    monkeypatch.setattr(constant_kernels, "_kernels", kernels)
    model, x = Steps().eval(), torch.randn(3, 7)
    got = compile_model(import_model(model, (x,)))(x)
    assert len(kernels) == 1
    torch.testing.assert_close(got, model(x))


def module_with_calls(func: Any, *sites: tuple[bool, bool]) -> Any:
    """Return a module that calls a product once per site. A site says which operands are constants."""
    relax = _tvm.relax
    builder = relax.BlockBuilder()
    variable = builder.add_func(func.without_attr("global_symbol"), "product")
    kind = relax.TensorType((8, 8), "float32")
    x = relax.Var("x", kind)
    with builder.function("main", [x]):
        with builder.dataflow():
            value: Any = x
            for site in sites:
                operands = [relax.const(torch.randn(8, 8).numpy()) if fixed else value for fixed in site]
                value = builder.emit(relax.call_tir(variable, operands, kind))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        ([(False, True)], (1,)),
        ([(False, True), (False, True)], (1,)),
        ([(False, True), (True, False)], ()),
        ([(True, False), (True, False)], (0,)),
        ([(False, False), (False, True)], ()),
    ],
)
def test_parameters_are_constant_if_all_call_sites_pass_constants(
    sites: list[tuple[bool, bool]], expected: tuple[int, ...]
) -> None:
    te = _tvm.te
    a, b = te.placeholder((8, 8), name="a"), te.placeholder((8, 8), name="b")
    product = te.create_prim_func([a, b, _tvm.topi.nn.matmul(a, b)])
    module = module_with_calls(product.with_attr("layout_free_buffers", [0, 1]), *sites)
    assert constant_arguments(module) == {"product": expected}
    imported = import_model(module)
    assert layout_free_parameters(imported.module) == ({"product": expected} if expected else {})
    (task,) = imported.tasks
    assert noted_constants(task.module["main"]) == expected


def test_the_task_key_depends_on_constant_weights() -> None:
    target = resolve_target("cpu")
    func = OPERATORS["dense_bias_relu"](small_size=True)
    plain, weight, both, bias = (
        make_task(func, target, name="dense", constants=constants) for constants in ([], [1], [1, 2], [2])
    )
    assert plain.key == bias.key
    assert weight.key == both.key != plain.key
    assert (plain.layout_free, bias.layout_free, weight.layout_free) == ((), (), ("W",))
    again = make_task(both.module["main"], target, name="again", constants=noted_constants(both.module["main"]))
    assert _tvm.structural_equal(again.module, both.module)
    assert make_task(both.module["main"], target, name="again").key == plain.key


@pytest.mark.parametrize("constants", [[3], [-1], [17]])
def test_constants_must_be_indices_of_inputs(constants: list[int]) -> None:
    func = OPERATORS["dense_bias_relu"](small_size=True)
    with pytest.raises(InvalidOption, match=rf"^make_task: constants \[{constants[0]}\] .*\b4 parameters\b"):
        make_task(func, resolve_target("cpu"), name="dense", constants=constants)


def test_constants_without_a_free_layout() -> None:
    """Layouts are not free for integers, operands read twice or with reversed indices, and without a reduction."""
    te, target = _tvm.te, resolve_target("cpu")
    a, b = te.placeholder((4, 6), name="a", dtype="int32"), te.placeholder((6, 8), name="b", dtype="int32")
    k = te.reduce_axis((0, 6), name="k")
    whole = te.create_prim_func([a, b, te.compute((4, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))])
    assert make_task(whole, target, name="integers", constants=[1]).layout_free == ()
    x = te.placeholder((6, 6), name="x")
    r = te.reduce_axis((0, 6), name="r")
    twice = te.create_prim_func([x, te.compute((6, 6), lambda i, j: te.sum(x[i, r] * x[r, j], axis=r))])
    assert make_task(twice, target, name="twice", constants=[0]).layout_free == ()
    r = te.reduce_axis((0, 6), name="r")
    flipped = te.create_prim_func([x, te.compute((6,), lambda i: te.sum(x[i, 5 - r], axis=r))])
    assert make_task(flipped, target, name="flipped", constants=[0]).layout_free == ()
    chain = OPERATORS["broadcast_chain"](small_size=True)
    assert make_task(chain, target, name="chain", constants=[0, 1, 2]).layout_free == ()
