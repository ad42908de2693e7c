"""Mapping options: hints about how a comprehension is to be computed.

In: what the original has for its polyhedral mapper. Out: `Options`, checked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from felixlike._util.wording import choose_from, shown
from felixlike.errors import InvalidOption

_FUSIONS = ("Max", "Preserve3Coincident", "Min")


@dataclass(frozen=True, slots=True)
class Options:
    """Hints, each method giving options with one more: Options().tile(32, 32).unroll(8).

    A hint fixes the choices that it names as far as a schedule has them; what it does not name is searched."""

    tiles: tuple[int, ...] = ()
    unrolled: int | None = None
    blocks: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    fusion: str = "Max"

    def tile(self, *sizes: int) -> Options:
        """Sizes of the tiles of the outermost dimensions of outputs, outermost first.  Raises InvalidOption."""
        return replace(self, tiles=_positive("tile", sizes))

    def unroll(self, factor: int) -> Options:
        """Iterations of inner loops that are written out.  Raises InvalidOption."""
        return replace(self, unrolled=_positive("unroll", (factor,))[0])

    def map_to_blocks(self, *sizes: int) -> Options:
        """Blocks of a GPU's grid, one to three numbers.  Raises InvalidOption."""
        return replace(self, blocks=_positive("map_to_blocks", sizes, most=3))

    def map_to_threads(self, *sizes: int) -> Options:
        """Threads of a block, one to three numbers.  Raises InvalidOption."""
        return replace(self, threads=_positive("map_to_threads", sizes, most=3))

    def fuse(self, strategy: str) -> Options:
        """ "Max", "Preserve3Coincident": statements share functions; "Min": each has its own.  Raises InvalidOption."""
        if strategy not in _FUSIONS:
            raise InvalidOption(
                f"{shown(strategy)} is no strategy of fusion", where="fuse", remedy=choose_from(strategy, _FUSIONS)
            )
        return replace(self, fusion=strategy)

    @property
    def hints(self) -> bool:
        """Whether schedules are hinted at."""
        return bool(self.tiles or self.unrolled or self.blocks or self.threads)

    @property
    def fuses(self) -> bool:
        """Whether statements may share functions."""
        return self.fusion != "Min"


def _positive(name: str, sizes: tuple[int, ...], *, most: int = 8) -> tuple[int, ...]:
    if not 0 < len(sizes) <= most:
        raise InvalidOption(f"{len(sizes)} numbers are given", where=name, remedy=f"give 1 to {most}")
    for size in sizes:
        if type(size) is not int or size < 1:
            raise InvalidOption(f"{shown(size)} is no positive integer", where=name, remedy="give positive integers")
    return sizes
