"""Make our computations independent of the modes that the caller has set in PyTorch.

Input: any state of torch: no gradients, inference mode, autocast, another default dtype or device, deterministic
algorithms, function and dispatch modes, transforms, saved-tensor hooks. Output: code that runs without them, and the
caller's state restored afterwards. A user's own model runs in the caller's default dtype.

Anomaly detection stays as it is: no result depends on it, and torch.compile sets it for the whole process while
another thread traces a backward pass, so that its value is not always the user's.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from felixlike._util.torch_compat import (
    compile_lock,
    has_modes,
    without_code_of_callers,
    without_modes,
    without_saved_tensor_hooks,
)

_T = TypeVar("_T")

_AUTOCAST = ("cpu", "cuda")
"""Device types whose autocast is disabled."""

_callers_dtype: ContextVar[Any] = ContextVar("the caller's default type", default=None)
"""The caller's default dtype, None if it is float32 like ours."""

_callers_autocast: ContextVar[Any] = ContextVar("dtype of the caller's autocast for the CPU", default=None)
"""Dtype of the caller's autocast for the CPU, None if it is disabled."""

_process_lock = threading.RLock()


@contextmanager
def alone(*, exports: bool = False) -> Iterator[None]:
    """Run a block, or a decorated function, in one thread at a time.

    Use it for work that changes process-wide state: torch.export, warning filters, the standard streams. If
    TorchDynamo is loaded, its own lock is held too, so that no thread compiles a graph meanwhile. That lock is
    always taken first, since a thread that compiles may call this package.

    Args:
        exports: Whether the block calls torch.export, which uses TorchDynamo: it is loaded then, so that its lock
            exists. What PyTorch keeps of an export then holds no code of the callers.
    """
    with ExitStack() as stack:
        lock = compile_lock(load=exports)
        if lock is not None:
            stack.enter_context(lock)
        stack.enter_context(_process_lock)
        if exports:
            stack.enter_context(without_code_of_callers())
        yield


def once(make: Callable[[], _T]) -> Callable[[], _T]:
    """Decorate a function so that it runs once, in one thread. Every call returns the first result."""
    made: list[_T] = []

    @functools.wraps(make)
    def first_or_made() -> _T:
        if not made:
            with alone():
                if not made:
                    made.append(make())
        return made[0]

    return first_or_made


class SharedSetting(Generic[_T]):
    """Change a process-wide setting while any of this package's blocks runs, in any thread.

    The first block changes the setting, and the last one restores the user's value.

    Args:
        read: Returns the current value.
        write: Changes it.
        own: The value that this package needs.
    """

    def __init__(self, read: Callable[[], _T], write: Callable[[_T], object], own: _T) -> None:
        self._read, self._write, self._own = read, write, own
        self._lock = threading.Lock()
        self._blocks = 0
        self._users: _T = own

    @contextmanager
    def held(self) -> Iterator[_T]:
        """Run a block with this package's value. Yields the user's value."""
        with self._lock:
            if not self._blocks:
                self._users = self._read()
                if self._users != self._own:
                    self._write(self._own)
            self._blocks += 1
        try:
            if self._read() == self._own:
                yield self._users
            else:
                with self._held_again():
                    yield self._users
        finally:
            with self._lock:
                self._blocks -= 1
                if not self._blocks and self._users != self._own:
                    self._write(self._users)

    @contextmanager
    def _held_again(self) -> Iterator[None]:
        """Run a block inside user code, which runs with the user's value inside another block."""
        with alone():
            value = self._read()
            self._write(self._own)
            try:
                yield
            finally:
                self._write(value)


@contextmanager
def default_modes(*, gradients: bool = True, process: bool = True) -> Iterator[None]:
    """Run a block, or a decorated function, in default modes, so that results do not depend on the caller's.

    gradients: True records gradients, outside inference mode. False leaves this to the caller.
    process: False leaves the settings of the whole process as they are, since other threads use them meanwhile.

    The default dtype and deterministic algorithms are changed for the whole process, everything else for the calling
    thread.
    """
    with ExitStack() as stack:
        stack.enter_context(default_modes_of_thread())
        if process:
            stack.enter_context(_own_defaults())
        if gradients:
            stack.enter_context(_with_gradients())
        yield


@contextmanager
def default_modes_of_thread() -> Iterator[None]:
    """Run a block in default modes, as far as these are settings of the calling thread, and without autocast."""
    with without_modes(), _without_autocast():  # in this order, since function modes intercept the calls of the second
        yield


def in_default_modes() -> bool:
    """Return whether `default_modes_of_thread` has nothing to change."""
    import torch

    return not has_modes() and not any(map(torch.is_autocast_enabled, _AUTOCAST))


@contextmanager
def callers_dtype() -> Iterator[None]:
    """Run a block of user code, inside ours, in the caller's default dtype."""
    dtype = _callers_dtype.get()
    if dtype is None:
        yield
        return
    with alone(), default_dtype(dtype):  # the default dtype is process-wide
        yield


def callers_autocast() -> Any:
    """Return the dtype of the caller's autocast for the CPU, inside a block in default modes; None if disabled."""
    return _callers_autocast.get()


@contextmanager
def default_dtype(dtype: Any) -> Iterator[None]:
    """Run a block with another default dtype."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _without_autocast() -> Iterator[None]:
    """Disable autocast. `callers_autocast` returns what the caller had."""
    import torch

    cast = [device for device in _AUTOCAST if torch.is_autocast_enabled(device)]
    token = _callers_autocast.set(torch.get_autocast_dtype("cpu")) if "cpu" in cast else None
    for device in cast:
        torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        for device in cast:
            torch.set_autocast_enabled(device, True)
        if token is not None:
            _callers_autocast.reset(token)


@contextmanager
def _own_defaults() -> Iterator[None]:
    """Use float32 as the default dtype and allow nondeterministic algorithms."""
    import torch

    dtypes, levels = _settings()
    with ExitStack() as stack:
        dtype = stack.enter_context(dtypes.held())
        if dtype is not torch.float32:
            stack.callback(_callers_dtype.reset, _callers_dtype.set(dtype))
        stack.enter_context(levels.held())
        yield


@functools.cache
def _settings() -> tuple[SharedSetting[Any], SharedSetting[int]]:
    """Return the settings of the default dtype and of the deterministic debug mode."""
    import torch

    return (
        SharedSetting(torch.get_default_dtype, torch.set_default_dtype, torch.float32),
        SharedSetting(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0),
    )


@contextmanager
def _with_gradients() -> Iterator[None]:
    """Record gradients as torch does by default, without saved-tensor hooks."""
    import torch

    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        stack.enter_context(without_saved_tensor_hooks())
        yield
