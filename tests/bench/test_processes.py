"""Each side of a benchmark is loaded, timed and stopped in a separate process."""

from __future__ import annotations

import os
import re
import time
from array import array
from functools import partial
from pathlib import Path

import pytest

from felixlike.measure.sides.processes import Side, SideFailed, Sides
from felixlike.measure.sides.timing import interleaved, summary


def _state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_side_is_stopped_outside_its_turns() -> None:
    before = dict(os.environ)
    with Side() as side:
        side.load(partial(partial, time.sleep, 1e-3))
        assert len(side.times(0)) == 0
        times = side.times(3)
        assert len(times) == 3
        assert min(times) >= 1e-3
        deadline = time.monotonic() + 10
        while _state(side._number) != "T" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert _state(side._number) == "T"
        with pytest.raises(SideFailed, match=r"FileNotFoundError: .*nowhere"):
            side.load(partial(open, "/nowhere"))  # type: ignore[arg-type]
        side.load(partial(partial, time.sleep, 0))  # the process continues after the error
        with pytest.raises(SideFailed, match=r"^its process"):
            side.load(partial(os._exit, 1))
    assert side._process.poll() is not None
    assert dict(os.environ) == before


def test_failing_sides_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    makers = {"good": partial(partial, time.sleep, 0), "bad": partial(open, "/nowhere")}
    with Sides() as sides:
        timings = sides.compare(makers, seconds_a_side=0.01, slot=0.001)  # type: ignore[arg-type]
        assert list(timings) == ["good"]
    assert re.search("bad .*FileNotFoundError", capsys.readouterr().out)


def test_interleaved_sides_take_turns() -> None:
    turns: list[str] = []

    def timed(name: str, seconds: float) -> array[float]:
        turns.append(name)
        return array("d", [seconds])

    timings = interleaved(
        {"a": lambda calls: timed("a", 1.0) * calls, "b": lambda calls: timed("b", 0.1) * calls}, slot=1.0
    )
    assert turns == ["a", "a", "b", "b", *("a", "b") * 3]
    assert (timings["a"].seconds, timings["a"].calls) == (1.0, 3)
    assert timings["b"].mean == pytest.approx(0.1)
    assert timings["b"].calls == 30


def test_summary_has_median_mean_and_bounds() -> None:
    timed = summary(array("d", [1.0, 2.0, 3.0, 10.0]))
    assert (timed.seconds, timed.mean, timed.calls) == (2.5, 4.0, 4)
    assert timed.low < 2.5 < timed.high
    assert summary(array("d", [1.0])).seconds == 1.0
