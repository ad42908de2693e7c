"""What a check of `felixlike doctor` says."""

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
