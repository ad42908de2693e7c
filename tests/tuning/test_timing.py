"""Whole calls of the tuned model are timed, and those of the original in eager PyTorch beside them."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.models import Counter
from torch import nn

import felixlike as fx
from felixlike._util.child_process import environment
from felixlike.errors import InvalidOption
from felixlike.hardware import resolve_target
from felixlike.measure.sides.processes import Side, SideFailed
from felixlike.tuning import timing
from felixlike.tuning.config import RunConfig

SCRIPT = """
import torch
import felixlike as fx
from felixlike.tuning import timing

timing._SECONDS_A_SIDE = 0.1

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(64, 64)

    def forward(self, x, *, scale):
        return {"y": torch.relu(self.fc(x)) * scale["s"]}

print("main module")
inputs = {"x": torch.ones(8, 64), "scale": {"s": torch.ones(64)}}
fast = fx.optimize(Net().eval(), inputs, trials=0, progress=False, compare=True, threads=1)
print(fast.report)
print(fast.report.eager, fast.report.eager_low, fast.report.speedup, fast.report.latency_high)
"""
"""A script whose model's class is in the main module, which has no guard against being run again."""


def test_eager_pytorch_is_timed_beside_the_tuned_model(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path, env=environment(), check=True
    )
    assert done.stdout.count("main module") == 1
    assert "x the speed of eager PyTorch" in done.stdout
    assert all(float(number) > 0 for number in done.stdout.splitlines()[-1].split())


def test_calls_are_timed_without_a_comparison() -> None:
    tuned = fx.optimize(nn.Linear(8, 8).eval(), (2, 8), trials=0, progress=False)
    report = tuned.report
    assert 0 < report.latency_low <= report.latency <= report.latency_high
    assert math.isnan(report.eager)
    assert "A call of the tuned model takes" in str(report)
    assert "timing" in report.spent


def test_models_that_change_are_not_timed() -> None:
    tuned = fx.optimize(Counter().eval(), (4,), trials=0, progress=False, compare=True)
    assert math.isnan(tuned.report.latency)
    assert "The model was not timed, since calls change its inputs or buffers." in tuned.report.note
    assert float(tuned.state["count"]) == 0


def test_failures_of_timing_leave_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(timing, "_alone", fails)
    with pytest.warns(fx.errors.FallbackWarning, match="timing the model failed: no space left"):
        tuned = fx.optimize(nn.Linear(8, 8).eval(), (2, 8), trials=0, progress=False)
    assert math.isnan(tuned.report.latency)


def test_what_cannot_be_sent_is_named() -> None:
    unsendable: Any = partial(partial, id, threading.Lock())
    with Side() as side, pytest.raises(SideFailed, match="cannot be sent to another process"):
        side.load(unsendable)


@pytest.mark.parametrize(
    ("model", "shapes", "options", "words"),
    [
        ("model.onnx", None, {}, "no original in PyTorch"),
        (nn.Linear(8, 8), (fx.Dim("n", range(1, 9)), 8), {}, "dynamic sizes"),
        (nn.Linear(8, 8), (2, 8), {"compare": 1}, "compare"),
    ],
)
def test_comparisons_that_are_impossible_are_refused(
    model: Any, shapes: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidOption, match=words) as raised:
        fx.optimize(model, shapes, trials=0, progress=False, **{"compare": True, **options})
    assert raised.value.where == "compare"


def test_models_for_a_gpu_are_not_compared() -> None:
    with pytest.raises(InvalidOption, match="on the CPU only"):
        timing.require_eager(nn.Linear(8, 8), RunConfig(resolve_target("sm_80"), "a GPU", compare=True))
