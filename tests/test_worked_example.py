"""Test that the worked examples in the docs run in order and print the output shown below them."""

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
    """Return [code, expected output] for each block of code in the example."""
    blocks: list[list[str]] = []
    for match in _FENCE.finditer(EXAMPLE.read_text(encoding="utf-8")):
        kind, body = match.groups()
        if kind == "python":
            blocks.append([body, ""])
        else:
            blocks[-1][1] = body
    return blocks


def _with_outputs(outputs: list[str]) -> str:
    """Return the example's text with its outputs replaced."""
    printed = iter(outputs)

    def filled(match: re.Match[str]) -> str:
        return match[0] if match[1] == "python" else f"```text\n{next(printed)}```"

    return _FENCE.sub(filled, EXAMPLE.read_text(encoding="utf-8"))


def _run(blocks: list[list[str]]) -> Iterator[str]:
    """Yield what each block prints. All blocks share one namespace that belongs to no module."""
    names: dict[str, object] = {"__name__": "worked_example"}
    for code, _ in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(EXAMPLE), "exec"), names)
        yield printed.getvalue()


def test_the_example_prints_its_shown_output(request: pytest.FixtureRequest) -> None:
    blocks = _blocks()
    outputs = list(_run(blocks))
    if request.config.getoption("--update-golden"):
        EXAMPLE.write_text(_with_outputs(outputs), encoding="utf-8")
        blocks = _blocks()
    assert all(expected for _, expected in blocks)
    assert len(blocks) > 4
    for (code, expected), printed in zip(blocks, outputs, strict=True):
        assert printed == expected, f"printed by:\n{code}\nif wanted: pytest --update-golden"


def test_the_package_is_unchanged() -> None:
    """The example changes a rule only within itself."""
    from felixlike.spaces.cpu import register_tile

    before = register_tile._tile
    list(_run(_blocks()[:2]))
    assert register_tile._tile is before
