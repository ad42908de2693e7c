"""Define the result of a check of `felixlike doctor`, and format it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: What was checked.
        value: What was found.
        problem: What is wrong; empty if nothing.
        remedy: What to do.
        fatal: Whether the problem prevents felixlike from working.
    """

    name: str
    value: str
    problem: str = ""
    remedy: str = ""
    fatal: bool = True


def findings_text(findings: Sequence[Finding], *, width: int | None = None) -> str:
    """Return findings as text: a line each, with problems below.

    width: columns of text, longer lines continue indented; None does not wrap.
    """
    from felixlike.report.layout import entry

    names = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for finding in findings:
        mark = "ok" if not finding.problem else "PROBLEM" if finding.fatal else "note"
        parts = [finding.value]
        if finding.problem:
            parts.append(f"{finding.problem}. {finding.remedy}".rstrip())
        lines += entry(f"{mark:8}{finding.name}", "\n".join(parts), width, column=8 + names + 2)
    return "\n".join(lines)
