"""Workloads are lines of text; a list of them is shipped."""

from __future__ import annotations

import pytest
import torch

from felixlike.errors import InvalidOption
from felixlike.training.workloads import OPERATORS, parse_lines, shipped_lines


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_can_be_called(operator: str) -> None:
    (line,) = parse_lines(operator, where="here")
    module, inputs = line.make()
    second_module, second_inputs = line.make()
    assert not module.training
    torch.testing.assert_close(module(*inputs), second_module(*second_inputs))


@pytest.mark.parametrize("after", ["relu", "gelu", "silu", "tanh", "residual"])
def test_a_layer_can_be_followed_by_an_operator(after: str) -> None:
    (line,) = parse_lines(f"dense rows=3 inputs=4 outputs=5 after={after}  # comment\n\n", where="here")
    module, inputs = line.make()
    assert module(*inputs).shape == (3, 5)
    assert len(inputs) == 1 + (after == "residual")


def test_making_a_workload_does_not_change_the_random_state() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    parse_lines("dense", where="here")[0].make()
    torch.testing.assert_close(torch.rand(2), expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dens rows=3", "here, line 1: .*'dens'.*'dense'"),
        ("\ndense row=3", "here, line 2: .*'row=3'.*rows, inputs, outputs, bias"),
        ("dense rows=0", "'rows=0' of dense"),
        ("dense rows=-4", "'rows=-4' of dense"),
        ("dense rows=x", "'rows=x' of dense"),
        ("dense after=sigmoid", "'after=sigmoid'.*relu, gelu"),
    ],
)
def test_a_wrong_line_is_an_error(text: str, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        parse_lines(text, where="here")


def test_the_shipped_list_is_long_and_varied() -> None:
    lines = shipped_lines()
    assert len(lines) >= 150
    assert len({line.text for line in lines}) == len(lines)
    assert {line.operator for line in lines} == set(OPERATORS)
