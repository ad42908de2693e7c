"""Mapping options: hints for how a comprehension is scheduled.

Input: the options that the original has for its polyhedral mapper. Output: checked `Options`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from felixlike._util.wording import choose_from, shown
from felixlike.errors import InvalidOption

_FUSIONS = ("Max", "Preserve3Coincident", "Min")

_MOST_STATEMENTS = 1000
"""Most statements in a group. Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Options:
    """Mapping hints. Each method returns new options with one more hint: Options().tile(32, 32).unroll(8).

    A hint fixes a choice if the schedule has it. All other choices are searched.

    Attributes:
        tiles: Tile sizes of the outermost output dimensions, in elements.
        unrolled: Iterations of inner loops to unroll, or None.
        blocks: GPU grid size, in blocks for each dimension.
        threads: GPU block size, in threads for each dimension.
        fusion: "Max", "Preserve3Coincident" or "Min"; None for felixlike's own rules.
        fused: Groups of statements to fuse, by their numbers from 1.
        shared: Whether tiles of inputs are copied to the shared memory of a GPU's block, None for either.
        private: Whether sums are kept in a GPU thread's own memory, None for either.
        shared_bytes: Upper limit on shared memory of a block, in bytes, or None.
    """

    tiles: tuple[int, ...] = ()
    unrolled: int | None = None
    blocks: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    fusion: str | None = None
    fused: tuple[tuple[int, ...], ...] = ()
    shared: bool | None = None
    private: bool | None = None
    shared_bytes: int | None = None

    def __post_init__(self) -> None:
        """Raise InvalidOption if an attribute is invalid: the methods are not the only way to set one."""
        for name, where in _SETTERS.items():
            value = getattr(self, name)
            if value is None or value == ():
                continue
            if name in ("tiles", "blocks", "threads"):
                _positive(where, value, most=8 if name == "tiles" else 3)
            elif name in ("unrolled", "shared_bytes"):
                _positive(where, (value,))
            elif name in ("shared", "private"):
                _boolean(where, value)
            elif name == "fusion":
                _strategy(value)
            else:
                _check_groups(value)
        if self.fused and self.fusion not in (None, "Min"):
            raise InvalidOption(
                f"the fusion strategy {self.fusion} contradicts fuse_statements",
                where="fuse",
                remedy="set one of them",
            )

    def __str__(self) -> str:
        """Return the options that are set, as keys of cached code have them: new attributes leave old keys valid."""
        values = [(attribute.name, getattr(self, attribute.name)) for attribute in fields(self)]
        return f"Options({', '.join(f'{name}={value!r}' for name, value in values if value not in (None, ()))})"

    def tile(self, *sizes: int) -> Options:
        """Set the tile sizes of the outermost output dimensions.

        Args:
            sizes: One to eight positive integers, outermost first, in elements.

        Returns:
            New options.

        Raises:
            InvalidOption: A size is not a positive integer.
        """
        return replace(self, tiles=_positive("tile", sizes))

    def unroll(self, factor: int) -> Options:
        """Set how many iterations of inner loops are unrolled.

        Args:
            factor: A positive integer.

        Returns:
            New options.

        Raises:
            InvalidOption: `factor` is not a positive integer.
        """
        return replace(self, unrolled=_positive("unroll", (factor,))[0])

    def map_to_blocks(self, *sizes: int) -> Options:
        """Set the GPU grid size.

        Args:
            sizes: One to three positive integers, in blocks.

        Returns:
            New options.

        Raises:
            InvalidOption: A size is not a positive integer, or there are more than three.
        """
        return replace(self, blocks=_positive("map_to_blocks", sizes, most=3))

    def map_to_threads(self, *sizes: int) -> Options:
        """Set the GPU block size.

        Args:
            sizes: One to three positive integers, in threads.

        Returns:
            New options.

        Raises:
            InvalidOption: A size is not a positive integer, or there are more than three.
        """
        return replace(self, threads=_positive("map_to_threads", sizes, most=3))

    def use_shared_memory(self, use: bool = True) -> Options:
        """Set whether tiles of inputs are copied to the shared memory of a GPU's block.

        Args:
            use: False for schedules without such copies.

        Returns:
            New options.

        Raises:
            InvalidOption: `use` is not a bool.
        """
        return replace(self, shared=_boolean("use_shared_memory", use))

    def use_private_memory(self, use: bool = True) -> Options:
        """Set whether sums are kept in a GPU thread's own memory, its registers.

        Args:
            use: False for schedules that keep them in global memory.

        Returns:
            New options.

        Raises:
            InvalidOption: `use` is not a bool.
        """
        return replace(self, private=_boolean("use_private_memory", use))

    def max_shared_memory(self, size: int) -> Options:
        """Limit the shared memory of a GPU's block.

        Args:
            size: A positive integer, in bytes.

        Returns:
            New options.

        Raises:
            InvalidOption: `size` is not a positive integer.
        """
        return replace(self, shared_bytes=_positive("max_shared_memory", (size,))[0])

    def fuse(self, strategy: str) -> Options:
        """Set how statements are fused into functions.

        With "Max" and "Preserve3Coincident", statements share a function if isl's schedule has them in one outermost
        loop. Both need `pip install "felixlike[tc]"`.

        Args:
            strategy: "Max" to fuse all dependent statements that can share a loop, "Preserve3Coincident" to fuse only
                where no parallel loop is lost or three are left, "Min" for one function per statement.

        Returns:
            New options.

        Raises:
            InvalidOption: The strategy is unknown, or fuses other statements than `fuse_statements` requested.
        """
        return replace(self, fusion=_strategy(strategy))

    def fuse_statements(self, *numbers: int) -> Options:
        """Fuse these statements into one function. Statements that no call names have a function each.

        A call with concrete sizes raises TCFusionError if isl finds no loop that all of them can share, or if another
        statement has to run between them. It needs `pip install "felixlike[tc]"`.

        Args:
            numbers: Two or more numbers of statements, from 1, as in schedule trees.

        Returns:
            New options.

        Raises:
            InvalidOption: A number is not a positive integer or is named twice, there are fewer than two, or a fusion
                strategy other than "Min" is set.

        Example:
            options = Options().fuse_statements(1, 2).fuse_statements(3, 4)
        """
        group = sorted(_positive("fuse_statements", numbers, most=_MOST_STATEMENTS))
        return replace(self, fused=(*self.fused, tuple(group)))

    @property
    def hints(self) -> bool:
        """Whether there are hints about schedules."""
        return bool(self.tiles or self.unrolled or self.blocks or self.threads or self.memory)

    @property
    def memory(self) -> bool:
        """Whether there are hints about the memory of a GPU."""
        return self.shared is not None or self.private is not None or self.shared_bytes is not None

    def check_target(self, *, on_host: bool) -> None:
        """Raise InvalidOption if the options request memory that a CPU does not have."""
        requests = {
            "use_shared_memory": self.shared,
            "use_private_memory": self.private,
            "max_shared_memory": self.shared_bytes,
        }
        for where, value in requests.items():
            if on_host and value:
                raise InvalidOption(
                    f"a CPU has no {where.split('_')[1]} memory of threads",
                    where=where,
                    remedy="leave it out, or define the comprehension for a GPU; tile() decides what caches hold",
                )

    def started_from(self, start: Options) -> Options:
        """Return options to start from and these, which restrict the search. Raise InvalidOption if they differ."""
        for name, where in _SETTERS.items():
            here, there = getattr(self, name), getattr(start, name)
            if there in (None, ()) or here == there:
                continue
            if name in ("fusion", "fused"):
                reason, remedy = "fusion is not searched", "pass it to define(options=…)"
            elif here in (None, ()):
                continue
            else:
                reason = f"{shown(there)} contradicts {shown(here)} in the options of the definition"
                remedy = "leave it out in one of them"
            raise InvalidOption(reason, where=f"starting_options, {where}", remedy=remedy)
        missing = {name: getattr(self, name) for name in _SETTERS if getattr(start, name) in (None, ())}
        return replace(start, **missing)


_SETTERS = {
    "tiles": "tile",
    "unrolled": "unroll",
    "blocks": "map_to_blocks",
    "threads": "map_to_threads",
    "shared": "use_shared_memory",
    "private": "use_private_memory",
    "shared_bytes": "max_shared_memory",
    "fusion": "fuse",
    "fused": "fuse_statements",
}
"""The method that sets each attribute."""


def _boolean(name: str, value: bool) -> bool:
    """Return the value. Raise InvalidOption unless it is a bool."""
    if not isinstance(value, bool):
        raise InvalidOption(
            f"expected True or False, got {shown(value)}", where=name, remedy=f"for example {name}(True)"
        )
    return value


def _strategy(name: str) -> str:
    """Return the fusion strategy. Raise InvalidOption if it is unknown."""
    if name not in _FUSIONS:
        raise InvalidOption(f"unknown fusion strategy {shown(name)}", where="fuse", remedy=choose_from(name, _FUSIONS))
    return name


def _check_groups(groups: tuple[tuple[int, ...], ...]) -> None:
    """Raise InvalidOption unless each group has two or more statements, none of which is in another group."""
    _check_tuple("fuse_statements", groups)
    before: set[int] = set()
    for numbers in groups:
        every = [*before, *_positive("fuse_statements", numbers, most=_MOST_STATEMENTS)]
        if len(numbers) < 2 or len(set(every)) < len(every):
            raise InvalidOption(
                f"expected two or more statements, each in one group, got {', '.join(map(str, numbers))}",
                where="fuse_statements",
                remedy="for example fuse_statements(1, 2)",
            )
        before |= set(every)


def _check_tuple(name: str, values: object) -> None:
    """Raise InvalidOption unless the values are a tuple, as attributes of options are."""
    if not isinstance(values, tuple):
        raise InvalidOption(f"expected a tuple, got {shown(values)}", where=name, remedy=f"call the method {name}")


def _positive(name: str, sizes: tuple[int, ...], *, most: int = 8) -> tuple[int, ...]:
    """Return the sizes. Raise InvalidOption unless they are 1 to `most` positive integers."""
    _check_tuple(name, sizes)
    if not 0 < len(sizes) <= most:
        raise InvalidOption(
            f"expected 1 to {most} sizes, got {len(sizes)}", where=name, remedy=f"for example {name}(8)"
        )
    for size in sizes:
        if type(size) is not int or size < 1:
            raise InvalidOption(
                f"expected a positive integer, got {shown(size)}", where=name, remedy=f"for example {name}(8)"
            )
    return sizes
