"""`Spent` counts every second of a run once."""

from __future__ import annotations

import time

import pytest

from felixlike.tuning import Spent


def test_inner_steps_are_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 4.0, 10.0, 10.0, 12.0])
    monkeypatch.setattr(time, "monotonic", clock.__next__)
    spent = Spent()
    with spent.on("outer"), spent.on("inner"):
        pass
    with pytest.raises(ValueError, match="lost"), spent.on("inner"):
        raise ValueError("lost")
    spent.add("before", 3.0)
    assert spent.seconds == {"inner": 5.0, "outer": 7.0, "before": 3.0}
