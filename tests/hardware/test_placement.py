"""Threads of one call are on different cores, whatever is set; each setting in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from felixlike.hardware.placement import Share, apart, shares, within
from felixlike.hardware.probe import usable_cores, usable_processors

CORES = usable_processors()
FIRSTS = sorted(min(core) for core in CORES)
PLACES = ",".join(f"{{{processor}}}" for processor in FIRSTS)
FOUR = [frozenset({0, 4}), frozenset({1, 5}), frozenset({2, 6}), frozenset({3, 7})]

several = pytest.mark.skipif(usable_cores() < 2, reason="one core is all there is")

SETTLED = """
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


def settled(environment: dict[str, str], *, first: str = "sys.modules['torch'] = None") -> Any:
    """What a process finds that has these variables and no others of threads."""
    others = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "TVM_", "GOMP_"))}
    found = subprocess.run(
        [sys.executable, "-c", SETTLED.format(first=first)],
        env={**others, **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return json.loads(found.stdout)


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
def test_every_thread_has_a_core_while_there_are_any(first: int, count: int, expected: list[frozenset[int]]) -> None:
    assert shares(FOUR, first, count) == expected


def test_a_caller_that_was_given_enough_cores_keeps_its_threads_there() -> None:
    assert within(FOUR, frozenset({1, 2, 6}), 2) == [frozenset({1}), frozenset({2, 6})]
    assert within(FOUR, frozenset({1, 2, 6}), 3) == FOUR
    assert within(FOUR, frozenset({9}), 1) == FOUR


def test_apart() -> None:
    here, *others = [Share(number, core) for number, core in enumerate(CORES)]
    assert apart([here, *others])
    assert not apart([here, here])
    assert apart([Share(1, frozenset({1000})), Share(2, frozenset({1001}))])
    assert not apart([Share(1, frozenset({1000})), Share(2, frozenset({1000}))])


@several
@pytest.mark.parametrize(
    "environment",
    [
        {"TVM_BIND_THREADS": "0", "OMP_NUM_THREADS": "2,1"},
        {"TVM_BIND_THREADS": "1", "TVM_NUM_THREADS": "none"},
    ],
    ids=str,
)
def test_threads_are_apart(environment: dict[str, str]) -> None:
    found = settled(environment)
    expected = 2 if any(value.startswith("2") for value in environment.values()) else usable_cores()
    assert found["threads"] == expected
    assert (found["apart"], found["unchanged"]) == (True, True), found


@several
@pytest.mark.parametrize(
    ("first", "places"), [("import torch", {"OMP_PLACES": PLACES}), ("import felixlike, torch", {})]
)
def test_threads_are_apart_where_openmp_binds_the_caller(first: str, places: dict[str, str]) -> None:
    found = settled({"OMP_PROC_BIND": "true", **places}, first=f"{first}; torch.ones(300, 300) @ torch.ones(300, 300)")
    assert found["threads"] == usable_cores()
    assert (found["apart"], found["unchanged"]) == (True, True), found


@several
def test_fewer_and_more_threads_than_cores() -> None:
    one = settled({"TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "2"})
    assert (one["threads"], one["unchanged"]) == (1, True)
    many = settled({"TVM_NUM_THREADS": str(usable_cores() + 1)})
    assert (many["threads"], many["apart"], many["unchanged"]) == (usable_cores() + 1, False, True)
    used = set().union(*many["placed"][1:])
    assert used >= set().union(*CORES) - set(many["placed"][0]) - set().union(*[c for c in CORES if c & used])


@several
def test_a_process_that_may_use_one_core_has_one_thread() -> None:
    found = settled({}, first=f"sys.modules['torch'] = None; os.sched_setaffinity(0, [{FIRSTS[-1]}])")
    assert found["threads"] == 1
    assert found["placed"] == [[FIRSTS[-1]]]
    assert found["unchanged"]


@several
def test_workers_give_way_to_the_caller() -> None:
    """Wherever the caller is put, its workers are elsewhere; it stays free."""
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
