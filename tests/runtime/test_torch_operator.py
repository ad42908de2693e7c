"""Tests for the torch operator: under torch.compile, export, vmap and others a call is one operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from felixlike.errors import InputMismatch, ModelNotLoaded, NoGradientWarning, WrongContext
from felixlike.frontend import import_model
from felixlike.runtime import Compiled, compile_model, load, save
from felixlike.runtime.torch_operator import run

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.(script|trace|trace_method). is ")


class Pair(nn.Module):
    """Nested outputs, one of which is a view of an input."""

    def forward(self, x: Tensor, by: Tensor) -> dict[str, Any]:
        return {"a": x * by + 1, "b": (x.reshape(-1), None, x + by)}


class Outer(nn.Module):
    """A model that contains a compiled model."""

    def __init__(self, compiled: Compiled) -> None:
        super().__init__()
        self.compiled = compiled
        self.linear = nn.Linear(20, 5)

    def forward(self, x: Tensor, by: Tensor) -> Any:
        outputs = self.compiled(x + 1, by=by)
        return self.linear(outputs["a"]) + outputs["b"][0].sum() + outputs["b"][2].mean()


class Double(nn.Module):
    """A model with one input and one output."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 + 1


@pytest.fixture(scope="module")
def pair() -> Compiled:
    return compile_model(import_model(Pair(), ((4, 20), (20,))))


@pytest.fixture(scope="module")
def scale() -> Callable[[Tensor], Any]:
    """Return a compiled model with one input and one output."""
    return compile_model(import_model(Double(), (4, 20)))


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 20), torch.randn(20)


@pytest.fixture(autouse=True)
def _anew() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_without_a_break(pair: Compiled, backend: str) -> None:
    x, by = inputs()
    outer = Outer(pair)
    compiled = torch.compile(outer, backend=backend, fullgraph=True)
    for _ in range(2):
        x = x + 1
        got = compiled(x, by)
        torch.testing.assert_close(got, outer(x, by))
    got.sum().backward()
    assert outer.linear.weight.grad is not None


def test_torch_compile_of_a_single_output(scale: Callable[[Tensor], Any]) -> None:
    x, _ = inputs()
    compiled = torch.compile(lambda x: scale(x.relu()), backend="aot_eager", fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(x), x.relu() * 2 + 1)
    with pytest.raises(Exception, match=r"'x' has shape .*\(4, 20\)"):
        compiled(x[:3])


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # torch.export.load before 2.13
def test_exported_programs_call_the_operator(pair: Compiled, tmp_path: Path) -> None:
    x, by = inputs()
    outer = Outer(pair)
    program = torch.export.export(outer, (x, by))
    calls = [node for node in program.graph.nodes if node.target is torch.ops.felixlike.run.default]
    assert [node.args[0] for node in calls] == [pair.key]
    torch.testing.assert_close(program.module()(x, by), outer(x, by))
    torch.export.save(program, tmp_path / "outer.pt2")
    save(pair, tmp_path / "pair.flx", report={})
    again, _ = load(tmp_path / "pair.flx")
    assert again.key == pair.key
    torch.testing.assert_close(torch.export.load(tmp_path / "outer.pt2").module()(x, by), outer(x, by))


def test_the_operator_of_a_deleted_model_is_refused() -> None:
    compiled = compile_model(import_model(Double(), (2,)))
    key, x = compiled.key, torch.ones(2)
    torch.testing.assert_close(run(key, [x])[0], x * 2 + 1)
    del compiled
    with pytest.raises(ModelNotLoaded, match=rf"felixlike::run: .*'{key}'"):
        run(key, [x])


def test_the_operator_passes_opcheck(pair: Compiled) -> None:
    """The operator passes torch's checks. Outputs that are views of inputs are copied."""
    checks = torch.library.opcheck(torch.ops.felixlike.run.default, (pair.key, list(inputs())))
    assert set(checks.values()) == {"SUCCESS"}
    x, by = inputs()
    assert run(pair.key, [x, by])[1].data_ptr() != x.data_ptr()
    assert pair(x, by)["b"][0].data_ptr() == x.data_ptr()


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(pair: Compiled, mode: Any) -> None:
    x, by = inputs()
    graph = make_fx(lambda x, by: pair(x, by)["a"], tracing_mode=mode)(x, by)
    assert "felixlike.run" in str(graph.graph)
    torch.testing.assert_close(graph(x + 1, by), pair(x + 1, by)["a"])


def test_jit_trace_and_symbolic_trace(pair: Compiled) -> None:
    x, by = inputs()
    outer = Outer(pair)
    trace: Any = torch.jit.trace
    for traced in (trace(outer, (x, by)), torch.fx.symbolic_trace(outer)):
        torch.testing.assert_close(traced(x + 1, by), outer(x + 1, by))


def test_fake_tensors(pair: Compiled) -> None:
    with FakeTensorMode():
        got = pair(torch.empty(4, 20), torch.empty(20))["b"][0]
        assert isinstance(got, FakeTensor)
        assert got.shape == (80,)
        with pytest.raises(InputMismatch, match=r"input 'x' has shape \(4, 21\)"):
            pair(torch.empty(4, 21), torch.empty(20))
        with pytest.raises(InputMismatch, match=r"input 'by' is torch.float64"):
            pair(torch.empty(4, 20), torch.empty(20).double())


def test_vmap_calls_the_model_for_each_element(scale: Callable[[Tensor], Any], pair: Compiled) -> None:
    xs, by = torch.randn(3, 4, 20), torch.randn(20)
    torch.testing.assert_close(torch.vmap(scale)(xs), xs * 2 + 1)
    permuted = torch.vmap(scale, in_dims=2, out_dims=1)(xs.permute(1, 2, 0))
    torch.testing.assert_close(permuted, (xs * 2 + 1).transpose(0, 1))
    torch.testing.assert_close(torch.vmap(torch.vmap(scale))(xs[None]), (xs * 2 + 1)[None])
    product, total = torch.vmap(lambda x: (pair(x, by)["a"], pair(x, by)["b"][2]))(xs)
    torch.testing.assert_close(product, xs * by + 1)
    torch.testing.assert_close(total, xs + by)
    with pytest.raises(InputMismatch, match=r"has shape \(20,\)"):
        torch.vmap(scale)(xs[0])


def test_derivatives_are_refused(pair: Compiled) -> None:
    """Derivatives raise an error instead of being zero."""
    x, by = inputs()

    def loss(x: Tensor) -> Any:
        return pair(x, by)["a"].sum()

    derive: dict[str, Callable[[], Any]] = {
        "grad": lambda: torch.func.grad(loss)(x),
        "vjp": lambda: torch.func.vjp(loss, x),
        "jvp": lambda: torch.func.jvp(loss, (x,), (x,)),
        "jacrev": lambda: torch.func.jacrev(loss)(x),
        "jacfwd": lambda: torch.func.jacfwd(loss)(x),
        "vmap of grad": lambda: torch.vmap(torch.func.grad(loss))(x[None]),
        "grad of vmap": lambda: torch.func.grad(lambda xs: torch.vmap(loss)(xs).sum())(x[None]),
    }
    for derivative in derive.values():
        with pytest.raises(WrongContext, match=r"Pair: .*differentiated"):
            derivative()
    # Gradients with respect to tensors outside of the call are right.
    factor = torch.func.grad(lambda factor: (pair(x, by)["a"] * factor).sum())(torch.tensor(2.0))
    torch.testing.assert_close(factor, (x * by + 1).sum(), rtol=1e-4, atol=1e-4)


def test_gradients_stop_with_a_warning() -> None:
    compiled = compile_model(import_model(Double(), (2,)))
    xs = torch.ones(3, 2, requires_grad=True)
    with pytest.warns(NoGradientWarning, match="input 'x' requires a gradient"):
        assert not torch.vmap(compiled)(xs).requires_grad
    assert not torch.vmap(compiled)(xs).requires_grad


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")  # PyTorch's, of its own use in a context
@pytest.mark.parametrize(
    "context",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu"),
        lambda: torch.device("meta"),
        lambda: FlopCounterMode(display=False),
        torch.profiler.profile,
    ],
)
def test_torch_modes_do_not_change_outputs(pair: Compiled, context: Callable[[], Any]) -> None:
    x, by = inputs()
    want = pair(x, by)["a"]
    with context():
        got = pair(x, by)["a"]
    assert torch.equal(got, want)
    assert torch.equal(torch.func.functionalize(lambda x: pair(x, by)["a"])(x), want)
