"""Tests for PyTorch modes that are active while a model is tuned, saved, loaded and called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import felixlike as fx
from felixlike._util.torch_modes import default_dtype
from felixlike.errors import InvalidModel
from felixlike.tuning import one_thread


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class Counting(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call,unused-ignore]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "float64 by default": lambda: default_dtype(torch.float64),
    "bfloat16 by default": lambda: default_dtype(torch.bfloat16),
    "meta by default": lambda: torch.device("meta"),
    "deterministic": deterministic,
    "one thread": one_thread,
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "a function mode": Counting,
    "a dispatch mode": Watching,
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
@pytest.mark.parametrize("mode", MODES)
def test_modes_do_not_change_outputs(mode: str, model: nn.Module, x: torch.Tensor, tmp_path: Path) -> None:
    with torch.no_grad():
        expected = model(x)
    with MODES[mode]():
        dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
        fast = fx.optimize(model, (x,), 0, progress=False)
        inside = fast(x)
        fast.save(tmp_path / "model.flx")
        again = fx.load(tmp_path / "model.flx")(x)
        assert (torch.get_default_dtype(), torch.is_grad_enabled()) == (dtype, grad)
    for output in (inside, again, fast(x)):
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_autocast_around_optimize_is_that_of_the_model(
    mode: Callable[[], Any], model: nn.Module, x: torch.Tensor, tmp_path: Path
) -> None:
    """Types are fixed by the modes in which a model is optimized, as with torch.compile."""
    with mode(), torch.autocast("cpu", torch.bfloat16):
        expected = model(x)
        fast = fx.optimize(model, (x,), 0, progress=False)
        inside = fast(x)
        assert torch.is_autocast_enabled("cpu")
    fast.save(tmp_path / "model.flx")
    assert "forward" not in vars(model)
    for output in (inside, fx.load(tmp_path / "model.flx")(x), fast(x)):
        assert output.dtype == expected.dtype == torch.bfloat16
        assert (output - expected).abs().max() <= 2.0**-6 * expected.abs().max()


def test_autocast_around_optimize_keeps_names_and_state() -> None:
    class Counted(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 8)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, data: torch.Tensor, *, scale: float = 2.0) -> torch.Tensor:
            self.count.add_(1)
            result: torch.Tensor = self.layer(data) * scale
            return result

    model, data = Counted().eval(), torch.randn(4, 16)
    with torch.autocast("cpu", torch.bfloat16):
        fast = fx.optimize(model, {"data": (fx.Dim("n", range(1, 9)), 16)}, 0, progress=False)
    assert float(model.count) == 0
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = model(data)
    assert fast.report.model == "Counted"
    assert (fast(data=data) - expected).abs().max() <= 2.0**-6 * expected.abs().max()
    assert float(fast.state["count"]) == 1


def test_autocast_around_optimize_refuses_a_replaced_forward(model: nn.Module, x: torch.Tensor) -> None:
    model.forward = model.forward
    with torch.autocast("cpu"), pytest.raises(InvalidModel, match=r"forward was replaced.* in the model's forward"):
        fx.optimize(model, (x,), 0, progress=False)


def test_autocast_around_a_call_changes_nothing(model: nn.Module, x: torch.Tensor) -> None:
    fast = fx.optimize(model, (x,), 0, progress=False)
    expected = fast(x)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fast(x), expected)
