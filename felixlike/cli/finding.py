"""What a check of `felixlike doctor` says."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """name: what was looked at.  value: what was found.  problem: what is wrong, empty if nothing.
    remedy: what to do.  fatal: whether felixlike cannot work with it."""

    name: str
    value: str
    problem: str = ""
    remedy: str = ""
    fatal: bool = True


def findings_text(findings: Sequence[Finding], *, width: int | None = None) -> str:
    """A line for each finding, and what is wrong below; lines that are too wide go on indented."""
    from felixlike.report.layout import entry

    names = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for finding in findings:
        mark = "ok" if not finding.problem else "PROBLEM" if finding.fatal else "note"
        said = [finding.value]
        if finding.problem:
            said.append(f"{finding.problem}. {finding.remedy}".rstrip())
        lines += entry(f"{mark:8}{finding.name}", "\n".join(said), width, column=8 + names + 2)
    return "\n".join(lines)
