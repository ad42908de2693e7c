"""A candidate's process pins its threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import pytest
from support.faulty import matmul, task_of, tiled

from felixlike.hardware.placement import Share, apart, unbound
from felixlike.hardware.probe import usable_cores, usable_processors
from felixlike.measure import Status
from felixlike.measure.local.builder import Builder

pytestmark = pytest.mark.skipif(usable_cores() < 2, reason="one core is all there is")

TASK = task_of(matmul(), "matmul")


@pytest.fixture
def bound() -> Iterator[None]:
    """The thread that opens a pool is bound to a processor, as OpenMP binds the main thread."""
    with unbound():
        os.sched_setaffinity(0, [min(usable_processors()[-1])])
        yield


@pytest.mark.usefixtures("bound")
def test_threads_of_a_candidate_run_on_different_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    builder = Builder(TASK.target)
    with closing(builder.processes) as processes:
        with builder.reference_for(TASK, verify=False) as reference_data:
            trial = builder.build(0, tiled().module(), reference_data.bytes)
            assert trial.wait(60)["status"] is Status.OK
            request = reference_data.request(base=1e-3, timing=builder.limits.timing, best=None)
            assert trial.run(request, 60)["status"] is Status.OK
        threads = [int(thread) for thread in os.listdir(f"/proc/{trial._process}/task")]
        shares = [Share(thread, frozenset(os.sched_getaffinity(thread))) for thread in threads]
        processes.end(trial)
    assert len(shares) == 2
    assert apart(shares), shares
    assert frozenset().union(*(share.processors for share in shares)) == frozenset().union(*usable_processors())
