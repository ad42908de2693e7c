"""Check that optimized models change inputs and their own buffers as the original models do."""

import copy
import io
import json
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import felixlike as fx
from felixlike.errors import InputMismatch, InvalidArtefact, SharedInputs, WrongContext
from felixlike.runtime.writing import overlapping

CALLS = 20


class Stateful(nn.Module):
    """Counts its calls, keeps the last four rows in a ring, and adds to an input."""

    calls: Tensor
    ring: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("ring", torch.zeros(4, 8))
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, total: Tensor) -> Any:
        self.calls.add_(1)
        self.ring.copy_(torch.roll(self.ring, 1, 0))
        self.ring[0] = x[0]
        before = total.clone()
        total.add_(x)
        return self.linear(x) + total, {"total": total, "before": before}, 3, self.ring.sum()


class Nothing(nn.Module):
    """Returns nothing."""

    def forward(self, x: Tensor) -> None:
        x.mul_(2)


class Exchange(nn.Module):
    """Exchanges its inputs."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        before = x.clone()
        x.copy_(y)
        y.copy_(before)
        return before


@pytest.fixture(scope="module")
def model() -> Stateful:
    torch.manual_seed(0)
    return Stateful().eval()


@pytest.fixture(scope="module")
def optimized(model: Stateful) -> fx.Optimized:
    return fx.optimize(model, (torch.randn(2, 8), torch.randn(2, 8)), trials=0, progress=False)


def _close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def _same_calls(fast: Any, model: nn.Module, inputs: Sequence[Sequence[Tensor]]) -> None:
    for tensors in inputs:
        copies = [tensor.clone() for tensor in tensors]
        with torch.no_grad():
            _close(fast(*tensors), model(*copies))
        _close(list(tensors), copies)
        _close(fast.state, {name: dict(model.named_buffers())[name] for name in fast.state})


def test_inputs_and_buffers_change_as_in_eager_mode(model: Stateful, optimized: fx.Optimized) -> None:
    fast = copy.deepcopy(optimized)
    assert set(fast.state) == {"calls", "ring"}
    assert fast.state["calls"] == model.calls == 0  # comparing both has changed neither
    _same_calls(fast, copy.deepcopy(model), [(torch.randn(2, 8), torch.randn(2, 8)) for _ in range(CALLS)])
    assert fast.state["calls"] == CALLS
    assert optimized.state["calls"] == 0


def test_inputs_that_must_be_copied_are_changed_too(model: Stateful, optimized: fx.Optimized) -> None:
    total = torch.randn(4, 8)
    _same_calls(copy.deepcopy(optimized), copy.deepcopy(model), [(torch.randn(8, 2).t(), total[::2])])


@pytest.mark.parametrize("way", ["save", "pickle"])
def test_saved_models_keep_their_state(model: Stateful, optimized: fx.Optimized, way: str, tmp_path: Path) -> None:
    fast, original = copy.deepcopy(optimized), copy.deepcopy(model)
    _same_calls(fast, original, [(torch.randn(2, 8), torch.randn(2, 8))])
    if way == "save":
        fast.save(tmp_path / "model.flx")
        loaded = fx.load(tmp_path / "model.flx")
    else:
        loaded = pickle.loads(pickle.dumps(fast))
    assert loaded.state["calls"] == 1
    _same_calls(loaded, original, [(torch.randn(2, 8), torch.randn(2, 8))])
    assert fast.state["calls"] == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda meta: meta["changes"].update(inputs=[7]), "indices of inputs"),
        (lambda meta: meta["changes"].update(inputs=[1, 0]), "ascending"),
        (lambda meta: meta["changes"]["buffers"][1].update(shape=[4, 800]), "needs more bytes"),
        (lambda meta: meta["changes"]["buffers"].pop(), "leaves 128 bytes"),
        (lambda meta: meta.update(changes=3), "not an object"),
    ],
)
def test_edited_descriptions_are_refused(optimized: fx.Optimized, change: Any, words: str, tmp_path: Path) -> None:
    optimized.save(tmp_path / "model.flx")
    with zipfile.ZipFile(tmp_path / "model.flx") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    meta = json.loads(members["meta.json"])
    change(meta)
    edited = io.BytesIO()
    with zipfile.ZipFile(edited, "w", zipfile.ZIP_STORED) as archive:
        for name, content in {**members, "meta.json": json.dumps(meta).encode()}.items():
            archive.writestr(name, content)
    (tmp_path / "edited.flx").write_bytes(edited.getvalue())
    with pytest.raises(InvalidArtefact, match=words):
        fx.load(tmp_path / "edited.flx")


def test_a_model_without_outputs() -> None:
    x = torch.ones(3)
    assert fx.optimize(Nothing(), (x,), trials=0, progress=False)(x) is None
    assert x.tolist() == [2, 2, 2]


def test_exchanged_inputs() -> None:
    fast = fx.optimize(Exchange(), (torch.ones(3), torch.zeros(3)), trials=0, progress=False)
    _same_calls(fast, Exchange(), [(torch.randn(3), torch.randn(3)) for _ in range(2)])


def test_dynamic_sizes() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)
            self.register_buffer("sum", torch.zeros(16))

        def forward(self, x: Tensor) -> Tensor:
            self.get_buffer("sum").add_(x.sum(0))
            x.mul_(2)
            result: Tensor = self.linear(x)
            return result

    model = Sums().eval()
    fast = fx.optimize(model, ((fx.Dim("T", range(1, 33)), 16),), trials=0, progress=False)
    _same_calls(fast, model, [(torch.randn(count, 16),) for count in (1, 5, 32)])


def test_exported_programs() -> None:
    program = torch.export.export(Stateful().eval(), (torch.randn(2, 8), torch.randn(2, 8)))
    fast, module = fx.optimize(program, trials=0, progress=False), program.module()
    _same_calls(fast, module, [(torch.randn(2, 8), torch.randn(2, 8)) for _ in range(3)])


def test_inputs_that_share_memory_are_refused(optimized: fx.Optimized) -> None:
    fast, x, ring = copy.deepcopy(optimized), torch.randn(3, 8), optimized.state["ring"]
    for pair in ((x[:2], x[:2]), (x[:2], x[1:])):
        with pytest.raises(SharedInputs, match="share memory"):
            fast(*pair)
    with pytest.raises(SharedInputs):
        optimized(ring[:2], x[:2])
    assert fast.state["calls"] == optimized.state["calls"] == 0


def test_gradients_and_graphs_are_refused(optimized: fx.Optimized) -> None:
    x = torch.randn(2, 8)
    with pytest.raises(InputMismatch, match="requires a gradient"):
        optimized(x, torch.randn(2, 8, requires_grad=True))
    with pytest.raises(WrongContext, match="in place"):
        torch.vmap(optimized)(x[None], torch.randn(1, 2, 8))


def test_overlap_is_found_by_elements() -> None:
    x = torch.zeros(6, 4)
    assert overlapping([x, x], [0])
    assert overlapping([x[2:], x[:3]], [1])
    assert not overlapping([x[3:], x[:3]], [0, 1])
    assert not overlapping([x, x, torch.zeros(3)], [2])
    assert not overlapping([x[:0], x], [1])


def test_buffers_whose_dimensions_are_permuted_in_memory() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sum", torch.arange(24.0).reshape(3, 8).t())
            self.register_buffer("image", torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))

        def forward(self, x: Tensor) -> Tensor:
            self.get_buffer("image").mul_(0.5)
            self.get_buffer("sum").add_(x)
            return self.get_buffer("sum") * 2 + self.get_buffer("image").sum()

    model = Sums().eval()
    fast = fx.optimize(model, (torch.randn(8, 3),), trials=0, progress=False)
    _same_calls(fast, model, [(torch.randn(8, 3),) for _ in range(3)])
