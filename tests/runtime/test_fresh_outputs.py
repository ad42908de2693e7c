"""Outputs share memory with inputs and with each other only where they do so in PyTorch, and never with constants."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import Apply
from torch import Tensor, nn

import felixlike as fx
from felixlike import _tvm
from felixlike.frontend import import_model
from felixlike.runtime import compile_model, from_bytes, to_bytes


class Sharing(nn.Module):
    """Returns views, copies of all kinds, and constants."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = x.reshape(2, 2) + 1
        first, second = (part.clone() for part in y.chunk(2))
        return {
            "input": x,
            "view": x.view(2, 2),
            "clone": x.clone(),
            "unchanged": x * 1,
            "joined": torch.cat([x]),
            "copied": y.to(torch.float32, copy=True),
            "expanded": y.expand(4).clone(),
            "first": first,
            "second": second,
            "computed": torch.relu(y),
            "computed again": torch.relu(y),
            "sum": z,
            "view of the sum": z.view(4),
            "copy of the sum": z.reshape(4).clone(),
            "folded": self.weight * 2,
            "copy of a buffer": self.table.clone(),
            "equal to the buffer": torch.arange(4.0),
            "zeros": torch.zeros(4),
            "zeros again": torch.zeros(4),
            "zero": torch.zeros(()),
        }


def _shared(outputs: Mapping[str, Tensor], *inputs: Tensor) -> set[tuple[str, str]]:
    """Return the pairs of outputs and inputs that share memory."""
    tensors = {**outputs, **{f"input {place}": tensor for place, tensor in enumerate(inputs)}}
    places = {name: tensor.untyped_storage().data_ptr() for name, tensor in tensors.items()}
    return {(one, other) for one, other in combinations(places, 2) if places[one] == places[other]}


def _assert_as_in_pytorch(call: Any, model: nn.Module) -> None:
    for _ in range(2):  # the second call shows what writing to the outputs of the first one has changed
        x, y = torch.randn(4), torch.randn(4)
        with torch.no_grad():
            got, want = call(x, y), model(x, y)
            torch.testing.assert_close(got, want)
            assert _shared(got, x, y) == _shared(want, x, y)
            for output in got.values():
                output.fill_(7.0)


def test_outputs_share_memory_as_in_pytorch() -> None:
    model = Sharing()
    compiled = compile_model(import_model(model, (torch.randn(4), torch.randn(4))))
    again, _ = from_bytes(to_bytes(compiled, report={}))
    for call in (compiled, again):
        _assert_as_in_pytorch(call, model)


def test_outputs_of_exported_programs(tmp_path: Path) -> None:
    """A program that was read from a file has the same outputs, though its examples share no memory."""
    model, file = Sharing(), tmp_path / "sharing.pt2"
    torch.export.save(torch.export.export(model, (torch.randn(4), torch.randn(4))), file)
    _assert_as_in_pytorch(compile_model(import_model(file)), model)


def test_outputs_of_branches() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Any:
            branches: Any = torch.cond(x.sum() > 0, lambda x: (x.clone(), x * 2), lambda x: (-x, x.clone()), (x,))
            return branches

    compiled = compile_model(import_model(Branches(), torch.ones(4)))
    for x in (torch.ones(4), -torch.ones(4)):
        outputs = dict(zip("ab", compiled(x), strict=True))
        torch.testing.assert_close(tuple(outputs.values()), Branches()(x))
        assert not _shared(outputs, x)


def test_an_input_that_changes_and_its_copy() -> None:
    class Changes(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Any:
            before, same = x.clone(), y.clone()
            x.add_(y)
            return before, x * 2, same

    compiled = compile_model(import_model(Changes(), (torch.randn(4), torch.randn(4))))
    x, y = torch.randn(4), torch.randn(4)
    first, kept = x.clone(), y.clone()
    before, double, same = compiled(x, y)
    y.zero_()
    torch.testing.assert_close((before, double, same, x), (first, 2 * (first + kept), kept, first + kept))


def test_outputs_of_dynamic_sizes() -> None:
    model = Apply(lambda x: (x.clone(), torch.relu(x), torch.relu(x), x.view(-1)))
    fast = fx.optimize(model, ((fx.Dim("T", range(1, 9)), 4),), trials=0, progress=False)
    for size in (3, 8):
        x = torch.randn(size, 4)
        outputs = dict(zip("abcd", fast(x), strict=True))
        torch.testing.assert_close(tuple(outputs.values()), model(x))
        assert _shared(outputs, x) == {("d", "input 0")}


def test_nested_outputs_of_a_relax_function() -> None:
    builder, kind = _tvm.relax.BlockBuilder(), _tvm.relax.TensorType((3, 4), "float32")
    x = _tvm.relax.Var("x", kind)
    with builder.function("main", [x]):
        y = builder.emit(_tvm.relax.op.nn.relu(x))
        builder.emit_func_output(_tvm.relax.Tuple([y, _tvm.relax.Tuple([x, y])]))
    compiled = compile_model(import_model(builder.get()))
    tensor = torch.randn(3, 4)
    first, (second, third) = compiled(tensor)
    torch.testing.assert_close((first, second, third), (tensor.relu(), tensor, tensor.relu()))
    assert not _shared({"first": first, "second": second, "third": third}, tensor)


@pytest.mark.parametrize("dynamic", [False, True])
def test_outputs_of_torch_compile(dynamic: bool, tmp_path: Path) -> None:
    torch._dynamo.reset()
    options: dict[str, Any] = {"seconds": 0, "store": str(tmp_path / "store.sqlite")}
    model = Apply(lambda x: (x.clone(), torch.relu(x), torch.relu(x).clone(), x[0]))
    compiled = torch.compile(model, backend="felixlike", options=options, dynamic=dynamic)
    with torch.no_grad():
        x = torch.randn(6, 4)
        outputs = dict(zip("abcd", compiled(x), strict=True))
        torch.testing.assert_close(tuple(outputs.values()), model(x))
        assert _shared(outputs, x) == {("d", "input 0")}
    torch._dynamo.reset()
