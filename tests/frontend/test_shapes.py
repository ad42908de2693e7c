"""Tests for parsing shapes and example inputs, and for the errors of invalid ones."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import BatchEncoding
from transformers.modeling_outputs import BaseModelOutput

from felixlike.errors import InvalidOption, InvalidShape
from felixlike.frontend.imported import InputSpec
from felixlike.frontend.importers.input_shapes import Example, Input, either, match_known, parse_shapes, read_shapes

SPECS = (InputSpec("x", (2, 3), "float32"), InputSpec("ids", (4,), "int64"))


def examples(*inputs: Input) -> list[Example]:
    return [value.alone("x") for value in inputs]


def test_sizes_of_one_input() -> None:
    parsed = read_shapes((1, 3, 8, 8))
    assert parsed is not None
    assert examples(*parsed.positional) == [Example((1, 3, 8, 8))]
    assert parsed.only_sizes


def test_a_single_tensor() -> None:
    tensor = torch.ones(2, dtype=torch.int64)
    parsed = read_shapes(tensor)
    assert parsed is not None
    assert examples(*parsed.positional) == [Example((2,), "int64")]
    assert not parsed.only_sizes
    assert parsed.positional[0].value().data_ptr() == tensor.data_ptr()


def test_sequence_of_tensors_and_sizes() -> None:
    parsed = read_shapes([torch.ones(2, 3), (4, 5), ()])
    assert parsed is not None
    assert [example.shape for example in examples(*parsed.positional)] == [(2, 3), (4, 5), ()]


def test_a_mapping_keeps_names() -> None:
    parsed = read_shapes({"b": (1, 2), "a": torch.ones(3, dtype=torch.bool)})
    assert parsed is not None
    assert [name for name, _ in parsed.named] == ["b", "a"]
    assert examples(*dict(parsed.named).values()) == [Example((1, 2)), Example((3,), "bool")]


def test_no_shapes_give_none() -> None:
    assert read_shapes(None) is None
    assert parse_shapes([]) is None


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ((1, 0, 3), r"^shapes: size 0 .*\bDim\b"),
        (((2, -1),), r"^shapes\[0\]: size -1\b"),
        ({"x": (1, 2.5)}, r"^shapes\['x'\]: .*\b2\.5\b"),
        ({"x": (True, 2)}, r"^shapes\['x'\]: .*\bTrue\b"),
        ({3: (1, 2)}, r"^shapes: .*\bname .*\b3\b"),
        ({"x": "1x2"}, r"^shapes\['x'\]: .*'1x2'"),
        ("1x2", r"^shapes: .*'1x2'"),
        (7, r"^shapes: .*\b7\b.*shapes=\(\("),
        ([(1, 2), object], r"^shapes\[1\]: .*<class 'object'>"),
        ([(1, 2), {"a": [torch.ones(2), "3x4"]}], r"^shapes\[1\]\['a'\]\[1\]: .*'3x4'"),
        ([(1, 2), object()], r"^shapes\[1\]: .*\ban object\b.*register_dataclass"),
        ([np.array(["a"])], r"^shapes\[0\]: .*<U1"),
        (torch.ones(1, dtype=torch.complex64), r"^shapes: .*\bcomplex64\b"),
        (torch.ones(2, 0), r"^shapes: size 0\b"),
        (torch.ones(2, device="meta"), r"torch\.strided .*\bmeta\b"),
        ((2, "n"), r"^shapes: .*'n'"),
        ((None, 3), r"^shapes: .*\bNone\b.*positive integer"),
    ],
)
def test_invalid_shapes_are_refused(shapes: Any, message: str) -> None:
    with pytest.raises(InvalidShape, match=message):
        read_shapes(shapes)


def test_examples_without_a_tensor_are_made() -> None:
    floats = Example((2, 3)).tensor()
    assert floats.dtype is torch.float32
    assert torch.equal(floats, Example((2, 3)).tensor())
    assert Example((2,), "int64").tensor().tolist() == [0, 0]
    assert Example((), "float16").tensor().dtype is torch.float16


def test_shapes_of_the_command_line() -> None:
    parsed = parse_shapes(["x=1x3x8x8", "ids=1x64:int64", "t=scalar:float64"])
    assert parsed is not None
    assert [name for name, _ in parsed.named] == ["x", "ids", "t"]
    assert examples(*dict(parsed.named).values()) == [
        Example((1, 3, 8, 8)),
        Example((1, 64), "int64"),
        Example((), "float64"),
    ]
    unnamed = parse_shapes(["2x3", "7:int32"])
    assert unnamed is not None
    assert examples(*unnamed.positional) == [Example((2, 3)), Example((7,), "int32")]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["x=1x0"], r"^x=1x0: size 0\b"),
        (["x=1x-2"], r"^x=1x-2: size -2\b"),
        (["x=axb"], r"^x=axb: .*'axb'"),
        (["x=1.5x2"], r"^x=1\.5x2: .*'1\.5x2'"),
        (["x="], "'x='.*x=1x3x224x224"),
        (["x=1:int4"], "^x=1:int4: .*'int4'.*float32"),
        (["x=1", "2"], "^shapes: .* named .*x=1x3x224x224"),
        (["x=1", "x=2"], "^shapes: input 'x' .*twice"),
    ],
)
def test_invalid_shapes_of_the_command_line_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(InvalidShape, match=message):
        parse_shapes(texts)


def test_match_known_takes_sizes_types_and_tensors() -> None:
    assert match_known(None, SPECS, where="m") == (Example((2, 3)), Example((4,), "int64"))
    assert match_known(read_shapes([(2, 3), (4,)]), SPECS, where="m")[1].dtype == "int64"
    by_name = match_known(read_shapes({"ids": torch.arange(4), "x": (2, 3)}), SPECS, where="m")
    assert by_name[1].value.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 3)], "^m: .*2 inputs, got 1. .*x, ids;"),
        ({"x": (2, 3), "y": (4,)}, "^m: .*'y'. .*x, ids"),
        ({"x": (2, 3)}, "^m: input 'ids' is missing"),
        ([(2, 4), (4,)], r"^m: input 'x' .*\(2, 3\).*\(2, 4\)"),
        ([(2, 3), torch.ones(4)], "^m: input 'ids' .*int64.*float32"),
    ],
)
def test_match_known_refuses_mismatches(shapes: Any, message: str) -> None:
    with pytest.raises(InvalidShape, match=message):
        match_known(read_shapes(shapes), SPECS, where="m")


def test_arrays_become_tensors_of_their_dtype() -> None:
    parsed = read_shapes([np.zeros((2, 3)), np.ones(4, np.int32), np.zeros((), ">f4")])
    assert parsed is not None
    assert examples(*parsed.positional) == [Example((2, 3), "float64"), Example((4,), "int32"), Example(())]
    single = read_shapes(np.ones((2, 3), np.float32))
    assert single is not None
    assert single.positional[0].value().tolist() == [[1.0] * 3] * 2


def test_constants_and_nesting() -> None:
    x = torch.ones(2)
    parsed = read_shapes(({"a": [x, (3, 4)], "b": None}, 3, np.float32(0.5), "text", True, (x, (x,))))
    assert parsed is not None
    nested, *constants, pair = (value.value() for value in parsed.positional)
    assert nested["a"][0].data_ptr() == x.data_ptr()
    assert nested["a"][1].shape == (3, 4)
    assert nested["b"] is None
    assert constants == [3, 0.5, "text", True]
    assert [type(value) for value in constants] == [int, float, str, bool]
    assert isinstance(pair[1], tuple)
    assert [example.shape for example in parsed.positional[0].examples] == [(2,), (3, 4)]


def test_tokenizer_outputs_and_output_classes() -> None:
    ids = torch.ones(1, 4, dtype=torch.int64)
    parsed = read_shapes(BatchEncoding({"input_ids": ids, "attention_mask": ids}))
    assert parsed is not None
    assert [name for name, _ in parsed.named] == ["input_ids", "attention_mask"]
    in_a_list = read_shapes([BatchEncoding({"input_ids": ids}), BaseModelOutput(last_hidden_state=ids)])
    assert in_a_list is not None
    assert [type(value.value()) for value in in_a_list.positional] == [dict, BaseModelOutput]


def test_models_that_take_plain_tensors_refuse_others() -> None:
    with pytest.raises(InvalidShape, match=r"^input 'ids': .*\ba dict\b"):
        match_known(read_shapes([(2, 3), {"a": torch.ones(4)}]), SPECS, where="m")
    with pytest.raises(InvalidShape, match=r"^input 'x': .*\ban int\b"):
        match_known(read_shapes({"x": 3, "ids": (4,)}), SPECS, where="m")


def test_shapes_and_example_inputs_exclude_each_other() -> None:
    assert either(None, (1, 2)) == either((1, 2), None) == (1, 2)
    assert either(None, None) is None
    with pytest.raises(InvalidOption, match=r"^example_inputs: shapes and example_inputs "):
        either((1, 2), torch.ones(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused() -> None:
    with pytest.raises(InvalidShape, match=r"^shapes\[0\]: .*\bnested\b"):
        read_shapes((torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),))
