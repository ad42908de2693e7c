"""Find loops in assembly."""

from __future__ import annotations

import re

_SPILL = re.compile(r"\(%rsp|\[sp")


def innermost_loops(assembly: str) -> list[list[str]]:
    """Return the innermost loops, each from its label to the jump back, without other labels."""
    lines = assembly.splitlines()
    loops = []
    label, start = "", 0
    for number, line in enumerate(lines):
        if match := re.match(r"(\.?\w+):", line):
            label, start = match[1], number
        elif label and re.search(rf"\s(?:b|j)\S*\s.*{re.escape(label)}\b", line):
            loops.append(lines[start : number + 1])
    return loops


def count(loop: list[str], pattern: str) -> int:
    """Return the number of lines with a pattern."""
    return sum(bool(re.search(pattern, line)) for line in loop)


def spilled(loop: list[str]) -> list[str]:
    """Return the lines that access the stack."""
    return [line for line in loop if _SPILL.search(line)]
