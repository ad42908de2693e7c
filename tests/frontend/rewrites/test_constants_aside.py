"""Tests that equal expressions and expressions of constants become what TVM's own passes make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.models import OPERATORS, Apply

from felixlike import _tvm
from felixlike.frontend import import_model, rewrites
from felixlike.frontend.rewrites import pipeline
from felixlike.frontend.rewrites.rewriting import constant, is_constant

_TVMS = {"without_equal_expressions": "EliminateCommonSubexpr", "with_computed_constants": "FoldConstant"}


def _masked(x: Any) -> Any:
    """A causal mask, which PyTorch computes from positions, joins what it is added to."""
    places = torch.arange(x.shape[-1])
    mask = torch.where(places[:, None] >= places[None], 0.0, float("-inf"))
    return torch.softmax(x + mask, -1)


_table = torch.randn(96, 48)
_MODELS: dict[str, Callable[[], Any]] = {
    **OPERATORS,
    "mask": lambda: (Apply(_masked), (4, 8, 8)),
    "one_table_in_two_products": lambda: (Apply(lambda x: (x @ _table) * (x @ _table).relu()), (4, 96)),
    "parts_of_a_constant": lambda: (Apply(lambda x: x + sum(torch.split(_table[:, :8] * 2, 4, 1))), (96, 4)),
    "sorted_constant": lambda: (Apply(lambda x: x + torch.sort(_table[0]).values), (3, 48)),
    "scalar": lambda: (Apply(lambda x: x * (torch.ones(()) + 2)), (3, 48)),
    "constant_output": lambda: (Apply(lambda x: (x + 1, torch.arange(4.0) * 2)), (3, 4)),
}


@pytest.mark.parametrize("name", _MODELS)
def test_models_are_those_of_tvms_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = _MODELS[name]()
    ours = import_model(model, inputs).module
    tvms = [pipeline.relax_pass(_TVMS[one.name]) if one.name in _TVMS else one for one in pipeline.REWRITES]
    assert len([one for one in tvms if one not in pipeline.REWRITES]) == 3
    monkeypatch.setattr(pipeline, "REWRITES", tvms)
    theirs = import_model(model, inputs).module
    assert [*map(_tvm.structural_hash, _kernels(ours))] == [*map(_tvm.structural_hash, _kernels(theirs))]
    for our, their in zip(*(_tvm.found(m["main"].body, _tvm.ir.GenericConst) for m in (ours, theirs)), strict=True):
        np.testing.assert_array_equal(our.value.numpy(), their.value.numpy())


def _kernels(module: Any) -> list[Any]:
    """Return the called functions, in order. Their names depend on the order in which TVM creates them."""
    kernel = _tvm.ir.Op.get("relax.call_tir")
    called = [value for value in _values(module) if isinstance(value, _tvm.relax.Call) and value.op.same_as(kernel)]
    return [module[value.args[0]] for value in called]


def _module(write: Callable[[Any, Any], Any], *shape: int) -> Any:
    """Return a Relax module whose main calls `write` with a block builder and a tensor."""
    relax = _tvm.relax
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(write(builder, x))
        builder.emit_func_output(result)
    return builder.get()


def _values(module: Any) -> list[Any]:
    return [binding.value for block in module["main"].body.blocks for binding in block.bindings]


def _calls(module: Any) -> list[str]:
    return [str(value.op.name) for value in _values(module) if isinstance(value, _tvm.relax.Call)]


def test_large_constants_are_the_same_objects_afterwards() -> None:
    weights, others = (constant(np.ones((64, 64), "float32")) for _ in range(2))

    def products(builder: Any, x: Any) -> Any:
        op = _tvm.relax.op
        same = builder.emit(op.add(builder.emit(op.matmul(x, weights)), builder.emit(op.matmul(x, weights))))
        return op.add(same, builder.emit(op.matmul(x, others)))

    after = rewrites.without_equal_expressions(_module(products, 4, 64))
    assert len(after["main"].params) == 1
    assert _calls(after).count("relax.matmul") == 2
    kept = _tvm.found(after["main"].body, _tvm.ir.GenericConst)
    assert [any(one.value.same_as(other.value) for other in kept) for one in (weights, others)] == [True, True]


def test_small_constants_are_compared_by_value() -> None:
    def sums(builder: Any, x: Any) -> Any:
        op = _tvm.relax.op
        one, other = (builder.emit(op.add(x, constant(np.ones(3, "float32")))) for _ in range(2))
        return op.multiply(one, other)

    assert _calls(rewrites.without_equal_expressions(_module(sums, 2, 3))) == ["relax.add", "relax.multiply"]


def test_shapes_are_left_to_tvm() -> None:
    def reshaped(builder: Any, x: Any) -> Any:
        relax = _tvm.relax
        shape = builder.emit(relax.ShapeExpr([6]))
        return relax.op.reshape(x, shape)

    after = rewrites.with_computed_constants(_module(reshaped, 2, 3))
    assert _calls(after) == ["relax.reshape"]
    (reshape,) = [value for value in _values(after) if isinstance(value, _tvm.relax.Call)]
    assert isinstance(reshape.args[1], _tvm.relax.ShapeExpr)


def test_an_operator_without_inputs_is_computed() -> None:
    op = _tvm.relax.op
    after = rewrites.with_computed_constants(
        _module(lambda builder, x: op.add(x, builder.emit(op.zeros((3,), "float32"))), 2, 3)
    )
    assert _calls(after) == ["relax.add"]
    (added,) = [value for value in _values(after) if isinstance(value, _tvm.relax.Call)]
    assert is_constant(added.args[1])
    np.testing.assert_array_equal(added.args[1].value.numpy(), np.zeros(3, "float32"))
