"""Test that several threads can optimize, compile and import concurrently and that PyTorch's state is restored."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import felixlike as fx
from felixlike._util.torch_modes import SharedSetting, alone, once
from felixlike.errors import FelixlikeWarning

COUNT = 4


def _run_in_threads(work: Callable[[int], object]) -> None:
    """Run work(0), work(1), … in one thread each, and raise the first exception."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(COUNT)

    def run(index: int) -> None:
        barrier.wait()
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _models() -> list[tuple[nn.Module, Tensor]]:
    torch.manual_seed(0)
    modules = [nn.Sequential(nn.Linear(9 + i, 16), nn.ReLU(), nn.Linear(16, 4)).eval() for i in range(COUNT)]
    return [(model, torch.randn(3, 9 + i)) for i, model in enumerate(modules)]


def _state() -> tuple[Any, ...]:
    return (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        torch.is_anomaly_enabled(),
        sys.stderr,
        sys.stdout,
        [kind for _, _, kind, _, _ in warnings.filters if kind in (Warning, FelixlikeWarning)],  # libraries add others
        logging.root.manager.disable,
    )


@pytest.mark.parametrize("way", ["optimize", "torch.compile"])
def test_concurrent_threads_get_correct_outputs(way: str, tmp_path: Path) -> None:
    models = _models()
    options: dict[str, Any] = {"seconds": 0, "store": str(tmp_path / "store.sqlite")}
    torch._dynamo.reset()
    compiled = [torch.compile(model, backend="felixlike", options=options) for model, _ in models]
    before = _state()

    def work(index: int) -> None:
        model, x = models[index]
        with torch.no_grad():
            fast = fx.optimize(model, (x,), trials=0, progress=False) if way == "optimize" else compiled[index]
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)

    _run_in_threads(work)
    assert _state() == before
    other = torch.compile(lambda x: x.sin() + 1, backend="eager", fullgraph=True)
    torch.testing.assert_close(other(torch.ones(3)), torch.ones(3).sin() + 1)
    torch._dynamo.reset()


def test_the_last_block_restores_a_setting() -> None:
    value = [7]
    setting = SharedSetting(lambda: value[0], lambda new: value.__setitem__(0, new), 1)
    inside, outside = threading.Event(), threading.Event()
    seen: list[int] = []

    def other() -> None:
        with setting.held() as users:
            seen.append(users)
            inside.set()
            outside.wait(30)
            seen.append(value[0])

    thread = threading.Thread(target=other)
    with setting.held() as users:
        assert (users, value[0]) == (7, 1)
        thread.start()
        assert inside.wait(30)
    assert value == [1]  # the other block is still active
    outside.set()
    thread.join()
    assert (value, seen) == ([7], [7, 1])


def test_a_block_restores_a_setting_of_the_user() -> None:
    value = [7]
    setting = SharedSetting(lambda: value[0], lambda new: value.__setitem__(0, new), 1)
    with setting.held():
        value[0] = 7  # the user's code changes the setting
        with setting.held():
            assert value == [1]
        assert value == [7]
        value[0] = 1
    assert value == [7]


def test_once_calls_a_function_once() -> None:
    calls: list[int] = []

    @once
    def make() -> int:
        calls.append(1)
        return 5

    _run_in_threads(lambda _: make())
    assert (make(), calls) == (5, [1])


def test_alone_admits_one_thread_at_a_time() -> None:
    inside = 0

    def work(_: int) -> None:
        nonlocal inside
        for _ in range(50):
            with alone(), alone(exports=True):
                inside += 1
                assert inside == 1
                inside -= 1

    _run_in_threads(work)
