"""Pin the threads of a call of compiled code to different physical cores while there are enough.

Input: the cores this process may use, and the number of threads in the environment. Output: the pool of workers of the
calling thread, bound to cores that the caller does not run on.

Every calling thread has a pool of its own (`_tvm/parallel_launch.py`; on other systems than Linux it is TVM's). The
caller's thread is not bound. If the system has moved it onto a worker's core, that worker moves to the core the caller
came from.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from felixlike import _tvm
from felixlike._util.wording import shown
from felixlike.errors import ForkedProcess, InvalidOption
from felixlike.hardware.probe import usable_cores, usable_processors

_T = TypeVar("_T")
_R = TypeVar("_R")

VARIABLES = ("TVM_NUM_THREADS", "OMP_NUM_THREADS")
"""Environment variables that may set the number of threads of a call. The first with a number above zero counts."""

MOST_THREADS = 1024
"""Upper limit on threads per call. Chosen by hand."""

_MOST_AT_ONCE = 8
"""Upper limit on threads of `concurrently`, chosen by hand: memory is no faster with more."""

_ANYWHERE = -1
"""Processor number on systems that do not provide it."""


@dataclass(frozen=True, slots=True)
class Share:
    """The processors that one thread of a call may run on.

    Attributes:
        thread: The system's number of the thread.
        processors: Logical processors.
    """

    thread: int
    processors: frozenset[int]


class _Here(threading.local):
    """State of the calling thread.

    Attributes:
        home: Processors that no worker of its pool is bound to, empty before the pool exists.
        asked: Number of threads that the pool was prepared for, 0 for `threads()`.
        pool: Its pool, None on other systems than Linux.
        workers: Workers of its pool that calls use.
        lost: Whether the workers were left behind in the process that this one was forked from.
    """

    home: frozenset[int] = frozenset()
    asked: int = 0
    pool: Any = None
    workers: tuple[Share, ...] = ()
    lost: bool = False


_here = _Here()


def threads() -> int:
    """Return the number of threads of a call: the environment's, else one for each core this process may use.

    Raises InvalidOption if the environment's is above `MOST_THREADS`.
    """
    variable = asked_by()
    if variable is None:
        return usable_cores()
    count = _number(os.environ[variable])
    if count > MOST_THREADS:
        raise InvalidOption(
            f"expected at most {MOST_THREADS} threads, got {shown(os.environ[variable])}",
            where=variable,
            remedy="set it to the number of cores, or unset it",
        )
    return count


def asked_by() -> str | None:
    """Return the environment variable that sets the number of threads of a call, or None."""
    return next((name for name in VARIABLES if _number(os.environ.get(name, "")) > 0), None)


def shares(cores: Sequence[frozenset[int]], first: int, count: int) -> list[frozenset[int]]:
    """Return the processors of each of `count` threads, the caller's first.

    Each thread gets a core, or every `count`-th core if there are more. If there are fewer, several threads share a
    core. `cores` has the processors of each core, and `first` is the position of the caller's core.
    """
    turned = [*cores[first:], *cores[:first]]
    if count >= len(turned):
        return [turned[i % len(turned)] for i in range(count)]
    return [frozenset[int]().union(*turned[i::count]) for i in range(count)]


def within(cores: Sequence[frozenset[int]], mask: frozenset[int], count: int) -> list[frozenset[int]]:
    """Return the part of the cores in the caller's mask if it has a core for each of `count` threads, else all.

    A mask with fewer cores binds only the thread (OpenMP does so), not its process.
    """
    allowed = [core & mask for core in cores if core & mask]
    return allowed if len(allowed) >= count else list(cores)


def pin_threads(count: int = 0) -> None:
    """Create the calling thread's pool of `count` workers and keep them off the caller's core.

    A pool never grows: if a thread's first call had fewer threads, later calls have no more. The function runs before
    compiled code. It takes a fraction of a microsecond if nothing changes, and some 100 µs after a call with another
    number of threads. The caller's affinity does not change. `count` is 0 for `threads()`. Raises ForkedProcess.
    """
    if _processor() not in _here.home or count != _here.asked:
        _resettle(count)


def hold() -> None:
    """Pin the workers and keep the calling thread off their cores permanently.

    This is for felixlike's own processes, where TVM's loops make calls that do not go through `pin_threads`.
    """
    pin_threads()
    if sys.platform == "linux":
        _bind(0, _here.home)


@contextmanager
def unbound() -> Iterator[None]:
    """Let the calling thread run on all processors of this process inside the context, then restore its mask.

    Threads and processes that are started inside inherit the mask: OpenMP binds the main thread (OMP_PROC_BIND).
    """
    if sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    _bind(0, frozenset().union(*usable_processors()))
    try:
        yield
    finally:
        _bind(0, frozenset(before))


def concurrently(function: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Return a function's results for items, several at a time. It should release Python's lock, as checksums do."""
    count = min(_MOST_AT_ONCE, usable_cores(), len(items))
    if count <= 1:
        return list(map(function, items))
    with unbound(), ThreadPoolExecutor(count) as pool:
        return list(pool.map(function, items))


def placed() -> tuple[Share, ...]:
    """Return the calling thread with its current processor, and the workers of its pool with theirs.

    The sets of processors are empty on systems that do not provide them.
    """
    pin_threads(_here.asked)
    numbers = [threading.get_native_id(), *(worker.thread for worker in _here.workers)]
    if sys.platform != "linux":
        return tuple(Share(number, frozenset()) for number in numbers)
    bound = [frozenset([_processor()]), *(frozenset(os.sched_getaffinity(number)) for number in numbers[1:])]
    return tuple(map(Share, numbers, bound))


def apart(places: Sequence[Share]) -> bool:
    """Return whether no two threads may run on the same physical core."""
    cores = usable_processors()
    home = {processor: number for number, core in enumerate(cores) for processor in core}
    used = [{home.get(processor, -1 - processor) for processor in place.processors} for place in places]
    return sum(map(len, used)) == len(set().union(*used))


def _resettle(count: int) -> None:
    """Create or change the calling thread's pool, or move a worker away from the caller. Raises ForkedProcess."""
    if _here.lost:
        raise ForkedProcess(
            "this process was forked from one that had called a compiled model, whose threads a fork does not copy",
            where=f"process {os.getpid()}",
            remedy='start processes with multiprocessing.get_context("spawn"), or before the first call',
        )
    if not _here.home or count != _here.asked:
        _launch(count)
    else:
        _give_way()


def _launch(asked: int) -> None:
    """Create the calling thread's pool, or use another number of its workers, and bind them."""
    count = asked or threads()
    most = max(count, threads()) if not _here.home else count  # the first call decides the size of the pool
    if sys.platform != "linux":
        _tvm.launch_threads(most)
        _tvm.launch_threads(count)
        _here.home, _here.asked = frozenset([_ANYWHERE]), asked
        return
    cores = within(usable_processors(), frozenset(os.sched_getaffinity(0)), count)
    if _here.pool is None:
        with unbound():  # workers inherit the caller's affinity
            _here.pool = _tvm.Workers(most - 1)
    numbers = _here.pool.use(count)
    processor = _processor()
    first = next((i for i, core in enumerate(cores) if processor in core), 0)
    home, *others = shares(cores, first, 1 + len(numbers))
    _here.workers = tuple(map(Share, numbers, others))
    for worker in _here.workers:
        _bind(worker.thread, worker.processors)
    _here.home, _here.asked = home | {processor}, asked


def _give_way() -> None:
    """Swap the processors of the worker that is bound to the caller's core with the caller's."""
    processor, home = _processor(), _here.home
    place = next((i for i, worker in enumerate(_here.workers) if processor in worker.processors), None)
    if place is None:  # a processor that this process was not allowed to use
        _here.home = home | {processor}
        return
    worker = _here.workers[place]
    moved = Share(worker.thread, home)
    _bind(moved.thread, moved.processors)
    _here.workers = (*_here.workers[:place], moved, *_here.workers[place + 1 :])
    _here.home = worker.processors


def _bind(thread: int, processors: frozenset[int]) -> None:
    """Bind a thread to processors. An OSError is ignored: the container was narrowed in the meantime."""
    with suppress(OSError):
        os.sched_setaffinity(thread, processors)


def _number(text: str) -> int:
    """Return the number of threads in a variable's text, 0 for none. OpenMP's may be a list, one number a level."""
    first = text.split(",")[0].strip()
    return int(first[:9]) if first.isdecimal() else 0  # the first digits are enough for `MOST_THREADS`


def _ask_processor() -> Callable[[], int]:
    """Return a function that returns the calling thread's processor. Python has none before 3.13."""
    try:
        ask = ctypes.PyDLL(None).sched_getcpu  # keeps the interpreter's lock; takes 40 ns
    except (AttributeError, OSError):
        return lambda: _ANYWHERE
    ask.argtypes, ask.restype = (), ctypes.c_int
    return ask


_processor = _ask_processor()


def _after_fork() -> None:
    """Mark the pool as lost in the child: workers do not survive a fork, and threads that had some get no new pool."""
    if _here.workers:
        _here.home, _here.lost = frozenset(), True


os.register_at_fork(after_in_child=_after_fork)
