"""Find index names that are probably misspelled.

Input: the value and the indices of a statement. Output: suspicious indices, each with the name probably meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from felixlike.tc.program import Index, Read, Value, walk


def slips(value: Value, left: tuple[str, ...], reduced: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (index, name probably meant) for reduced indices that a single access reads."""
    reads = [read for read in walk(value) if isinstance(read, Read)]
    for name in reduced:
        users = sum(any(isinstance(p, Index) and p.name == name for p in walk(*r.subscripts)) for r in reads)
        other = _slip(name, (*left, *(r for r in reduced if r != name)))
        if users == 1 and other:
            yield name, other


def _slip(name: str, others: Iterable[str]) -> str:
    """Return another name that equals `name` but for one doubled letter or for case, else ""."""
    for other in others:
        doubled = len(name) == len(other) + 1 and any(
            name == other[: i + 1] + other[i] + other[i + 1 :] for i in range(len(other))
        )
        if doubled or (name != other and name.casefold() == other.casefold()):
            return other
    return ""
