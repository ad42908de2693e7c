"""Tests for uses of a tuned model: inputs, copies, transforms, threads and processes."""

from __future__ import annotations

import copy
import inspect
import io
import multiprocessing
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import felixlike as fx
from felixlike.errors import FelixlikeError, FixedModel, InputMismatch, NoGradientWarning
from usage.ways import Refused, answers_alike

INPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda x: x,
    "transposed in memory": lambda x: x.T.contiguous().T,
    "a slice": lambda x: torch.cat([x, x], -1)[:, :16],
    "not aligned": lambda x: torch.cat([torch.zeros(1), x.flatten()])[1:].view(2, 16),
    "expanded": lambda x: x[:1].expand(2, 16),
    "read-only numpy": lambda x: torch.from_numpy(x.numpy().copy()),
    "of a numpy slice": lambda x: torch.from_numpy(np.ascontiguousarray(x.numpy())[:, ::-1].copy()),
    "a parameter": lambda x: nn.Parameter(x, requires_grad=False),
    "shared memory": lambda x: x.clone().share_memory_(),  # type: ignore[no-untyped-call]
    "huge numbers": lambda x: x * 1e30,
    "tiny numbers": lambda x: x * 1e-40,
    "infinities": lambda x: torch.full_like(x, torch.inf),
    "not a number": lambda x: torch.full_like(x, torch.nan),
    "zeros": torch.zeros_like,
    "of inference_mode": lambda x: _in_inference_mode(x),
}


def _in_inference_mode(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x + 0


@pytest.mark.parametrize("way", INPUTS)
def test_inputs_of_every_kind_give_the_model_s_outputs(
    way: str, fast: fx.Optimized, model: nn.Module, x: torch.Tensor
) -> None:
    inputs = INPUTS[way](x)
    before = inputs.clone()
    with torch.no_grad():
        torch.testing.assert_close(fast(inputs), model(inputs), rtol=1e-4, atol=1e-4, equal_nan=True)
    torch.testing.assert_close(inputs, before, rtol=0, atol=0, equal_nan=True)


WRONG: dict[str, tuple[Callable[[fx.Optimized, torch.Tensor], Any], str]] = {
    "another batch": (lambda f, x: f(x[:1]), r"has shape \(1, 16\), compiled for \(2, 16\)"),
    "another type": (lambda f, x: f(x.double()), "torch.float64, compiled for torch.float32.*convert it"),
    "half": (lambda f, x: f(x.half()), "torch.float16, compiled for"),
    "one too many": (lambda f, x: f(x, x), "1 input, got 2"),
    "none": (lambda f, x: f(), "1 input, got 0|'input' is missing"),
    "an unknown name": (lambda f, x: f(y=x), "'y'"),
    "twice": (lambda f, x: f(x, input=x), "twice"),
    "a list": (lambda f, x: f(x.tolist()), "."),
    "None": (lambda f, x: f(None), "NoneType|None"),
    "a number": (lambda f, x: f(3.0), "float|3.0"),
    "sparse": (lambda f, x: f(x.to_sparse()), "sparse"),
    "without memory": (lambda f, x: f(x.to("meta")), "meta"),
    "a tuple of it": (lambda f, x: f((x,)), "."),
}


@pytest.mark.parametrize("way", WRONG)
def test_wrong_inputs_are_refused(way: str, fast: fx.Optimized, x: torch.Tensor) -> None:
    call, words = WRONG[way]
    with Refused(InputMismatch, words):
        call(fast, x)
    assert fast(x).shape == (2, 4)


def test_calls_by_name_and_in_threads_give_the_model_s_outputs(
    fast: fx.Optimized, model: nn.Module, x: torch.Tensor
) -> None:
    answers_alike(fast, lambda **named: model(named["input"]), input=x)
    inputs = [torch.randn(2, 16) for _ in range(40)]
    with ThreadPoolExecutor(4) as threads:
        for tensor, output in zip(inputs, threads.map(fast, inputs), strict=True):
            with torch.no_grad():
                torch.testing.assert_close(output, model(tensor), rtol=1e-4, atol=1e-4)


def test_outputs_are_not_overwritten_by_later_calls(fast: fx.Optimized, x: torch.Tensor) -> None:
    first = fast(x)
    before = first.clone()
    fast(x * 2)
    torch.testing.assert_close(first, before, rtol=0, atol=0)


COPIES: dict[str, Callable[[fx.Optimized], Any]] = {
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
    "pickled": lambda f: pickle.loads(pickle.dumps(f)),
    "as a module": lambda f: f.module(),
    "in a Sequential": lambda f: nn.Sequential(f.module(), nn.Identity()),
    "a module's deep copy": lambda f: copy.deepcopy(f.module()),
    "compiled whole": lambda f: torch.compile(lambda x: f(x) + 0, fullgraph=True, backend="eager"),
}


@pytest.mark.parametrize("way", COPIES)
def test_copies_pickles_and_modules_give_equal_outputs(way: str, fast: fx.Optimized, x: torch.Tensor) -> None:
    torch.testing.assert_close(COPIES[way](fast)(x), fast(x))


def test_an_exported_model_that_contains_a_tuned_one(fast: fx.Optimized, x: torch.Tensor) -> None:
    program = torch.export.export(nn.Sequential(fast.module(), nn.ReLU()), (x,))
    torch.testing.assert_close(program.module()(x), fast(x).relu())


def test_gradients_stop_with_one_warning(fast: fx.Optimized, x: torch.Tensor) -> None:
    again = pickle.loads(pickle.dumps(fast))
    needs = x.clone().requires_grad_()
    with pytest.warns(NoGradientWarning, match=r"call it under torch.no_grad|Call it under torch.no_grad"):
        assert not again(needs).requires_grad
    again(needs)  # a second warning would fail, as warnings are errors in tests


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # torch raises it in the first jvp
@pytest.mark.parametrize("way", ["grad", "vmap", "jvp"])
def test_vmap_is_supported_and_derivatives_are_refused(way: str, fast: fx.Optimized, x: torch.Tensor) -> None:
    if way == "vmap":
        outputs = torch.func.vmap(fast)(torch.stack([x, x + 1]))
        torch.testing.assert_close(outputs, torch.stack([fast(x), fast(x + 1)]))
        return
    with pytest.raises(FelixlikeError):
        _derive(way, fast, x)


def _derive(way: str, fast: fx.Optimized, x: torch.Tensor) -> Any:
    if way == "grad":
        return torch.func.grad(lambda t: fast(t).sum())(x)
    return torch.func.jvp(fast, (x,), (x,))


@pytest.mark.parametrize("move", [lambda m: m.double(), lambda m: m.half(), lambda m: m.to("meta")])
def test_modules_cannot_change_dtype_or_device(move: Callable[[nn.Module], Any], fast: fx.Optimized) -> None:
    with Refused(FixedModel, "."):
        move(fast.module())


def test_specs_signature_and_report(fast: fx.Optimized) -> None:
    assert [str(spec) for spec in fast.inputs] == ["input: float32[2, 16]"]
    assert (fast.outputs.shape, fast.outputs.dtype) == ((2, 4), "float32")
    assert list(inspect.signature(fast).parameters) == ["input"]
    assert "float32[2, 16]" in repr(fast)
    assert not list(fast.module().parameters())
    assert fast.report.to_json()


def test_the_module_s_state_dict_is_empty(fast: fx.Optimized) -> None:
    file = io.BytesIO()
    torch.save(fast.module().state_dict(), file)
    file.seek(0)
    assert not torch.load(file, weights_only=True)


def _output_of_ones(path: str) -> list[float]:
    values: list[float] = fx.load(path)(torch.ones(2, 16)).flatten().tolist()
    return values


def test_a_spawned_process_gives_equal_outputs(fast: fx.Optimized, saved: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        values = pool.apply(_output_of_ones, [str(saved)])
    torch.testing.assert_close(torch.tensor(values), fast(torch.ones(2, 16)).flatten())


def test_a_call_in_a_forked_process_is_refused(saved: Path) -> None:
    """The test runs in a new process, because forking a process with threads is the error under test."""
    program = """
        import os, sys, torch, felixlike as fx
        fast = fx.load(sys.argv[1])
        fast(torch.ones(2, 16))
        if not os.fork():
            try:
                fast(torch.ones(2, 16))
            except fx.FelixlikeError as error:
                print(type(error).__name__, error.remedy, flush=True)
            os._exit(0)
        os.wait()
    """
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), str(saved)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert process.stdout == "" or process.stdout.startswith("ForkedProcess")


def test_calls_in_threads_that_end_give_equal_outputs(fast: fx.Optimized, x: torch.Tensor) -> None:
    outputs: list[torch.Tensor] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: outputs.append(fast(x)))
        thread.start()
        thread.join(30)
    assert len(outputs) == 3
    torch.testing.assert_close(outputs[2], fast(x))
