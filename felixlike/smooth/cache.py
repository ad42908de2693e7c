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

from felixlike.smooth.graph import InvalidGraph, SmoothGraph
from felixlike.smooth.rules import VERSION, program
from felixlike.symbolic.expression import Expr, topological


def cache_key(roots: Sequence[Expr], shifted: frozenset[str]) -> str:
    """The same for equal formulas in every process."""
    nodes = topological(roots)
    position = {node: i for i, node in enumerate(nodes)}
    digest = hashlib.sha256()
    for text in (str(VERSION), metadata.version("egglog"), program(), repr(sorted(shifted))):
        digest.update(text.encode())
    for node in nodes:
        digest.update(repr((node.op.name, [position[a] for a in node.args], node.payload)).encode())
    digest.update(repr([position[r] for r in roots]).encode())
    return digest.hexdigest()


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
