"""The virtual machine drops the outputs of a call before it allocates those of the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from support.models import Apply

import felixlike as fx
from felixlike.frontend import import_model
from felixlike.runtime import compile_model

_LARGE = 2**16


def places(model: Any, x: torch.Tensor) -> set[int]:
    """Return the addresses of the outputs of some calls, each of which is dropped before the next call."""
    return {model(x).data_ptr() for _ in range(4)}


def test_a_dropped_output_is_written_again(tmp_path: Path) -> None:
    x = torch.randn(_LARGE)
    fast = fx.optimize(Apply(torch.relu), (x,), trials=0, progress=False)
    fast.save(tmp_path / "model.flx")
    for model in (fast, fx.load(tmp_path / "model.flx")):
        assert len(places(model, x)) == 1


def test_a_dropped_output_of_dynamic_sizes_is_written_again() -> None:
    fast = fx.optimize(Apply(torch.relu), ((fx.Dim("N", range(2, 33)), 64),), trials=0, progress=False)
    x = torch.randn(32, 64)
    assert len(places(fast, x)) == 1
    assert torch.equal(fast(x), x.relu())


def test_outputs_that_are_kept_are_not_written_again() -> None:
    x = torch.randn(2, _LARGE)
    fast = compile_model(import_model(Apply(lambda x: (x.relu(), x + 1)), (x,)))
    first, second = fast(x), fast(-x)
    for outputs, y in ((first, x), (second, -x)):
        assert torch.equal(outputs[0], y.relu())
        assert torch.equal(outputs[1], y + 1)


def test_small_outputs_are_left_as_they_are() -> None:
    for size, names in ((_LARGE, {"main", "nothing"}), (_LARGE - 1, {"main"})):
        compiled = compile_model(import_model(Apply(torch.relu), (torch.randn(size),)))
        functions = {variable.name_hint for variable in compiled.lowered.get_global_vars()}
        assert functions - {"relu"} == names
