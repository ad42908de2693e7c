"""Libraries' messages become one line, and their talk is kept back only while it must be."""

import logging
import sys
import warnings

import pytest
import torch
from torch import nn

from felixlike.errors import DynamicControlFlow, first_line
from felixlike.frontend import import_model
from felixlike.frontend.refusals import quiet


@pytest.mark.parametrize(
    ("message", "line"),
    [("one", "one"), ("\n  first \nsecond", "first"), ("", "ValueError"), ("x" * 400, "x" * 299 + "…")],
)
def test_first_line(message: str, line: str) -> None:
    assert first_line(ValueError(message)) == line


def test_quiet_ends_even_after_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    def talk() -> None:
        with quiet(stdout=True):
            warnings.warn("hidden", stacklevel=1)
            logging.getLogger("torch").error("hidden")
            print("hidden")
            print("hidden", file=sys.stderr)
            raise ValueError("through")

    with pytest.raises(ValueError, match="through"):
        talk()
    assert capsys.readouterr() == ("", "")
    print("shown")
    assert capsys.readouterr().out == "shown\n"
    assert logging.getLogger("torch").isEnabledFor(logging.ERROR)
    with pytest.warns(UserWarning, match="shown"):
        warnings.warn("shown", stacklevel=1)


class Branching(nn.Module):
    """Says what it does, then asks for a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("my own words", file=sys.stderr)
        return x if x.sum() > 0 else -x


def test_what_the_model_prints_is_printed_but_not_torchs_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DynamicControlFlow):
        import_model(Branching(), torch.randn(4))
    err = capsys.readouterr().err
    assert set(err.split("\n")) == {"my own words", ""}


def test_a_process_without_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(DynamicControlFlow):
        import_model(Branching(), torch.randn(4))
