"""Names that are probably slips, which the language takes for indices.

In: a statement's value, its indices. Out: for each index that looks like another one, which that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from felixlike.tc.program import Index, Read, Value, walk


def slips(value: Value, left: tuple[str, ...], reduced: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(index, the other that was probably meant): those that are summed over, and read by one access alone."""
    reads = [read for read in walk(value) if isinstance(read, Read)]
    for name in reduced:
        users = sum(any(isinstance(p, Index) and p.name == name for p in walk(*r.subscripts)) for r in reads)
        other = _slip(name, (*left, *(r for r in reduced if r != name)))
        if users == 1 and other:
            yield name, other


def _slip(name: str, others: Iterable[str]) -> str:
    """Another name that one was probably meant to be: the same with a letter doubled, or in the other case."""
    for other in others:
        doubled = len(name) == len(other) + 1 and any(
            name == other[: i + 1] + other[i] + other[i + 1 :] for i in range(len(other))
        )
        if doubled or (name != other and name.casefold() == other.casefold()):
            return other
    return ""
