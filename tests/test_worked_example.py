"""The worked examples in the docs do what they say: their code is run in order, and prints what stands below it."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLE = DOCS / "changing-a-rule.md"
_FENCE = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks() -> list[list[str]]:
    """[code, what it prints] for each block of code in the example."""
    found: list[list[str]] = []
    for match in _FENCE.finditer(EXAMPLE.read_text(encoding="utf-8")):
        kind, body = match.groups()
        if kind == "python":
            found.append([body, ""])
        else:
            found[-1][1] = body
    return found


def _with_outputs(outputs: list[str]) -> str:
    """The example's text with these in the places of what its code prints."""
    printed = iter(outputs)

    def filled(match: re.Match[str]) -> str:
        return match[0] if match[1] == "python" else f"```text\n{next(printed)}```"

    return _FENCE.sub(filled, EXAMPLE.read_text(encoding="utf-8"))


def _run(blocks: list[list[str]]) -> Iterator[str]:
    """What each block prints, all in one namespace, which is nobody's module."""
    names: dict[str, object] = {"__name__": "worked_example"}
    for code, _ in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(EXAMPLE), "exec"), names)
        yield printed.getvalue()


def test_the_example_prints_what_it_says(request: pytest.FixtureRequest) -> None:
    blocks = _blocks()
    outputs = list(_run(blocks))
    if request.config.getoption("--update-golden"):
        EXAMPLE.write_text(_with_outputs(outputs), encoding="utf-8")
        blocks = _blocks()
    assert all(expected for _, expected in blocks)
    assert len(blocks) > 4
    for (code, expected), printed in zip(blocks, outputs, strict=True):
        assert printed == expected, f"printed by:\n{code}\nif wanted: pytest --update-golden"


def test_the_package_is_as_it_was() -> None:
    """The example changes a rule for itself alone."""
    from felixlike.spaces.cpu import register_tile

    before = register_tile._tile
    list(_run(_blocks()[:2]))
    assert register_tile._tile is before
