"""Smooth programs on disk, keyed by the formulas, the rules and the versions that made them.

In: expressions. Out: a stored `SmoothGraph` or None. One JSON file an entry under the user's cache directory; anything
unreadable counts as absent, and failing to write is no error: a cache may always be deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import platformdirs

from felixlike.algebra.expression import Expr, Op
from felixlike.algebra.traversal import topological
from felixlike.smooth.graph import InvalidGraph, SmoothGraph
from felixlike.smooth.rules import VERSION, program


def cache_key(roots: Sequence[Expr], shifted: frozenset[str]) -> str:
    """The same for equal formulas in every process, whatever else it made before."""
    known: dict[Expr, str] = {}
    for node in topological(roots):
        known[node] = _digest(repr((node.op.name, *_parts(node, [known[a] for a in node.args]))))
    rules = (VERSION, metadata.version("egglog"), program(), sorted(shifted))
    return _digest(repr((rules, [known[root] for root in roots])))


def _parts(node: Expr, args: list[str]) -> tuple[object, ...]:
    """What a node is made of. Terms of sums and products stand in the order of their creation, which differs between
    processes; here they are sorted."""
    match node.op:
        case Op.ADD:
            return node.payload[0], sorted(zip(args, node.payload[1:], strict=True))
        case Op.MUL:
            return (sorted(zip(args, node.payload, strict=True)),)
        case Op.MIN | Op.MAX:
            return (sorted(args),)
        case _:
            return node.payload, args


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=24).hexdigest()


def folder() -> Path:
    """Where entries live."""
    return Path(platformdirs.user_cache_dir("felixlike")) / "smooth"


def load(key: str) -> SmoothGraph | None:
    """The entry, or None."""
    try:
        return SmoothGraph.from_json(json.loads((folder() / f"{key}.json").read_text()))
    except (OSError, ValueError, InvalidGraph):
        return None


def store(key: str, graph: SmoothGraph) -> None:
    """Write an entry, whole or not at all."""
    with contextlib.suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder(), suffix=".part")
        with os.fdopen(handle, "w") as file:
            json.dump(graph.to_json(), file)
        os.replace(name, folder() / f"{key}.json")
