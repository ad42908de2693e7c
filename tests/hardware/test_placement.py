"""Threads of one call run on different cores under every setting; each setting is tested in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from felixlike.cli import doctor
from felixlike.errors import InvalidOption
from felixlike.hardware.placement import Share, apart, concurrently, shares, threads, within
from felixlike.hardware.probe import usable_cores, usable_processors

CORES = usable_processors()
FIRSTS = sorted(min(core) for core in CORES)
PLACES = ",".join(f"{{{processor}}}" for processor in FIRSTS)
FOUR = [frozenset({0, 4}), frozenset({1, 5}), frozenset({2, 6}), frozenset({3, 7})]

needs_two_cores = pytest.mark.skipif(usable_cores() < 2, reason="one core is all there is")

PLACEMENT_PROGRAM = """
import json, os, sys
before = dict(os.environ)
{first}
from felixlike.hardware import placement
mask = os.sched_getaffinity(0)
placement.pin_threads()
found = placement.placed()
print(json.dumps({{
    "threads": len(found),
    "placed": [sorted(share.processors) for share in found],
    "apart": placement.apart(found),
    "unchanged": mask == os.sched_getaffinity(0) and before == dict(os.environ),
}}))
"""


def run_placement(environment: dict[str, str], *, first: str = "sys.modules['torch'] = None") -> Any:
    """Run `PLACEMENT_PROGRAM` with these variables and no other thread variables, and return its result."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "TVM_", "GOMP_"))}
    process = subprocess.run(
        [sys.executable, "-c", PLACEMENT_PROGRAM.format(first=first)],
        env={**inherited, **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return json.loads(process.stdout)


@pytest.mark.parametrize(
    ("first", "count", "expected"),
    [
        (0, 4, FOUR),
        (2, 4, [*FOUR[2:], *FOUR[:2]]),
        (1, 1, [frozenset(range(8))]),
        (1, 2, [FOUR[1] | FOUR[3], FOUR[2] | FOUR[0]]),
        (0, 3, [FOUR[0] | FOUR[3], FOUR[1], FOUR[2]]),
        (3, 5, [FOUR[3], *FOUR[:3], FOUR[3]]),
    ],
)
def test_shares_assign_cores_to_threads_in_order(first: int, count: int, expected: list[frozenset[int]]) -> None:
    assert shares(FOUR, first, count) == expected


def test_threads_stay_within_the_callers_cores_if_there_are_enough() -> None:
    assert within(FOUR, frozenset({1, 2, 6}), 2) == [frozenset({1}), frozenset({2, 6})]
    assert within(FOUR, frozenset({1, 2, 6}), 3) == FOUR
    assert within(FOUR, frozenset({9}), 1) == FOUR


def test_apart_detects_shared_cores() -> None:
    first, *others = [Share(number, core) for number, core in enumerate(CORES)]
    assert apart([first, *others])
    assert not apart([first, first])
    assert apart([Share(1, frozenset({1000})), Share(2, frozenset({1001}))])
    assert not apart([Share(1, frozenset({1000})), Share(2, frozenset({1000}))])


@needs_two_cores
@pytest.mark.parametrize(
    "environment",
    [
        {"TVM_BIND_THREADS": "0", "OMP_NUM_THREADS": "2,1"},
        {"TVM_BIND_THREADS": "1", "TVM_NUM_THREADS": "none"},
    ],
    ids=str,
)
def test_threads_run_on_different_cores(environment: dict[str, str]) -> None:
    result = run_placement(environment)
    expected = 2 if any(value.startswith("2") for value in environment.values()) else usable_cores()
    assert result["threads"] == expected
    assert (result["apart"], result["unchanged"]) == (True, True), result


@needs_two_cores
@pytest.mark.parametrize(
    ("first", "places"), [("import torch", {"OMP_PLACES": PLACES}), ("import felixlike, torch", {})]
)
def test_threads_run_on_different_cores_if_openmp_binds_the_caller(first: str, places: dict[str, str]) -> None:
    result = run_placement(
        {"OMP_PROC_BIND": "true", **places}, first=f"{first}; torch.ones(300, 300) @ torch.ones(300, 300)"
    )
    assert result["threads"] == usable_cores()
    assert (result["apart"], result["unchanged"]) == (True, True), result


@needs_two_cores
def test_thread_counts_below_and_above_the_number_of_cores() -> None:
    single = run_placement({"TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "2"})
    assert (single["threads"], single["unchanged"]) == (1, True)
    many = run_placement({"TVM_NUM_THREADS": str(usable_cores() + 1)})
    assert (many["threads"], many["apart"], many["unchanged"]) == (usable_cores() + 1, False, True)
    used = set().union(*many["placed"][1:])
    assert used >= set().union(*CORES) - set(many["placed"][0]) - set().union(*[c for c in CORES if c & used])


@pytest.mark.parametrize("count", ["1025", "9" * 5000])
def test_a_huge_number_of_threads_is_refused(monkeypatch: pytest.MonkeyPatch, count: str) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "1024")
    assert threads() == 1024
    monkeypatch.setenv("TVM_NUM_THREADS", count)
    with pytest.raises(InvalidOption, match=r"^TVM_NUM_THREADS: expected at most 1024 threads, got '"):
        threads()
    assert doctor._threads().problem.startswith("TVM_NUM_THREADS: ")


@needs_two_cores
def test_a_process_limited_to_one_core_has_one_thread() -> None:
    result = run_placement({}, first=f"sys.modules['torch'] = None; os.sched_setaffinity(0, [{FIRSTS[-1]}])")
    assert result["threads"] == 1
    assert result["placed"] == [[FIRSTS[-1]]]
    assert result["unchanged"]


@needs_two_cores
def test_workers_avoid_the_callers_core() -> None:
    """Workers are placed on other cores than the caller, and the caller's affinity is unchanged."""
    program = f"""
import os, sys
sys.modules["torch"] = None
from felixlike.hardware import placement
mask = os.sched_getaffinity(0)
for processor in {FIRSTS} * 2:
    os.sched_setaffinity(0, [processor])
    placement.pin_threads()
    caller, *workers = placement.placed()
    assert caller.processors == {{processor}}, (processor, caller)
    assert placement.apart([caller, *workers]), (caller, workers)
    assert os.sched_getaffinity(0) == {{processor}}
os.sched_setaffinity(0, mask)
placement.hold()
caller, *workers = placement.placed()
assert os.sched_getaffinity(0) == mask.difference(*(worker.processors for worker in workers))
with placement.unbound():
    assert os.sched_getaffinity(0) == mask
assert os.sched_getaffinity(0) < mask
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_concurrent_results_are_in_order() -> None:
    """Errors are raised as they are, and the caller's affinity is unchanged."""
    mask = os.sched_getaffinity(0)
    assert concurrently(abs, []) == []
    assert concurrently(abs, [-1]) == [1]
    assert concurrently(abs, list(range(-20, 20))) == [*range(20, 0, -1), *range(20)]
    with pytest.raises(ZeroDivisionError):
        concurrently(lambda number: 1 // number, [2, 1, 0])
    assert os.sched_getaffinity(0) == mask


@needs_two_cores
def test_concurrent_work_uses_all_cores_of_a_bound_thread() -> None:
    """OpenMP binds the main thread to one of them."""
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [FIRSTS[0]])
    try:
        masks = concurrently(lambda _: os.sched_getaffinity(0), [0, 1])
    finally:
        os.sched_setaffinity(0, mask)
    assert masks == [frozenset().union(*CORES)] * 2
