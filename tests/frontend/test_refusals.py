"""Libraries' messages become one line, and their talk is kept back only while it must be."""

import logging
import sys
import warnings

import pytest

from felixlike.errors import first_line
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
