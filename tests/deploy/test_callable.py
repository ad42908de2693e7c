"""A compiled model is called like the model it came from, and checks what it is given."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from benchmarks.models import Apply, mlp
from felixlike.deploy import Compiled, compile_model
from felixlike.errors import InputMismatch
from felixlike.frontend import import_model


class Scale(nn.Module):
    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return x * by + 1


@pytest.fixture(scope="module")
def scale() -> Compiled:
    return compile_model(import_model(Scale(), ((4, 20), (20,))))


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 20), torch.randn(20)


def test_by_position_and_by_name(scale: Compiled) -> None:
    x, by = inputs()
    expected = x * by + 1
    for got in (scale(x, by), scale(x, by=by), scale(by=by, x=x)):
        torch.testing.assert_close(got, expected)


def test_text(scale: Compiled) -> None:
    assert repr(scale) == "<compiled Scale(x: float32[4, 20], by: float32[20])>"


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"Scale: 0 inputs are given, 2 needed. it takes x: float32\[4, 20\], by: float32\[20\]"),
        ((torch.ones(4, 20),) * 3, {}, "3 inputs are given, 2 needed"),
        ((torch.ones(4, 20),), {}, "1 inputs are given, 2 needed"),
        ((torch.ones(4, 20),), {"z": torch.ones(20)}, "there is no input 'z'. it takes x"),
        ((torch.ones(4, 20),), {"x": torch.ones(4, 20)}, "input 'x' is given twice"),
        ((), {"x": torch.ones(4, 20)}, "input 'by' is missing"),
        ((torch.ones(4, 21), torch.ones(20)), {}, r"input 'x' has shape \(4, 21\), compiled for \(4, 20\)"),
        ((torch.ones(4, 20), torch.ones(1, 20)), {}, r"input 'by' has shape \(1, 20\)"),
        ((torch.ones(4, 20).double(), torch.ones(20)), {}, "is torch.float64, compiled for torch.float32. convert it"),
        (([1.0], torch.ones(20)), {}, "input 'x' is a list. give a torch tensor"),
        ((torch.ones(4, 20, device="meta"), torch.ones(20)), {}, "is torch.strided on meta. give a dense tensor"),
        ((torch.ones(4, 20).to_sparse(), torch.ones(20)), {}, "is torch.sparse_coo on cpu"),
    ],
)
def test_mismatches(scale: Compiled, args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(InputMismatch, match=message):
        scale(*args, **kwargs)


def test_inputs_that_must_be_copied(scale: Compiled) -> None:
    """Not contiguous; or not aligned, which would crash generated code that uses whole-vector loads."""
    x, by = inputs()
    expected = x * by + 1
    spread = torch.randn(4, 40)[:, ::2]
    spread.copy_(x)
    assert not spread.is_contiguous()
    assert torch.equal(scale(spread, by), scale(x, by))
    for offset in range(1, 16):
        shifted = torch.empty(96)[offset : offset + 80].view(4, 20)
        shifted.copy_(x)
        torch.testing.assert_close(scale(shifted, by), expected)
    negative = torch._neg_view(x)
    torch.testing.assert_close(scale(negative, by), -x * by + 1)


def test_inputs_are_not_copied() -> None:
    compiled = compile_model(import_model(Apply(lambda x: (x.reshape(-1), x + 1)), (4, 16)))
    x = torch.randn(4, 16)
    view, _ = compiled(x)
    assert view.data_ptr() == x.data_ptr()


def test_inputs_are_not_changed() -> None:
    compiled = compile_model(import_model(nn.Sequential(nn.ReLU(inplace=True), nn.Softmax(-1)), (4, 16)))
    x = torch.randn(4, 16)
    before = x.clone()
    torch.testing.assert_close(compiled(x), x.relu().softmax(-1))
    assert torch.equal(x, before)


def test_gradients_stop_here(scale: Compiled) -> None:
    x, by = inputs()
    got = scale(x.requires_grad_(), by)
    assert not got.requires_grad
    with torch.no_grad():
        assert torch.equal(scale(x, by), got)
    with torch.inference_mode():
        assert torch.equal(scale(x.detach().clone(), by), got)


def test_outputs_are_new_on_every_call(scale: Compiled) -> None:
    x, by = inputs()
    first = scale(x, by)
    kept = first.clone()
    second = scale(x + 1, by)
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, kept)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: (x + 1,),
        lambda x: [x + 1, x * 2],
        lambda x: {"a": x + 1, "b": (x * 2, None, 3, x)},
    ],
)
def test_outputs_are_nested_as_in_eager(function: Any) -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(compile_model(import_model(Apply(function), x))(x), function(x))


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(2.0),
        torch.ones(3, dtype=torch.bool),
        torch.arange(3, dtype=torch.uint8),
        torch.arange(3, dtype=torch.int64),
        torch.ones(3, dtype=torch.float16),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.float64),
    ],
    ids=lambda x: f"{x.dtype}{list(x.shape)}",
)
def test_types(x: Tensor) -> None:
    function = torch.logical_not if x.dtype is torch.bool else lambda t: t + 1
    got = compile_model(import_model(Apply(function), x))(x)
    assert got.dtype is x.dtype
    assert torch.equal(got, function(x))


def test_output_class_of_transformers() -> None:
    torch.manual_seed(0)
    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    model, ids = BertModel(config).eval(), torch.randint(0, 100, (1, 6))
    mask = torch.ones(1, 6, dtype=torch.int64)
    compiled = compile_model(import_model(model, {"input_ids": ids, "attention_mask": mask}))
    got = compiled(input_ids=ids, attention_mask=mask)
    want = model(input_ids=ids, attention_mask=mask)
    assert type(got) is BaseModelOutputWithPoolingAndCrossAttentions
    assert got.keys() == want.keys()
    torch.testing.assert_close(got.last_hidden_state, want.last_hidden_state)


def test_threads_share_one() -> None:
    model, (x,) = mlp()
    compiled = compile_model(import_model(model, x))
    batches = [torch.randn_like(x) for _ in range(4)]
    wrong: list[int] = []

    def work(index: int) -> None:
        expected = compiled(batches[index])
        if not all(torch.equal(compiled(batches[index]), expected) for _ in range(50)):
            wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
