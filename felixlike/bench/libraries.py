"""Find the fastest library for a network, which searches over time are compared with (Felix, Table 1).

Inputs: a network, results of `felixlike bench networks`. Output: its name and its latency; eager PyTorch, timed here,
if the results do not have the network.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from felixlike.bench import page
from felixlike.bench.networks import NETWORKS, SMALL
from felixlike.bench.results import of_this_machine
from felixlike.bench.sides import CHANNELS_LAST, EAGER, baselines
from felixlike.measure.sides.processes import Sides


def best_library(network: str, batch: int, results: Path) -> list[dict[str, Any]]:
    """Return a row with "network", "batch", the library's "name" and the "seconds" of a call; none if all fail.

    Args:
        network: Name of the network.
        batch: Batch size.
        results: JSON file of `felixlike bench networks`. Only sides with float32 and right answers count, and only the
            results of this kind of CPU.

    Raises:
        InvalidOption: The file has other content.
    """
    for row in of_this_machine(results).get("rows", []):
        if page.key(row) == (network, batch) and (fastest := page.fastest_rival(row)) is not None:
            return [{"network": network, "batch": batch, "name": fastest, "seconds": row[fastest]}]
    with Sides() as sides:
        make = partial((NETWORKS | SMALL)[network], batch=batch)
        times = sides.compare(baselines(make, (EAGER, CHANNELS_LAST)))
    if not times:
        return []
    fastest = min(times, key=lambda name: times[name].seconds)
    name = f"{fastest}, timed here"
    return [{"network": network, "batch": batch, "name": name, "seconds": times[fastest].seconds}]
