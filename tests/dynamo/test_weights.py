"""Tests for the weight guard: changes that PyTorch counts, changes that it does not, and delayed detection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from felixlike.dynamo import weights
from felixlike.dynamo.weights import WeightGuard, unused


def _weight(*shape: int) -> Tensor:
    return nn.Parameter(torch.randn(*(shape or (16, 16))), requires_grad=False)


def _scaled_through_data(tensor: Tensor) -> None:
    tensor.data.mul_(2)


def _exchanged(tensor: Tensor) -> None:
    tensor.data = torch.ones_like(tensor)


def _freed(tensor: Tensor) -> None:
    tensor.untyped_storage().resize_(0)


def _counted(tensor: Tensor) -> None:
    tensor[3, 3] = 1.5


@pytest.mark.parametrize("change", [_scaled_through_data, _exchanged, _freed, _counted])
def test_changes_are_detected_by_the_next_call(change: Callable[[Tensor], None]) -> None:
    first, second = _weight(), _weight()
    guard = WeightGuard([(0, first), (2, second)])
    assert guard.are_in([first, None, second])
    assert guard.hold()
    change(second)
    assert not guard.hold()
    assert not guard.hold()  # a detected change invalidates the guard permanently


def test_another_tensor_with_equal_values_is_another_weight() -> None:
    weight = _weight()
    guard = WeightGuard([(0, weight)])
    assert not guard.are_in([weight.clone()])
    assert guard.are_in([weight])


def test_tensors_that_only_guards_refer_to_are_unused() -> None:
    kept, dropped = _weight(), _weight()
    guards = [WeightGuard([(0, kept)]), WeightGuard([(0, kept), (1, dropped)]), WeightGuard([(0, dropped)])]
    assert unused(guards) == []
    del dropped
    assert unused(guards) == guards[1:]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.bool])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 65])
def test_changes_are_detected_for_all_dtypes_and_sizes(dtype: torch.dtype, size: int) -> None:
    weight = torch.ones(size).to(dtype)
    guard = WeightGuard([(0, weight)])
    assert all(guard.hold() for _ in range(9))
    weight.data.zero_()
    assert not guard.hold()


def test_tensors_of_inference_mode_are_compared_by_content() -> None:
    with torch.inference_mode():
        weight = torch.randn(8, 8)
        guard = WeightGuard([(0, weight)])
        assert guard.hold()
        weight.add_(1)
        assert not guard.hold()


def test_changes_of_one_element_are_detected_within_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "WATCHING", replace(weights.WATCHING, share=1e9))  # a checksum at every call
    weight = _weight(512, 1024)  # eight chunks
    guard = WeightGuard([(0, weight)])
    assert all(guard.hold() for _ in range(20))
    weight.data[300, 5] += 1
    assert not all(guard.hold() for _ in range(8))


def test_contents_are_not_read_without_by_content() -> None:
    weight = _weight()
    guard = WeightGuard([(0, weight)], by_content=False)
    weight.data.mul_(2)
    assert guard.hold()
    weight.mul_(2)
    assert not guard.hold()


def test_checksums_take_one_percent_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, spent, sums = [0.0], [0.0], [0]

    def checksum(memory: object) -> int:
        spent[0] += 0.002
        clock[0] += 0.002
        sums[0] += 1
        return 0

    monkeypatch.setattr("felixlike.dynamo.weights.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("felixlike.dynamo.weights.time.thread_time", lambda: spent[0])
    monkeypatch.setattr("felixlike.dynamo.weights.zlib.crc32", checksum)
    guard = WeightGuard([(0, _weight(512, 1024))])
    sums[0] = 0
    for _ in range(1000):
        clock[0] += 0.01
        assert guard.hold()
    assert 40 <= sums[0] <= 50
