"""Tests for models with rounded products, from import to machine code and report, without a GPU."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from felixlike.codegen import nvrtc
from felixlike.codegen.cuda import cuda_source
from felixlike.errors import InvalidArtefact
from felixlike.frontend import import_model
from felixlike.hardware import check_precision, precision_of, resolve_target, with_precision
from felixlike.runtime import artefact_description
from felixlike.runtime.compile_model import lowered_model
from felixlike.search import Candidate
from felixlike.symbolic import Sketch, sketches
from felixlike.tuning import Choice, How
from felixlike.tuning.history import History
from felixlike.tuning.reporting import task_report
from felixlike.tuning.verifying import product_error

TF32_TARGET = with_precision(resolve_target("sm_90"), "tf32")


@pytest.fixture(scope="module")
def imported() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).eval()
    return import_model(model, (torch.randn(32, 64),), TF32_TARGET)


def _by_precision(task: Any) -> dict[str, Sketch]:
    return {sketch.precision: sketch for sketch in sketches(task, space="own")}


def test_every_task_has_the_models_precision(imported: Any) -> None:
    assert precision_of(imported.target).name == "tf32"
    for task in imported.tasks:
        assert precision_of(task.target).name == "tf32"
        assert set(_by_precision(task)) == {"float32", "tf32"}


@pytest.mark.skipif(nvrtc.library() is None, reason='NVRTC is not on this machine: pip install "felixlike[cuda]"')
def test_tensor_core_instructions_are_generated(imported: Any) -> None:
    """Only the kernel of the tf32 schedule has tensor-core instructions, the float32 one does not."""
    first, second = imported.tasks
    schedules = {}
    for task, precision in ((first, "tf32"), (second, "float32")):
        sketch = _by_precision(task)[precision]
        schedules[task.key] = sketch.schedule(sketch.sample(1, seed=0).tolist()[0])
    _, executable = lowered_model(imported, schedules)
    kernels = [k for k in cuda_source(executable).split('extern "C"') if "{" in k]
    assert ["felixlike_mma_tf32" in kernel for kernel in kernels if "kernel" in kernel].count(True) == 1


def test_the_precision_is_read_from_a_saved_description(imported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the description is read, because the code needs a GPU."""
    monkeypatch.setattr(artefact_description, "device_name", lambda target: "a GPU")
    assert precision_of(artefact_description._target({"target": str(imported.target)}, "model.flx")).name == "tf32"
    wrong = str(imported.target).replace("tf32", "tf23")
    with pytest.raises(InvalidArtefact, match=r"feature\.precision|tf23"):
        artefact_description._target({"target": wrong}, "model.flx")


def _choice(sketch: Sketch | None) -> Choice:
    if sketch is None:
        return Choice(How.UNTUNED, None, math.nan, None)
    return Choice(How.MEASURED, Candidate(sketch, tuple(sketch.sample(1, seed=0)[0].tolist()), 0.0, "random"), 1.0, 0.0)


def test_the_report_and_tolerance_follow_the_chosen_precision(imported: Any) -> None:
    """A task's report names tf32 and the model's tolerance includes it only if a tf32 sketch is chosen."""
    task = imported.tasks[0]
    by_precision = _by_precision(task)
    state: Any = SimpleNamespace(
        task=task,
        kept=None,
        space=SimpleNamespace(sketches=()),
        sampled={},
        trials=0,
        failures={},
        recalled=0,
        recalled_failures=0,
        faults=[],
        history=History(),
    )
    for name, allowed in (("tf32", check_precision("tf32").model_tolerance), ("float32", 0.0), ("", 0.0)):
        choice = _choice(by_precision.get(name))
        assert task_report(state, choice).precision == (name or "float32")
        assert product_error(imported.target, [choice, _choice(None)]) == allowed
