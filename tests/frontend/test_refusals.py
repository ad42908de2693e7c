"""Tests for error messages of libraries, which become one line, and for suppressing their output."""

import dataclasses
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.models import Apply
from torch import Tensor, nn

import felixlike as fx
from felixlike._util.wording import for_the_command
from felixlike.errors import (
    DynamicControlFlow,
    ExportFailed,
    InvalidModel,
    InvalidShape,
    UnsupportedOperator,
    first_line,
)
from felixlike.frontend import import_model
from felixlike.frontend.importers.refusals import quiet


@pytest.mark.parametrize(
    ("message", "line"),
    [("one", "one"), ("\n  first \nsecond", "first"), ("", "ValueError"), ("x" * 400, "x" * 299 + "…")],
)
def test_first_line_of_an_error(message: str, line: str) -> None:
    assert first_line(ValueError(message)) == line


def test_quiet_ends_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    def print_and_raise() -> None:
        with quiet(stdout=True):
            warnings.warn("hidden", stacklevel=1)
            logging.getLogger("torch").error("hidden")
            print("hidden")
            print("hidden", file=sys.stderr)
            raise ValueError("through")

    with pytest.raises(ValueError, match="through"):
        print_and_raise()
    assert capsys.readouterr() == ("", "")
    print("shown")
    assert capsys.readouterr().out == "shown\n"
    assert logging.getLogger("torch").isEnabledFor(logging.ERROR)
    with pytest.warns(UserWarning, match="shown"):
        warnings.warn("shown", stacklevel=1)


class Branching(nn.Module):
    """A model that prints to stderr and then branches on a tensor's value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("my own words", file=sys.stderr)
        return x if x.sum() > 0 else -x


def test_the_model_s_output_is_printed_but_not_torchs_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DynamicControlFlow):
        import_model(Branching(), torch.randn(4))
    err = capsys.readouterr().err
    assert set(err.split("\n")) == {"my own words", ""}


def test_stderr_may_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(DynamicControlFlow):
        import_model(Branching(), torch.randn(4))


@dataclasses.dataclass
class Pair:
    """Two outputs in a class that is not registered with PyTorch."""

    first: torch.Tensor
    second: torch.Tensor


class Pairs(nn.Module):
    def forward(self, x: torch.Tensor) -> Pair:
        return Pair(x + 1, x * 2)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.cell(x)[0]
        return output


class Fives(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 5, 8)


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.table(ids)
        return rows


class Router(nn.Module):
    """A layer whose weights are converted in each call, as routers of `transformers` do."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.layer, self.dtype = nn.Linear(8, 4), dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.layer = self.layer.to(self.dtype)
        scores: torch.Tensor = self.layer(x.to(self.dtype))
        return scores.float().relu()


class Arrays(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.frexp(x.numpy())[0]) + 1


_SIZES = fx.Dim("T", range(1, 9))


@pytest.mark.parametrize(
    ("model", "shapes", "words"),
    [
        pytest.param(
            Pairs,
            ((2, 8),),
            r"\bPair, .*torch\.export\.register_dataclass\(Pair\)",
            marks=pytest.mark.skipif(torch.__version__ < "2.12", reason="torch.export 2.11 says less"),
        ),
        (Recurrent, ((1, _SIZES, 8),), r"\bT .*\b5\. use 5 instead of T; .*nn\.GRU"),
        (Fives, ((fx.Dim("T", range(2, 30)), 8),), r"\bT\. .*T = 5"),
        (Embedded, ((2, _SIZES),), r"token ids, .*an example tensor.*dynamic_shapes=.*fx\.Dim\("),
        (Embedded, ((2, 3),), r"token ids, .*\bexample tensor\.$"),
        (Router, ((2, 8),), r"the weights of its Linear .*\. convert that module before"),
        (Arrays, ((2, 8),), r"computes with NumPy, .*\. use torch's operators"),
    ],
)
def test_export_errors_name_a_remedy(model: type[nn.Module], shapes: Any, words: str) -> None:
    with pytest.raises(ExportFailed, match=words):
        fx.optimize(model().eval(), shapes, 0, progress=False)


def test_weights_may_be_converted_to_the_type_that_they_have() -> None:
    model, x = Router(torch.float32), torch.randn(2, 8)
    convert = nn.Module._apply
    fast = fx.optimize(model, (x,), 0, progress=False)
    torch.testing.assert_close(fast(x), model(x))
    assert nn.Module._apply is convert


def test_a_registered_dataclass_is_returned() -> None:
    """Registering the class, as the error message advises, makes the model work."""

    @dataclasses.dataclass
    class Registered(Pair):
        pass

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Registered:
            return Registered(x + 1, x * 2)

    torch.export.register_dataclass(Registered)
    outputs = fx.optimize(Model(), ((3,),), 0, progress=False)(torch.ones(3))
    assert type(outputs) is Registered
    assert (outputs.first.tolist(), outputs.second.tolist()) == ([2.0] * 3, [2.0] * 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised_layers_are_refused_by_name() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(16, 4)).eval()
    quantised = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
        model, {nn.Linear}, dtype=torch.qint8
    )
    with pytest.raises(InvalidModel, match=r"^Sequential: 1 .*\(Linear of torch\.ao\)"):
        fx.optimize(quantised, ((2, 16),), 0, progress=False)


def test_remedies_name_options_of_the_api_or_the_command() -> None:
    def remedy() -> str:
        with pytest.raises(InvalidShape) as caught:
            fx.optimize(nn.Linear(8, 8).eval(), rounds=0, progress=False)
        return caught.value.remedy

    assert "shapes=((1, 3, 224, 224),)" in remedy()
    with for_the_command():
        assert "--shape 1x3x224x224" in remedy()
        assert "shapes=" not in remedy()
    assert "--shape" not in remedy()


def test_buffers_can_be_assigned_after_a_failed_export() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count: torch.Tensor
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count = self.count + 1
            return x if x.sum() > 0 else x + 1

    model = Counting()
    with pytest.raises(DynamicControlFlow):
        import_model(model, (3,))
    model.count = torch.ones(())
    assert float(model.count) == 1


@pytest.mark.parametrize("view", [lambda x: x[:, ::2], lambda x: x[1:]])
def test_the_memory_of_views_is_not_read_in_another_shape(view: Callable[[Tensor], Tensor]) -> None:
    model = Apply(lambda x: view(x * 2).as_strided((2, 3), (3, 1), 0) + 1)
    with pytest.raises(UnsupportedOperator, match=r"as_strided.* reads the memory that a view is part of"):
        import_model(model, (torch.randn(4, 3),))


def test_changed_buffers_that_share_memory_are_refused() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.zeros(3, 4))
            self.register_buffer("last", self.get_buffer("rows")[1:])

        def forward(self, x: Tensor) -> Tensor:
            self.get_buffer("rows").add_(x)
            return self.get_buffer("last") * 2

    with pytest.raises(ExportFailed, match="it changes tensors that share memory with others"):
        import_model(Views(), (torch.randn(3, 4),))


def test_tensors_that_are_kept_without_a_buffer_are_refused() -> None:
    class Sums(nn.Module):
        def __init__(self, *, keeps: bool) -> None:
            super().__init__()
            self.sum, self.keeps = torch.zeros(4), keeps

        def forward(self, x: Tensor) -> Tensor:
            self.sum = (self.sum if self.keeps else 0) + x
            return self.sum * 2

    with pytest.raises(ExportFailed, match=r"it keeps sum from one call to the next.*register_buffer\('sum'"):
        import_model(Sums(keeps=True), (torch.randn(4),))
    import_model(Sums(keeps=False), (torch.randn(4),))
