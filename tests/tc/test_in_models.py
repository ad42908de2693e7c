"""Test comprehensions in models: exported, compiled by PyTorch, and optimized."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import felixlike as fx
from felixlike.errors import NoGradientWarning, TCError, WrongContext

_DENSE = fx.tc.define(
    "def dense(float(M,K) A, float(N,K) W, float(N) b) -> (C) {"
    " C(m, n) +=! A(m, k) * W(n, k) C(m, n) = fmax(C(m, n) + b(n), 0.0) }"
)
_PAIR = fx.tc.define("def pair(float(N) A) -> (B, C) { B(i) = A(i) + 1.0 C(i) = B(i) * 2.0 }")
_ADD = fx.tc.define("def add(float(N,M) A) -> (O) { O(i) += A(i, j) }")
_LOOK_UP = fx.tc.define("def look(float(E,D) T, int32(L) I) -> (O) { O(l, d) = T(I(l), d) }")


class _Model(nn.Module):
    """A model with a PyTorch layer, a comprehension, and a comprehension with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> Any:
        y = _DENSE(self.first(x), self.second.weight, self.second.bias)
        more, twice = _PAIR(y[0])
        return torch.tanh(y) + more, twice


def _model() -> tuple[nn.Module, torch.Tensor, Any]:
    model = _Model().eval().requires_grad_(False)
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    y = torch.relu(model.second(model.first(x)))
    return model, x, (torch.tanh(y) + y[0] + 1, 2 * (y[0] + 1))


def _assert_outputs_close(outputs: Any, expected: Any) -> None:
    for output, expected_output in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, expected_output, rtol=1e-5, atol=1e-5)


def test_models_with_comprehensions_run() -> None:
    model, x, expected = _model()
    _assert_outputs_close(model(x), expected)


def test_comprehensions_are_exported_as_one_operator_with_their_text() -> None:
    model, x, expected = _model()
    program = torch.export.export(model, (x,))
    assert str(program.graph).count("torch.ops.felixlike.comprehension.default") == 2
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    _assert_outputs_close(torch.export.load(file).module()(x), expected)


def test_comprehensions_compile_in_pytorch_without_a_graph_break() -> None:
    model, x, expected = _model()
    _assert_outputs_close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), expected)


def test_comprehensions_are_optimized_with_the_model() -> None:
    model, x, expected = _model()
    optimized = fx.optimize(model, (x,), trials=0, progress=False)
    _assert_outputs_close(optimized(x), expected)
    assert any("dense" in task.name for task in optimized.report.tasks)


def test_a_lookup_in_an_optimized_model_clamps_indices() -> None:
    class Model(nn.Module):
        def forward(self, table: torch.Tensor, indices: torch.Tensor) -> Any:
            return torch.relu(_LOOK_UP(table, indices))

    table, indices = torch.randn(7, 4), torch.tensor([0, 6, 3], dtype=torch.int32)
    optimized = fx.optimize(Model(), (table, indices), trials=0, progress=False)
    torch.testing.assert_close(optimized(table, indices), torch.relu(table[indices.long()]))
    outside = optimized(table, torch.tensor([-5, 99, 3], dtype=torch.int32))
    torch.testing.assert_close(outside, torch.relu(table[torch.tensor([0, 6, 3])]))


def test_accumulation_into_an_out_tensor_works_in_graphs() -> None:
    class Model(nn.Module):
        def forward(self, a: torch.Tensor, o: torch.Tensor) -> Any:
            return _ADD(a, out={"O": o.clone()})

    a, o = torch.randn(3, 5), torch.randn(3)
    expected = o + a.sum(1)
    torch.testing.assert_close(torch.compile(Model(), fullgraph=True, backend="aot_eager")(a, o), expected)
    torch.testing.assert_close(torch.export.export(Model(), (a, o)).module()(a, o), expected)


def test_wrong_shapes_raise_while_tracing() -> None:
    class Model(nn.Module):
        def forward(self, a: torch.Tensor) -> Any:
            return _PAIR(a)[0]

    with pytest.raises(Exception, match=r"1 dimensions .* 2 dimensions for `A`") as caught:
        torch.export.export(Model(), (torch.ones(3, 4),))
    assert isinstance(caught.value, TCError) or "TCCallError" in str(caught.value) or caught.value.__cause__ is not None


def test_gradients_stop_with_a_warning() -> None:
    x = torch.ones(3, requires_grad=True)
    program = fx.tc.define("def f(float(N) A) -> (O) { O(i) = A(i) * 3.0 }")
    with pytest.warns(NoGradientWarning, match="^f: "):
        assert not program(x).requires_grad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            assert program(x).tolist() == [3, 3, 3]


def test_comprehensions_support_copies_pickling_and_vmap() -> None:
    program = fx.tc.define("def f(float(N) A) -> (O) { O(i) = A(i) * 3.0 }")
    x = torch.randn(3, 5)
    for copied in (copy.copy(program), copy.deepcopy(program), pickle.loads(pickle.dumps(program))):
        assert torch.equal(copied(x[0]), 3 * x[0])
    assert torch.equal(torch.vmap(program)(x), 3 * x)
    assert torch.equal(torch.vmap(program, in_dims=1)(x), 3 * x.T)
    with pytest.raises(WrongContext, match="differentiate"):
        torch.func.grad(lambda a: program(a).sum())(x[0])


def test_a_model_with_a_comprehension_as_attribute_is_optimized() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = fx.tc.define("def f(float(N) A) -> (O) { O(i) = A(i) * 3.0 }")

        def forward(self, x: torch.Tensor) -> Any:
            return torch.relu(self.kernel(x))

    x = torch.randn(6)
    optimized = fx.optimize(copy.deepcopy(Model()), (x,), trials=0, progress=False)
    torch.testing.assert_close(optimized(x), torch.relu(3 * x))
