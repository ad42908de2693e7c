"""Shipped files: weights with cards for CPU and CUDA, and training data without the workloads of the benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.models import bert, mlp, mobilenet_v2, resnet18

from benchmarks.subgraphs import LAYERS, SUBGRAPHS
from benchmarks.unseen import _operators, operator
from felixlike import extract_tasks
from felixlike.costmodel import load, read_card
from felixlike.costmodel.weights import shipped
from felixlike.errors import StoreError
from felixlike.features import VERSION
from felixlike.frontend import Task, make_task
from felixlike.hardware import resolve_target
from felixlike.training.packed import opened, pack
from felixlike.training.samples import identity
from felixlike.training.workloads import shipped_lines

_DATA = Path(__file__).resolve().parents[2] / "data"
_STORES = sorted(_DATA.glob("*.sqlite.xz"))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_weights_are_shipped_with_a_card(kind: str) -> None:
    path = shipped(kind)
    assert path is not None
    assert load(kind).pretrained
    card = read_card(path)
    assert (card["kind"], card["features"]) == (kind, VERSION)
    assert card["candidates"] > 5000
    assert 0.5 < card["unseen"]["rank"] <= 1.0


def test_stores_are_small_and_their_devices_are_documented() -> None:
    assert len(_STORES) == 6
    assert sum(path.stat().st_size for path in _STORES) < 25e6
    devices = set()
    for path in _STORES:
        with opened(path) as store:
            assert store.count() > 1000
            devices |= {row.device for row in store.summary()}
    assert len(devices) == 4
    assert all(device in (_DATA / "README.md").read_text() for device in ("AMD EPYC", "Intel Xeon", "NVIDIA H100"))


def _benchmark_tasks() -> list[Task]:
    """Return the tasks of the ten subgraphs, the networks and the unseen operators."""
    target = resolve_target("cpu")
    tasks = [make_task(make(), target, name=name) for name, make in SUBGRAPHS.items()]
    for module, inputs in [make() for make in LAYERS.values()] + [operator(name) for name in _operators()]:
        tasks += extract_tasks(module, inputs)
    for network in (resnet18, bert, mobilenet_v2, mlp):
        tasks += extract_tasks(*network())
    return tasks


def test_no_benchmark_task_is_in_the_training_data() -> None:
    heavy = {identity(task) for task in _benchmark_tasks() if task.flops > 1e6}
    assert len(heavy) > 60
    learned = set()
    for line in shipped_lines():
        learned |= {identity(task) for task in extract_tasks(*line.make())}
    assert not heavy & learned


@pytest.mark.parametrize("contents", [b"", b"not packed", b"\xfd7zXZ\x00 cut off"])
def test_damaged_packed_stores_are_errors(contents: bytes, tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite.xz"
    path.write_bytes(contents)
    with pytest.raises(StoreError, match=r"s\.sqlite\.xz"), opened(path):
        pass


def test_packing_keeps_all_records(tmp_path: Path) -> None:
    with opened(_STORES[0]) as store:
        count = store.count()
        assert store.path is not None
        pack(store.path, tmp_path / "again.sqlite.xz")
    with opened(tmp_path / "again.sqlite.xz") as repacked:
        assert repacked.count() == count
