"""What a pass or a rewrite does to a module, as a text that people read."""

from __future__ import annotations

from typing import Any


def before_and_after(title: str, before: Any, after: Any) -> str:
    """A title, and TVM's texts of a module before and after, without what follows from the rest."""
    return "\n".join([title, "", "---- before", *_lines(before), "", "---- after", *_lines(after)])


_LEFT_OUT = ("#", "@I.ir_module", "T.reads(", "T.writes(", 'T.func_attr({"tirx.noalias": True})')
"""Imports, what blocks read and write, and what all functions have."""


def _lines(module: Any) -> list[str]:
    lines = module.script(show_meta=False).splitlines()
    return [line for line in lines if line.strip() and not line.strip().startswith(_LEFT_OUT)]
