"""Print a module before and after a pass or a rewrite."""

from __future__ import annotations

import re
from typing import Any


def before_and_after(title: str, before: Any, after: Any) -> str:
    """Return a title and TVM's text of a module before and after, without redundant lines."""
    return "\n".join([title, "", "---- before", *_lines(before), "", "---- after", *_lines(after)])


_LEFT_OUT = ("#", "@I.ir_module", "T.reads(", "T.writes(", 'T.func_attr({"tirx.noalias": True})')
"""Omitted lines: imports, reads and writes of blocks, and attributes of all functions."""

_SIZE = re.compile(r"^(from __future__ import annotations|\w+ = TypeVar\(.*)$|(?<=def main)\[[\w, ]+\]")
"""How TVM declares dynamic sizes, which depends on Python's version."""


def _lines(module: Any) -> list[str]:
    lines = [_SIZE.sub("", line) for line in module.script(show_meta=False).splitlines()]
    return [line for line in lines if line.strip() and not line.strip().startswith(_LEFT_OUT)]
