"""Tests for `felixlike tune --dim`, sizes of inputs that differ between calls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import felixlike as fx
from felixlike import records
from felixlike.cli import dimensions, main
from felixlike.errors import InputMismatch, InvalidDim
from felixlike.frontend.importers.input_shapes import Example, parse_shapes

MODEL = """
import torch
from torch import nn

def small():
    torch.manual_seed(0)
    return nn.Linear(8, 12).eval()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_ranges_and_lists_are_parsed() -> None:
    dims = dimensions.parse_dims(["T=1..128", "N=16,32,64"])
    assert dims == {"T": fx.Dim("T", range(1, 129)), "N": fx.Dim("N", [16, 32, 64])}
    assert dimensions.example_sizes(dims) == {"T": 5, "N": 16}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["T"], "expected NAME=SIZES, got 'T'"),
        (["T="], "expected NAME=SIZES"),
        (["T=1..-3"], "expected NAME=SIZES"),
        (["T=1.."], "expected NAME=SIZES"),
        ([f"T=1..{'9' * 5000}"], "expected NAME=SIZES"),
        (["T=0..3"], "positive sizes, got 0"),
        (["T=3..1"], "at least one size, got none"),
        (["T=1..999999999"], "at most 65536 sizes"),
        (["T=2,2"], "size 2 is given twice"),
        (["T=1..2", "T=1..2"], "'T' is given twice"),
        (["max=1..2"], "'max' contains x"),
        (["2=1..2"], "a Python identifier as the name, got '2'"),
    ],
)
def test_wrong_dimensions_are_refused(texts: list[str], words: str) -> None:
    with pytest.raises(InvalidDim, match=words):
        dimensions.parse_dims(texts)


def test_names_in_shapes_become_dynamic_sizes() -> None:
    dims = dimensions.parse_dims(["T=1..128", "N=16,32"])
    given = parse_shapes(["NxT:int64", "4x8"], dimensions.example_sizes(dims))
    assert given is not None
    assert given.positional[0].examples == (Example((16, 5), "int64", dims=((0, "N"), (1, "T"))),)
    assert dimensions.dynamic_shapes(given, dims) == ({0: dims["N"], 1: dims["T"]}, None)
    given = parse_shapes(["x=4x8", "ids=1xT", "mask=NxT"], dimensions.example_sizes(dims))
    assert dimensions.dynamic_shapes(given, dims) == {"ids": {1: dims["T"]}, "mask": {0: dims["N"], 1: dims["T"]}}


@pytest.mark.parametrize("shapes", [[], ["4x8"], ["x=NxN"]])
def test_a_dimension_of_no_input_is_refused(shapes: list[str]) -> None:
    dims = dimensions.parse_dims(["T=1..128", "N=16,32"])
    with pytest.raises(InvalidDim, match="is the size of no input"):
        dimensions.dynamic_shapes(parse_shapes(shapes, dimensions.example_sizes(dims)), dims)


def test_a_model_with_a_dynamic_size_is_tuned_and_resumed(file: Path, tmp_path: Path) -> None:
    output, store = tmp_path / "model.flx", tmp_path / "runs.sqlite"
    arguments = ["--shape", "input=Tx8", "--dim", "T=1..16", "--trials", "0", "--store", str(store), "--quiet"]
    assert main(["tune", f"{file}:small", *arguments, "--output", str(output)]) == 0
    _check(output)
    output.unlink()
    assert main(["resume", str(store), "--quiet"]) == 0
    _check(output)
    with records.open(store) as opened:
        assert len(opened.commands()) == 1


def _check(path: Path) -> None:
    torch.manual_seed(0)
    model, fast = nn.Linear(8, 12).eval(), fx.load(path)
    for size in (1, 5, 16):
        x = torch.randn(size, 8)
        torch.testing.assert_close(fast(x), model(x))
    with pytest.raises(InputMismatch, match="T is 17"):
        fast(torch.randn(17, 8))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shape", "input=Tx8"], "cannot parse the sizes 'Tx8'"),
        (["--dim", "T=1..16"], "--dim: 'T' is the size of no input"),
        (["--shape", "input=Tx8", "--dim", "T=1..16", "--compare"], "compare: "),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], words: str, file: Path, capsys: pytest.CaptureFixture[Any]
) -> None:
    assert main(["tune", f"{file}:small", *arguments]) == 1
    assert re.search(words, capsys.readouterr().err)
