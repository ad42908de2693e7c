"""The cache of smooth programs: keys, damaged entries, missing entries."""

from __future__ import annotations

from pathlib import Path
from weakref import WeakValueDictionary

import pytest

from felixlike.errors import StorageWarning
from felixlike.smooth import cache, saturate
from felixlike.symbolic.expr import expression as ex
from felixlike.symbolic.expr.comparison import at_least, maximum

A, B = ex.var("a", 1, 64), ex.var("b", 1, 64)
NONE: frozenset[str] = frozenset()


@pytest.fixture
def folder(own_cache: Path) -> Path:
    return own_cache / "smooth"


def test_stored_graphs_are_loaded(folder: Path) -> None:
    graph = saturate([A * B])
    key = cache.cache_key([A * B], NONE)
    assert cache.load(key) is None
    cache.store(key, graph)
    assert cache.load(key) == graph
    assert [p.suffix for p in folder.iterdir()] == [".json"]


def test_keys_depend_on_formulas_and_bounds() -> None:
    key = cache.cache_key([A * B], NONE)
    assert key == cache.cache_key([B * A], NONE)
    assert key != cache.cache_key([A * B + 1], NONE)
    assert key != cache.cache_key([A * ex.var("b", 1, 32)], NONE)
    assert key != cache.cache_key([A * B], frozenset({"a"}))


def test_keys_do_not_depend_on_the_order_of_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms are ordered by their creation, which may differ in another process."""
    keys = []
    for first in ("abc", "cab"):
        monkeypatch.setattr(ex, "_nodes", WeakValueDictionary())
        created = [ex.var(name, 1, 64) for name in first]
        a, b, c = sorted(created, key=lambda v: v.name)
        sum_ = (a * b + 2 * c - 3) * at_least(b - c, 1)
        keys.append(cache.cache_key([sum_, maximum(a * c, b * b), ex.floordiv(a, b)], NONE))
    assert keys[0] == keys[1]
    assert keys[0] != cache.cache_key([sum_, maximum(a * c, b * b), ex.floordiv(b, a)], NONE)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"nodes": [], "roots": [3], "saturated": true}'])
def test_a_damaged_entry_is_ignored(folder: Path, text: str) -> None:
    folder.mkdir(parents=True)
    (folder / "x.json").write_text(text)
    assert cache.load("x") is None


def test_memory_is_used_if_the_folder_cannot_be_written(own_cache: Path) -> None:
    own_cache.write_text("a file in its place")
    graph = saturate([A])
    with pytest.warns(StorageWarning, match="smooth"):
        cache.store("x", graph)
    assert cache.load("x") == graph
