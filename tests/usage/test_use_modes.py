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
from felixlike.tuning import one_thread


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _both(one: Any, other: Any) -> Iterator[None]:
    with one, other:
        yield


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
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast in inference_mode": lambda: _both(torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)),
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
