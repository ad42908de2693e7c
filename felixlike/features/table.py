"""Define the columns of a store's features: names, units and meanings.

`COLUMNS` gives the order of every feature array. The kinds of columns follow TVM's PerStoreFeature and Felix §3.3,
changed for a smooth search: every buffer keeps its slot, fused loops keep their identity, and index arithmetic is not
counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from felixlike.symbolic.program import Operation

SLOTS = 5
"""Number of buffers described per store: the written one first, then those read, in the order of the statement."""


@dataclass(frozen=True, slots=True)
class Column:
    """Describe one feature of a store.

    Attributes:
        name: The column's name.
        unit: "count", "bytes", "elements", "FLOP", or "flag" (0 or 1).
        meaning: A description in words.
    """

    name: str
    unit: str
    meaning: str


_LOOPS = (
    Column("vector_extent", "count", "iterations of the vector loop; 1 without one"),
    Column("vector_none", "flag", "no vector loop of extent > 1"),
    Column("parallel_extent", "count", "iterations of the parallel loop; 1 without one"),
    Column("parallel_none", "flag", "no parallel loop of extent > 1"),
    Column(
        "unroll_steps",
        "count",
        "largest number of unrolled steps noted on the nest, and the steps of unrolled loops; 0 without",
    ),
)

_BUFFER = (
    Column("read", "flag", "the buffer is only read"),
    Column("write", "flag", "the buffer is only written"),
    Column("read_write", "flag", "the buffer is read and written"),
    Column("bytes", "bytes", "accessed in all iterations, repeats included"),
    Column("unique_bytes", "bytes", "size of the box of elements touched in all iterations"),
    Column("lines", "count", "cache lines accessed in all iterations, repeats included"),
    Column("unique_lines", "count", "cache lines of the box of elements touched"),
    Column("reuse_loop", "flag", "the innermost reuse is by a loop that does not move the access"),
    Column("reuse_serial", "flag", "the innermost reuse is of what an earlier store in the same loop touched"),
    Column("reuse_none", "flag", "no reuse"),
    Column("reuse_distance_iterations", "count", "iterations between uses; 0 without reuse"),
    Column("reuse_distance_bytes", "bytes", "bytes touched between uses; 0 without reuse"),
    Column("reuse_count", "count", "uses by the reusing loop; 0 without reuse"),
    Column("bytes_per_reuse", "bytes", "bytes ÷ reuse_count, doubled without reuse"),
    Column("unique_bytes_per_reuse", "bytes", "unique_bytes ÷ reuse_count, doubled without reuse"),
    Column("lines_per_reuse", "count", "lines ÷ reuse_count, doubled without reuse"),
    Column("unique_lines_per_reuse", "count", "unique_lines ÷ reuse_count, doubled without reuse"),
    Column("stride", "elements", "step of the innermost loop of extent > 1; 0 where it does not move the access"),
    Column("thread_stride", "elements", "between what a GPU's thread and the next touch; 0 for the same, and on CPUs"),
)

_TRAFFIC = (
    *(
        Column(f"traffic_{short}", "bytes", f"moved between {long} and what is behind, if what was used last is kept")
        for short, long in (("registers", "registers"), ("l1", "L1"), ("l2", "L2"))
    ),
    Column("moves", "count", "instructions that move the registers' share, vectors by one each"),
)

_ALLOCATION = (
    Column("allocation_bytes", "bytes", "size of the written buffer where it is allocated"),
    Column("allocation_elements", "elements", "its elements times how often it is allocated"),
    Column("allocation_outer", "count", "how often it is allocated"),
    Column("allocation_inner", "count", "iterations of the store per allocation"),
)

_SCOPE = (
    Column("iterations", "count", "how often the store is executed"),
    Column("loops", "count", "loops of extent > 1 around it, fused ones counted once"),
)

_THREADS = (
    Column("block_extent", "count", "thread blocks of the kernel; 1 on CPUs"),
    Column("vthread_extent", "count", "virtual threads: iterations that one thread interleaves; 1 without"),
    Column("thread_extent", "count", "threads of a block; 1 on CPUs"),
    Column("shared_bytes", "bytes", "shared memory of a block, stages of a software pipeline included; 0 without"),
    Column("local_bytes", "bytes", "buffers of a thread's own, in registers if there is room; 0 on CPUs"),
)

COLUMNS: tuple[Column, ...] = (
    *(Column(op.value, "count", "executed in all iterations, index arithmetic left out") for op in Operation),
    *_LOOPS,
    *(Column(f"buffer{slot}_{c.name}", c.unit, c.meaning) for slot in range(SLOTS) for c in _BUFFER),
    *_TRAFFIC,
    *_ALLOCATION,
    *_SCOPE,
    *_THREADS,
)
"""All columns, in the order of a feature array's last dimension."""

NAMES: tuple[str, ...] = tuple(column.name for column in COLUMNS)
"""The columns' names, in the same order."""

VERSION = 3
"""Version of the columns. Increase it when a column is added, removed or redefined: weights fit one version."""
