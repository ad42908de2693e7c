"""PyTorch's global modes do not change felixlike's results, and felixlike restores them."""

from __future__ import annotations

import contextlib
import functools
import gc
import pickle
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import workloads
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import felixlike as fx
from felixlike import costmodel, features, smooth, symbolic
from felixlike._util.torch_modes import alone, callers_dtype, default_dtype, default_modes
from felixlike.costmodel import CostModel
from felixlike.frontend import import_model
from felixlike.report import Report
from felixlike.runtime import compile_model, max_relative_error
from felixlike.search import Gradient
from felixlike.search.descent import Descent


class Doubled(TorchFunctionMode):
    """A function mode that doubles every sum, which felixlike's own computations must not see."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is Tensor.sum else result


class Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that intercepts every operator and changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def autocast_of(device: str) -> Iterator[None]:
    """Enable autocast for a device, which need not exist."""
    torch.set_autocast_enabled(device, True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, False)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _refused(tensor: Tensor) -> Any:
    raise AssertionError("a hook of the caller's saw a tensor of ours")


MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "none": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "grad_disabled": lambda: torch.set_grad_enabled(False),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast_cuda": lambda: autocast_of("cuda"),
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "default_device": lambda: default_device("meta"),
    "device": lambda: torch.device("meta"),
    "deterministic": deterministic,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "function_mode": Doubled,
    "dispatch_mode": Watched,
    "saved_tensors": lambda: torch.autograd.graph.saved_tensors_hooks(_refused, _refused),
}


def state() -> tuple[Any, ...]:
    """Return all state that `default_modes` sets."""
    hooks: Any = torch._C._autograd
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch.get_deterministic_debug_mode(),
        hooks._top_saved_tensors_default_hooks(True),
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).eval()


PLAIN = state()
MODEL, X = network(), torch.randn(3, 8)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    return MODES[request.param]


def test_default_modes_sets_and_restores_all_state(mode: Any) -> None:
    with mode():
        before, anomaly = state(), torch.is_anomaly_enabled()
        with default_modes():
            assert state() == PLAIN
            assert torch.is_anomaly_enabled() == anomaly
            x = torch.ones(3, requires_grad=True)
            (gradient,) = torch.autograd.grad((x * x).sum(), x)
            assert gradient.tolist() == [2.0, 2.0, 2.0]
        assert state() == before
        with pytest.raises(ZeroDivisionError), default_modes():
            raise ZeroDivisionError
        assert state() == before
    assert state() == PLAIN


def test_default_modes_hides_transforms() -> None:
    def function(x: Tensor) -> Tensor:
        with default_modes():
            assert torch._C._functorch.peek_interpreter_stack() is None
        return x + 1

    assert torch.vmap(function)(torch.zeros(2)).tolist() == [1.0, 1.0]


def test_default_modes_can_keep_the_callers_gradient_mode() -> None:
    with torch.no_grad(), torch.autocast("cpu"), default_modes(gradients=False):
        assert not torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")


def test_callers_dtype_restores_the_callers_default_dtype() -> None:
    with default_dtype(torch.float64), default_modes(), default_modes():
        assert torch.get_default_dtype() is torch.float32
        with callers_dtype():
            assert torch.get_default_dtype() is torch.float64
    with default_modes(), callers_dtype():
        assert torch.get_default_dtype() is torch.float32


def test_models_compile_and_run_in_every_mode(mode: Any) -> None:
    """Models compiled in a mode give the same results inside and outside of it, in fixed dtypes."""
    with torch.no_grad():
        want = MODEL(X)
    with mode():
        casts = torch.is_autocast_enabled("cpu")  # it is part of what the model computes
        imported = import_model(MODEL, X)
        compiled = compile_model(imported)
        verification = max_relative_error(compiled, imported.original, imported.examples)
        made_in_mode = X.clone()
        inside = [compiled(x) for x in (X, made_in_mode)]
    assert verification.error < (1e-2 if casts else 1e-5)
    assert verification.reference == "float64"
    for output in (*inside, compiled(X), compiled(made_in_mode)):
        assert output.dtype is (torch.bfloat16 if casts else torch.float32)
        near: dict[str, Any] = {"rtol": 2e-2, "atol": 2e-2} if casts else {}
        torch.testing.assert_close(output, want, check_dtype=not casts, **near)


def test_a_search_works_with_all_modes_set(tmp_path: Path) -> None:
    """A search works with all modes set, although it needs gradients of the formulas and of the cost model."""
    wide, x = nn.Sequential(nn.Linear(32, 48), nn.ReLU()), torch.randn(4, 32)
    with contextlib.ExitStack() as stack:
        for name in ("autocast", "float64", "default_device", "deterministic", "anomaly", "inference_mode"):
            stack.enter_context(MODES[name]())
        strategy = Gradient(pool=64, neighbours=64, seeds=4, descent=Descent(steps=5))
        tuned = fx.optimize(wide, x, trials=6, space="all", strategy=strategy, progress=False)
        tuned.save(tmp_path / "model.flx")
        loaded = fx.load(tmp_path / "model.flx")
        output = loaded(x)
    assert tuned.report.trials == 6
    assert tuned.report.error < 1e-2
    assert output.dtype is torch.bfloat16  # of autocast
    with torch.no_grad():
        torch.testing.assert_close(output.float(), wide(x), rtol=2e-2, atol=2e-2)


def test_cost_model_and_formulas_are_equal_in_every_mode(mode: Any) -> None:
    """Cost model and formulas give the same numbers in every mode, and can be used after it."""
    with mode():
        relaxed, model, values, points = _parts()
        numbers = _numbers(relaxed, model, values, points)
    for got, want in zip(numbers, _numbers_without_modes(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    x = relaxed.log_points(points).requires_grad_()
    (gradient,) = torch.autograd.grad(relaxed(x).sum(), x)
    assert bool(gradient.isfinite().all())


SKETCH = symbolic.sketches(workloads.matmul())[0]


def _parts() -> tuple[smooth.Relaxed, CostModel, Any, Any]:
    points = SKETCH.sample(6, seed=0)
    formulas = features.formulas(SKETCH)
    return smooth.relax(formulas), costmodel.load(), formulas.evaluate(points), points


def _numbers(relaxed: smooth.Relaxed, model: CostModel, values: Any, points: Any) -> tuple[Any, Any, Any]:
    """Return smooth features, and predictions before and after training."""
    smoothed = np.array(relaxed(relaxed.log_points(points)).tolist())
    before = model.predict(values)
    model.anchor("task", values)
    model.remember("task", values, [1e-3 * (i + 1) for i in range(len(values))])
    model.refresh("task", options=costmodel.Training(steps=3))
    return smoothed, before, model.predict(values)


@functools.cache
def _numbers_without_modes() -> tuple[Any, Any, Any]:
    return _numbers(*_parts())


def _exported() -> torch.export.ExportedProgram:
    with alone(exports=True):
        return torch.export.export(nn.Linear(3, 2), (torch.ones(1, 3),))


def test_an_export_keeps_no_code_of_its_callers() -> None:
    """TorchDynamo keeps what it has compiled as long as the code that it was compiled for."""
    caller = types.FunctionType(_exported.__code__.replace(), globals())
    code = weakref.ref(caller.__code__)
    program = caller()
    del caller
    gc.collect()
    assert code() is None
    assert program.graph.nodes  # still there


def test_models_made_in_inference_mode_compile() -> None:
    with torch.inference_mode():
        model, x = network(), torch.randn(3, 8)
        want = model(x)
    assert all(parameter.is_inference() for parameter in model.parameters())
    imported = import_model(model, x)
    compiled = compile_model(imported)
    torch.testing.assert_close(compiled(x), want)
    assert max_relative_error(compiled, model, imported.examples).error < 1e-5
    with torch.inference_mode():
        torch.testing.assert_close(compile_model(import_model(torch.export.export(MODEL, (X,))))(X), MODEL(X))


class Shift(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu() * torch.ones(4)


def test_the_model_runs_in_the_callers_default_dtype() -> None:
    """A tensor that the model creates in the default dtype has the dtype that the caller set."""
    with default_dtype(torch.float64):
        x = torch.randn(3, 4, dtype=torch.float32)
        tuned = fx.optimize(Shift(), x, rounds=0, progress=False)
        assert str(tuned.outputs) == "output: float64[3, 4]"
        torch.testing.assert_close(tuned(x), Shift()(x))
    assert tuned.report.error < 1e-12


@pytest.mark.parametrize("way", ["file", "pickle"])
def test_models_are_loaded_without_changing_settings_of_the_process(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend of torch.compile loads models in a thread beside the user's code."""
    tuned, file, seen = fx.optimize(MODEL, X, rounds=0, progress=False), tmp_path / "model.flx", list[torch.dtype]()
    tuned.save(file)
    content, original = pickle.dumps(tuned), Report.from_json

    def noted(data: Any) -> Any:
        seen.append(torch.get_default_dtype())
        return original(data)

    monkeypatch.setattr(Report, "from_json", noted)
    with default_dtype(torch.float64), torch.device("meta"):
        loaded = fx.load(file) if way == "file" else pickle.loads(content)
    assert seen == [torch.float64]
    assert torch.equal(loaded(X), tuned(X))
