"""Tests for calls of a compiled model: its signature, input checks, outputs, copies and threads."""

import copy
import itertools
import random
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import Apply, mlp
from torch import Tensor, nn
from torch.autograd import forward_ad
from transformers import BertConfig, BertModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from felixlike._tvm import relax
from felixlike.errors import InputMismatch, NoGradientWarning, WrongContext
from felixlike.frontend import import_model
from felixlike.runtime import Compiled, compile_model, load, save


class Scale(nn.Module):
    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return x * by + 1


@pytest.fixture(scope="module")
def scale() -> Compiled:
    return compile_model(import_model(Scale(), ((4, 20), (20,))))


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 20), torch.randn(20)


def test_inputs_by_position_and_by_name(scale: Compiled) -> None:
    x, by = inputs()
    expected = x * by + 1
    for got in (scale(x, by), scale(x, by=by), scale(by=by, x=x)):
        torch.testing.assert_close(got, expected)


def test_repr_lists_the_inputs(scale: Compiled) -> None:
    assert repr(scale) == "<compiled Scale(x: float32[4, 20], by: float32[20])>"


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"Scale: .*\b0\b.* x: float32\[4, 20\], by: float32\[20\]"),
        ((torch.ones(4, 20),) * 3, {}, r"Scale: .*\b3\b.* x: float32"),
        ((torch.ones(4, 20),), {}, r"Scale: .*\b1\b.* x: float32"),
        ((torch.ones(4, 20),), {"z": torch.ones(20)}, "'z'.* x: float32"),
        ((torch.ones(4, 20),), {"x": torch.ones(4, 20)}, "'x'.*twice"),
        ((), {"x": torch.ones(4, 20)}, "input 'by' is missing"),
        ((torch.ones(4, 21), torch.ones(20)), {}, r"input 'x' has shape \(4, 21\), compiled for \(4, 20\)"),
        ((torch.ones(4, 20), torch.ones(1, 20)), {}, r"input 'by' has shape \(1, 20\)"),
        (
            (torch.ones(4, 20).double(), torch.ones(20)),
            {},
            r"'x' is torch\.float64, compiled for torch\.float32.*x\.to\(torch\.float32\)",
        ),
        (([1.0], torch.ones(20)), {}, "'x' is a list.*torch tensor"),
        ((torch.ones(4, 20, device="meta"), torch.ones(20)), {}, "'x' is torch.strided on meta"),
        ((torch.ones(4, 20).to_sparse(), torch.ones(20)), {}, "'x' is torch.sparse_coo on cpu"),
    ],
)
def test_mismatching_inputs_are_refused(scale: Compiled, args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(InputMismatch, match=message):
        scale(*args, **kwargs)


def test_only_strided_and_misaligned_inputs_are_copied(scale: Compiled) -> None:
    """Inputs are copied if not contiguous or not aligned to an element. Alignment to a vector is not needed."""
    x, by = inputs()
    expected = x * by + 1
    strided = torch.randn(4, 40)[:, ::2]
    strided.copy_(x)
    assert not strided.is_contiguous()
    assert torch.equal(scale(strided, by), scale(x, by))
    for offset in range(1, 16):
        shifted = torch.empty(96)[offset : offset + 80].view(4, 20)
        shifted.copy_(x)
        assert scale.at_hand(0, shifted) is shifted
        torch.testing.assert_close(scale(shifted, by), expected)
    misaligned = torch.from_numpy(
        np.frombuffer(bytearray(b"0" + x.numpy().tobytes()), np.float32, offset=1).reshape(4, 20)
    )
    assert scale.at_hand(0, misaligned) is not misaligned
    torch.testing.assert_close(scale(misaligned, by), expected)
    negative = torch._neg_view(x)
    torch.testing.assert_close(scale(negative, by), -x * by + 1)


def unusual_tensors(x: Tensor) -> dict[str, Tensor]:
    """Return tensors with the values of x that torch stores in different ways."""
    shifted = torch.empty(96)[3:83].view(4, 20)
    with torch.inference_mode():
        inferred = x.clone()
    return {
        "plain": x,
        "spread": torch.stack([x, x], -1)[..., 0],
        "turned": x.t().contiguous().t(),
        "shifted": shifted.copy_(x),
        "negative": torch._neg_view(-x),
        "inferred": inferred,
        "parameter": nn.Parameter(x, requires_grad=False),
        "numpy": torch.from_numpy(np.frombuffer(bytes(4) + x.numpy().tobytes(), np.float32)[1:].copy().reshape(4, 20)),
        "subclass": x.as_subclass(Marked),
        "zeros": torch._efficientzerotensor(4, 20),
    }


class Marked(Tensor):
    """A subclass of Tensor without changes."""


def test_guards_of_one_call_are_checked_again_by_the_next(scale: Compiled) -> None:
    """Each call checks its inputs again. The kinds of tensors follow each other in random order."""
    x, by = inputs()
    tensors = unusual_tensors(x)
    order = random.Random(0).choices(list(tensors), k=100)
    for name, context in zip(order, itertools.cycle((torch.enable_grad, torch.no_grad, torch.inference_mode))):
        want = tensors[name] * by + 1
        with context():
            got = scale(tensors[name], by)
        assert type(got) is Tensor
        torch.testing.assert_close(got, want.as_subclass(Tensor), msg=name)


@pytest.mark.filterwarnings("ignore:.*(nested tensors|Sparse CSR|quantized tensor)")
def test_tensors_without_elements_in_memory_are_refused(scale: Compiled) -> None:
    x, by = inputs()
    emptied = x.clone()
    emptied.untyped_storage().resize_(0)
    refused = {
        "is a nested tensor": torch.nested.nested_tensor([x]),
        "is torch.sparse_csr": x.to_sparse_csr(),
        "is torch.sparse_coo": x.to_sparse(),
        "is torch._mkldnn": x.to_mkldnn(),
        "is torch.quint8": torch.quantize_per_tensor(x, 1.0, 0, torch.quint8),
        "is torch.complex64": x.to(torch.complex64).conj(),
        "has no storage": emptied,
        "is a ndarray": x.numpy(),
        "is a NoneType": None,
    }
    for words, tensor in refused.items():
        scale(x, by)
        with pytest.raises(InputMismatch, match=f"input 'x' {words}"):
            scale(tensor, by)


def test_an_output_that_is_a_view_shares_the_input_s_memory() -> None:
    compiled = compile_model(import_model(Apply(lambda x: (x.reshape(-1), x + 1)), (4, 16)))
    x = torch.randn(4, 16)
    view, _ = compiled(x)
    assert view.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("inplace", [False, True])
def test_inputs_change_as_in_pytorch(inplace: bool) -> None:
    compiled = compile_model(import_model(nn.Sequential(nn.ReLU(inplace=inplace), nn.Softmax(-1)), (4, 16)))
    x = torch.randn(4, 16)
    before = x.clone()
    torch.testing.assert_close(compiled(x), before.relu().softmax(-1))
    assert torch.equal(x, before.relu() if inplace else before)


def test_inputs_that_need_a_gradient_warn_once() -> None:
    scale = compile_model(import_model(Scale(), ((4, 20), (20,))))
    x, by = inputs()
    x.requires_grad_()
    with torch.no_grad():
        want = scale(x, by)
    with pytest.warns(NoGradientWarning, match=r"Scale: input 'x' .*torch\.no_grad\(\)") as caught:
        got = scale(x, by)
    assert [warning.filename for warning in caught] == [__file__]
    assert torch.equal(got, want)
    assert not got.requires_grad
    assert torch.equal(scale(x, by), got)  # a second warning would fail, as warnings are errors in tests
    with torch.inference_mode():
        assert torch.equal(scale(x.detach().clone(), by), got)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is ")  # torch calls it here
def test_forward_mode_derivatives_are_refused(scale: Compiled) -> None:
    make_dual: Any = forward_ad.make_dual
    x, by = inputs()
    want = scale(x, by)
    with forward_ad.dual_level():
        assert torch.equal(scale(x, by), want)
        with pytest.raises(WrongContext, match=r"Scale: .*differentiated"):
            scale(make_dual(x, x), by)
    assert torch.equal(scale(x, by), want)


def test_outputs_are_new_on_every_call(scale: Compiled) -> None:
    x, by = inputs()
    first = scale(x, by)
    before = first.clone()
    second = scale(x + 1, by)
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, before)


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
def test_all_dtypes_give_equal_outputs(x: Tensor) -> None:
    function = torch.logical_not if x.dtype is torch.bool else lambda t: t + 1
    got = compile_model(import_model(Apply(function), x))(x)
    assert got.dtype is x.dtype
    assert torch.equal(got, function(x))


def test_nested_outputs_of_a_relax_function(tmp_path: Path) -> None:
    """A Relax function may return tuples of tuples."""
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        double = builder.emit(relax.op.add(x, x))
        square = builder.emit(relax.op.multiply(x, x))
        builder.emit_func_output(relax.Tuple([relax.Tuple([double]), relax.Tuple([square])]))
    compiled = compile_model(import_model(builder.get()))
    save(compiled, tmp_path / "m.flx", report={})
    value = torch.randn(2, 3)
    for call in (compiled, load(tmp_path / "m.flx")[0]):
        for _ in range(2):
            torch.testing.assert_close(call(value), ((value + value,), (value * value,)))
        assert [spec.name for spec in call.outputs] == ["output[0][0]", "output[1][0]"]


def test_output_specs_name_nested_outputs() -> None:
    compiled = compile_model(import_model(Apply(lambda x: {"a": x + 1, "b": (x[0] > 2, None, [x.long()])}), (3, 4)))
    assert [str(spec) for spec in compiled.outputs] == [
        "output['a']: float32[3, 4]",
        "output['b'][0]: bool[4]",
        "output['b'][2][0]: int64[3, 4]",
    ]
    single = compile_model(import_model(Apply(lambda x: x.sum()), (3, 4)))
    assert [str(spec) for spec in single.outputs] == ["output: float32[]"]


def test_a_deep_copy_has_its_own_virtual_machine(scale: Compiled) -> None:
    """A copy is the same object, a deep copy shares the code but not the memory, and is freed when deleted."""
    x, by = inputs()
    other = copy.deepcopy(scale)
    assert copy.copy(scale) is scale
    assert other.runtime is scale.runtime
    assert torch.equal(other(x, by), scale(x, by))
    assert other._here.main is not scale._here.main
    original = weakref.ref(scale)
    assert original() is scale
    copied = weakref.ref(other)
    del other
    assert copied() is None  # immediately, as there are no reference cycles


def test_signature_as_python(scale: Compiled) -> None:
    assert str(scale.as_python()) == "(x: 'float32[4, 20]', by: 'float32[20]')"


def test_output_class_of_transformers() -> None:
    torch.manual_seed(0)
    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    model, ids = BertModel(config).eval(), torch.randint(0, 100, (1, 6))
    mask = torch.ones(1, 6, dtype=torch.int64)
    compiled = compile_model(import_model(model, {"input_ids": ids, "attention_mask": mask}))
    got = compiled(input_ids=ids, attention_mask=mask)
    want = model(input_ids=ids, attention_mask=mask)
    assert type(got) is BaseModelOutputWithPoolingAndCrossAttentions
    assert [spec.name for spec in compiled.outputs] == ["output['last_hidden_state']", "output['pooler_output']"]
    assert got.keys() == want.keys()
    torch.testing.assert_close(got.last_hidden_state, want.last_hidden_state)


def test_calls_of_two_threads_run_at_the_same_time() -> None:
    """Both calls reach the kernels before either returns, each with its own virtual machine."""
    model, (x,) = mlp()
    compiled = compile_model(import_model(model, x))
    want, barrier, results = compiled(x), threading.Barrier(2), []

    def pin_threads(_: int) -> None:
        barrier.wait(60)

    compiled._pin_threads = pin_threads

    def work(tensor: torch.Tensor) -> None:
        results.append((compiled(tensor), compiled._here.main))

    threads = [threading.Thread(target=work, args=(tensor,)) for tensor in (x, x.t().contiguous().t())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [torch.equal(answer, want) for answer, _ in results] == [True, True]
    assert results[0][1] is not results[1][1]


def test_threads_share_a_model() -> None:
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
