"""Every postprocessor of every space has a symbolic model; sketches with other postprocessors are only sampled."""

from __future__ import annotations

import pytest
from support.operators import matmul

from felixlike.frontend import Task, make_task
from felixlike.hardware import resolve_target
from felixlike.spaces import Postprocessor, default_space
from felixlike.spaces.design import RULES
from felixlike.symbolic import Sketch, sketches
from felixlike.symbolic.replay.postprocessors import MODELS


def _task(target: str = "cpu") -> Task:
    return make_task(matmul(32, 48, 40), resolve_target(target), name="task")


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_metaschedules_postprocessors_have_models(target: str) -> None:
    names = [postprocessor.name for postprocessor in default_space(_task(target)).postprocessors]
    assert names[0] == "DisallowDynamicLoop"
    assert set(names) <= set(MODELS)
    assert ("VerifyGPUCode" in names) is (target != "cpu")


def test_postprocessors_of_own_rules_have_models() -> None:
    assert {name for rules in RULES.values() for rule in rules for name in rule.postprocessors} <= set(MODELS)


def test_sketches_with_an_unknown_postprocessor_are_not_symbolic() -> None:
    original = sketches(_task(), space="default")[0]
    unknown = Postprocessor("RewriteTensorize", original.postprocessors[0].runner)
    sketch = Sketch(_task(), original.trace, (*original.postprocessors, unknown), 0)
    assert not sketch.is_symbolic
    assert sketch.reason.startswith("postprocessors: ")
    assert "RewriteTensorize" in sketch.reason
    assert sketch.sample(2, 0).shape == (2, len(original.variables))
