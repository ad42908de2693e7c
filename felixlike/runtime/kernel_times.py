"""Time the kernels of compiled models inside whole calls, with their neighbours and what these leave in the caches.

Inputs: models compiled in this process from one original, and inputs. Output: for each model the seconds that each
of its kernels takes in a call, by the kernel's name: the lower quartile of all calls, since other processes only delay
calls.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from felixlike.runtime.callable import Compiled
from felixlike.runtime.guarded_calls import RUN
from felixlike.runtime.serial_copy import contiguous_copy

_FEWEST, _MOST = 5, 200
"""Limits on the calls of each model. Chosen by hand."""


def kernel_times(models: Sequence[Compiled], tensors: Sequence[Any], *, seconds: float) -> list[dict[str, float]]:
    """Time the kernels of models, whose calls alternate.

    Args:
        models: Models for this machine's CPU that change nothing in place.
        tensors: Flat inputs, one per input of the models; unchanged.
        seconds: Approximate seconds of timing per model.

    Returns:
        Seconds in one call by the kernel's name, for each model. A kernel that is called several times has their sum.
    """
    inputs = [contiguous_copy(tensor) for tensor in tensors]
    sides = [_Clock.of(model) for model in models]
    end = time.monotonic() + seconds * len(models)
    calls = 0
    while calls < _FEWEST or (calls < _MOST and time.monotonic() < end):
        for clock, call in sides:
            call(*inputs)
            clock.finish_call()
        calls += 1
    return [clock.quartiles() for clock, _ in sides]


class _Clock:
    """An instrument of the virtual machine, called before and after each call of a kernel."""

    def __init__(self) -> None:
        self._began = 0.0
        self._call: defaultdict[str, float] = defaultdict(float)
        self._calls: defaultdict[str, list[float]] = defaultdict(list)

    @classmethod
    def of(cls, model: Compiled) -> tuple[_Clock, Callable[..., Any]]:
        """Return a clock and the call of the model that it times."""
        machine, clock = model._virtual_machine(), cls()
        machine.set_instrument(clock)
        main = model._main(machine)

        def call(*inputs: Any) -> Any:
            model._pin_threads(model.threads)
            return main(*inputs)

        return clock, call

    def __call__(self, _function: Any, name: str, before: bool, *_values: Any) -> int:
        now = time.perf_counter()
        if before:
            self._began = time.perf_counter()
        else:
            self._call[name] += now - self._began
        return RUN

    def finish_call(self) -> None:
        """Add the seconds of a whole call."""
        for name, seconds in self._call.items():
            self._calls[name].append(seconds)
        self._call.clear()

    def quartiles(self) -> dict[str, float]:
        """Return the lower quartile of each kernel's seconds without the first call, which fills the caches."""
        return {name: statistics.quantiles(seconds[1:], n=4)[0] for name, seconds in self._calls.items()}
