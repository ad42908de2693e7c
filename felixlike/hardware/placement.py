"""Where the threads of one call of compiled code run: on different physical cores while there are any.

In: the cores this process may use, and how many threads the environment asks for. Out: TVM's pool of the calling
thread, its workers bound to cores that the caller is not on.

TVM keeps a pool of workers for every thread that calls (src/runtime/thread_pool.cc) and binds the first worker to the
second processor, and so on, whatever the process may use and wherever its caller is, which it leaves free, to be put
beside a worker now and then. Here workers give way: the caller's thread is never bound; where the system has moved it
onto a worker's core, that worker takes the core it came from.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from felixlike import _tvm
from felixlike.errors import ForkedProcess
from felixlike.hardware.probe import usable_cores, usable_processors

VARIABLES = ("TVM_NUM_THREADS", "OMP_NUM_THREADS")
"""What may say how many threads a call has; the first that holds a number above zero does."""

_ANYWHERE = -1
"""Stands for the processor where the system does not tell."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one thread of a call may run on.  thread: the system's number of it.  processors: logical ones."""

    thread: int
    processors: frozenset[int]


class _Here(threading.local):
    """What belongs to the calling thread.  home: processors that no worker of its pool is bound to, none before the
    pool is there.  asked: for how many threads it was made ready, 0 for `threads()`.  workers: those of its pool.
    lost: whether they stayed behind in the process this one was forked from."""

    home: frozenset[int] = frozenset()
    asked: int = 0
    workers: tuple[Share, ...] = ()
    lost: bool = False


_here = _Here()


def threads() -> int:
    """How many threads a call has: what the environment asks for, else one for each core this process may use."""
    variable = asked_by()
    return usable_cores() if variable is None else _number(os.environ[variable])


def asked_by() -> str | None:
    """The environment variable that says how many threads a call has; None if none does."""
    return next((name for name in VARIABLES if _number(os.environ.get(name, "")) > 0), None)


def shares(cores: Sequence[frozenset[int]], first: int, count: int) -> list[frozenset[int]]:
    """The processors of each of `count` threads, the caller's first: a core each, or every count-th where there are
    more; where there are fewer, several threads share one.

    cores: the processors of each.  first: the core that the caller is on."""
    turned = [*cores[first:], *cores[:first]]
    if count >= len(turned):
        return [turned[i % len(turned)] for i in range(count)]
    return [frozenset[int]().union(*turned[i::count]) for i in range(count)]


def within(cores: Sequence[frozenset[int]], mask: frozenset[int], count: int) -> list[frozenset[int]]:
    """The part of the cores that a caller may run on, where that is a core for each of `count` threads; else all.

    A caller with fewer was bound by itself (OpenMP does so), not its process."""
    own = [core & mask for core in cores if core & mask]
    return own if len(own) >= count else list(cores)


def pin_threads(count: int = 0) -> None:
    """Have the calling thread's pool of so many threads ready, with no worker on the core that the caller is on.

    count: 0 for `threads()`.  A pool never grows: where a thread's first call asked for fewer, those are what there is.
    Called before compiled code is run; costs a fraction of a microsecond while there is nothing to do, and some 100
    after a call that asked for another number.  Changes nothing of the caller.  Raises ForkedProcess."""
    if _processor() not in _here.home or count != _here.asked:
        _resettle(count)


def hold() -> None:
    """Pin the workers, and keep the calling thread off their cores for good.

    For processes of our own, where TVM's loops make calls that do not go through `pin_threads`."""
    pin_threads()
    if sys.platform == "linux":
        _bind(0, _here.home)


@contextmanager
def unbound() -> Iterator[None]:
    """The calling thread may run on all processors of this process inside, and on what it could before afterwards.

    For threads and processes that are started there, which inherit it: OpenMP binds the main thread (OMP_PROC_BIND)."""
    if sys.platform != "linux":
        yield
        return
    before = os.sched_getaffinity(0)
    _bind(0, frozenset().union(*usable_processors()))
    try:
        yield
    finally:
        _bind(0, frozenset(before))


def placed() -> tuple[Share, ...]:
    """The calling thread, on the processor that it is on, and the workers of its pool, each with what it is bound to;
    no processors where the system does not tell."""
    pin_threads(_here.asked)
    numbers = [threading.get_native_id(), *(worker.thread for worker in _here.workers)]
    if sys.platform != "linux":
        return tuple(Share(number, frozenset()) for number in numbers)
    bound = [frozenset([_processor()]), *(frozenset(os.sched_getaffinity(number)) for number in numbers[1:])]
    return tuple(map(Share, numbers, bound))


def apart(places: Sequence[Share]) -> bool:
    """Whether no two threads may be on one physical core."""
    cores = usable_processors()
    home = {processor: number for number, core in enumerate(cores) for processor in core}
    used = [{home.get(processor, -1 - processor) for processor in place.processors} for place in places]
    return sum(map(len, used)) == len(set().union(*used))


def _resettle(count: int) -> None:
    if _here.lost:
        raise ForkedProcess(
            "this process was forked from one in which a compiled model had been called: the threads it runs on "
            "were left behind",
            where=f"process {os.getpid()}",
            remedy='start processes by "spawn" (multiprocessing.get_context("spawn")), or before the first call',
        )
    if not _here.home or count != _here.asked:
        _launch(count)
    else:
        _give_way()


def _launch(asked: int) -> None:
    """Have TVM make the calling thread's pool, or use another number of its workers, and bind them."""
    count, own = asked or threads(), threading.get_native_id()
    most = max(count, threads()) if not _here.home else count  # the first call decides how large a pool is for good
    if sys.platform != "linux":
        _tvm.launch_threads([0] * most)
        _tvm.launch_threads([0] * count)
        _here.home, _here.asked = frozenset([_ANYWHERE]), asked
        return
    cores = within(usable_processors(), frozenset(os.sched_getaffinity(0)), count)
    with unbound():  # while a pool is made, TVM takes what its caller may run on for all there is
        if most > count:
            _tvm.launch_threads([min(core) for core in shares(cores, 0, most)])
        numbers = _tvm.launch_threads([min(core) for core in shares(cores, 0, count)])
    processor = _processor()
    first = next((i for i, core in enumerate(cores) if processor in core), 0)
    home, *others = shares(cores, first, len(numbers))  # TVM keeps a pool that others made, smaller ones too
    workers = [number for number in numbers if number != own]
    _here.workers = tuple(map(Share, workers, others))
    for worker in _here.workers:
        _bind(worker.thread, worker.processors)
    _here.home, _here.asked = home | {processor}, asked


def _give_way() -> None:
    """Exchange the share of the worker whose core the caller is on for the caller's."""
    processor, home = _processor(), _here.home
    place = next((i for i, worker in enumerate(_here.workers) if processor in worker.processors), None)
    if place is None:  # a processor that was not among those of this process
        _here.home = home | {processor}
        return
    worker = _here.workers[place]
    moved = Share(worker.thread, home)
    _bind(moved.thread, moved.processors)
    _here.workers = (*_here.workers[:place], moved, *_here.workers[place + 1 :])
    _here.home = worker.processors


def _bind(thread: int, processors: frozenset[int]) -> None:
    """Let a thread run on these processors only; where that is refused, a container was narrowed meanwhile."""
    with suppress(OSError):
        os.sched_setaffinity(thread, processors)


def _number(text: str) -> int:
    """The number of threads that a variable asks for; 0 where it is none.  OpenMP's may be a list, a level each."""
    first = text.split(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def _ask_processor() -> Callable[[], int]:
    """How to ask which processor the calling thread is on.  Python has no such function before 3.13."""
    try:
        ask = ctypes.PyDLL(None).sched_getcpu  # without the interpreter's lock released: it takes 40 ns
    except (AttributeError, OSError):
        return lambda: _ANYWHERE
    ask.argtypes, ask.restype = (), ctypes.c_int
    return ask


_processor = _ask_processor()


def _before_fork() -> None:
    """A child that ends takes its copy of the pool down, and would wait forever for workers that were asleep."""
    if _here.workers and not _here.lost:
        _tvm.wake_threads()


def _after_fork() -> None:
    """In the child: workers do not survive a fork; only threads that have none can get a pool."""
    if _here.workers:
        _here.home, _here.lost = frozenset(), True


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
