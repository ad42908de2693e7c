"""A run without measurements reuses the compiled model of an equal run before, and no other one."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.models import Counter
from torch import Tensor, nn

import felixlike as fx
from felixlike._util import cache
from felixlike.errors import StorageWarning, VerificationFailed
from felixlike.frontend import export_model, import_model
from felixlike.frontend.fingerprint import fingerprint
from felixlike.hardware import c_compiler
from felixlike.measure import Measurement, MeasurePool, Status
from felixlike.records import Store
from felixlike.tuning import choice, run


class Net(nn.Module):
    """A small model. slope: a number in its graph."""

    def __init__(self, slope: float = 0.1) -> None:
        super().__init__()
        self.linear, self.slope = nn.Linear(24, 16), slope

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": nn.functional.leaky_relu(self.linear(x), self.slope)}


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(5)
    return Net().eval()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(3, 24, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def folder(own_cache: Path) -> Path:
    return own_cache / "models"


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that are imported, which reused ones are not."""
    models: list[Any] = []

    def counted(model: Any, *args: Any, **named: Any) -> Any:
        models.append(model)
        return import_model(model, *args, **named)

    monkeypatch.setattr("felixlike.tuning.run.import_model", counted)
    return models


def quickly(model: nn.Module, x: Any, **options: Any) -> fx.Optimized:
    """Optimize without measurements."""
    return fx.optimize(model, x, progress=False, **{"trials": 0, **options})


@torch.no_grad()
def _with(net: Net, change: Callable[[Net], object]) -> Net:
    """Return a changed copy."""
    other = copy.deepcopy(net)
    change(other)
    return other


def test_the_second_run_reuses_the_model(net: Net, x: Tensor, folder: Path, imports: list[Any], tmp_path: Path) -> None:
    first, second = quickly(net, x), quickly(copy.deepcopy(net), x)
    assert len(imports) == len([*folder.iterdir()]) == 1
    torch.testing.assert_close(second(x)["y"], net(x)["y"])
    assert torch.equal(second(x)["y"], first(x)["y"])
    report = second.report
    assert "from the cache folder" in report.note
    assert report.reference == "float64"
    assert 0 <= report.error < 1e-5
    assert [task.workload for task in report.tasks] == [task.workload for task in first.report.tasks]
    assert sum(report.spent.values()) == pytest.approx(report.total_seconds, rel=0.05)
    assert report.spent["reusing"] > 0
    assert report.latency > 0
    second.save(tmp_path / "again.flx")
    assert torch.equal(fx.load(tmp_path / "again.flx")(x)["y"], first(x)["y"])


def test_a_model_whose_checks_took_too_long_is_not_kept(
    net: Net, x: Tensor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as busy:
        busy.setattr(choice, "check_ahead", lambda *_: None)
        busy.setattr(run, "check_ahead", lambda *_: None)
        busy.setattr(choice, "_checked", lambda *_: Measurement(Status.TIMEOUT))
        (task,) = quickly(net, x).report.tasks
        assert task.how == "untuned"
        assert "timeout" in task.note
    (task,) = quickly(net, x).report.tasks
    assert task.how == "unmeasured"


@pytest.mark.parametrize(
    "change",
    [
        lambda net, x: (_with(net, lambda other: other.linear.bias.add_(1e-3)), x, {}),
        lambda net, x: (_with(net, lambda other: setattr(other, "slope", 0.2)), x, {}),
        lambda net, x: (net, x[:2], {}),
        lambda net, x: (net, x, {"seed": 1}),
        lambda net, x: (net, x, {"space": "default"}),
        lambda net, x: (net, (x,), {"precision": "bfloat16"}),
    ],
    ids=["weights", "graph", "sizes", "seed", "space", "precision"],
)
def test_other_models_and_options_are_not_reused(
    net: Net, x: Tensor, folder: Path, imports: list[Any], change: Callable[..., Any]
) -> None:
    quickly(net, x)
    model, inputs, options = change(net, x)
    fast = quickly(model, inputs, **options)
    assert len(imports) == 2
    y = inputs if isinstance(inputs, Tensor) else inputs[0]
    torch.testing.assert_close(fast(y)["y"], model(y)["y"], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("damage", ["torn", "edited", "empty"])
def test_damaged_entries_count_as_absent(net: Net, x: Tensor, folder: Path, imports: list[Any], damage: str) -> None:
    quickly(net, x)
    (file,) = folder.iterdir()
    content = file.read_bytes()
    match damage:
        case "torn":
            file.write_bytes(content[: len(content) // 2])
        case "edited":
            middle = content.index(b"\x7fELF") + 64
            file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        case "empty":
            file.write_bytes(b"")
    fast = quickly(net, x)
    assert len(imports) == 2
    torch.testing.assert_close(fast(x)["y"], net(x)["y"])


class Wide(nn.Module):
    """A model whose weights are stored apart from the code: 2.6 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(640, 768), nn.Linear(768, 256)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x).relu())
        return y


@pytest.fixture(scope="module")
def wide() -> Wide:
    torch.manual_seed(6)
    return Wide().eval()


@pytest.fixture(scope="module")
def row() -> Tensor:
    return torch.randn(3, 640, generator=torch.Generator().manual_seed(2))


def test_models_with_large_weights_are_reused(
    wide: Wide, row: Tensor, folder: Path, imports: list[Any], tmp_path: Path
) -> None:
    first, second = quickly(wide, row), quickly(copy.deepcopy(wide), row)
    assert len(imports) == 1
    assert torch.equal(second(row), first(row))
    torch.testing.assert_close(second(row), wide(row))
    (file,) = folder.iterdir()
    assert file.stat().st_size > sum(weight.nbytes for weight in wide.parameters())
    second.save(tmp_path / "again.flx")
    assert torch.equal(fx.load(tmp_path / "again.flx")(row), first(row))


def test_damaged_weights_are_not_used(wide: Wide, row: Tensor, folder: Path, imports: list[Any]) -> None:
    quickly(wide, row)
    (file,) = folder.iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1  # in the weights, which take nearly all of the file
    file.write_bytes(content)
    fast = quickly(wide, row)
    assert len(imports) == 2
    torch.testing.assert_close(fast(row), wide(row))


@pytest.mark.parametrize("limit", ["cache", "disk"])
def test_models_above_the_limit_are_not_kept(
    wide: Wide, row: Tensor, folder: Path, imports: list[Any], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """They are half of the cache, and a quarter of the disk's free space."""
    size = sum(weight.nbytes for weight in wide.parameters())
    if limit == "cache":
        monkeypatch.setattr(cache, "MOST_BYTES", size)
    else:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * size))
    for _ in range(2):
        torch.testing.assert_close(quickly(wide, row)(row), wide(row))
    assert len(imports) == 2
    assert not [*folder.iterdir()]


@pytest.mark.skipif(c_compiler() is None, reason="linking needs a C compiler")
def test_other_weights_use_the_machine_code_of_the_first_ones(
    wide: Wide,
    row: Tensor,
    folder: Path,
    imports: list[Any],
    reused: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is checked alone or compiled again, except kernels that read the input; the answers are compared."""
    quickly(wide, row)
    monkeypatch.setattr(MeasurePool, "checks", lambda *_: pytest.fail("the schedules are known"))
    reused.clear()
    other = Wide().eval()
    fast = quickly(other, row)
    assert len(imports) == 2
    assert len(reused) == 1
    torch.testing.assert_close(fast(row), other(row))
    assert not torch.allclose(other(row), wide(row))
    assert fast.report.reference == "float64"
    assert len([*folder.iterdir()]) == 2


def test_files_that_others_could_have_written_are_not_loaded(
    net: Net, x: Tensor, folder: Path, imports: list[Any]
) -> None:
    quickly(net, x)
    (file,) = folder.iterdir()
    file.chmod(0o666)
    with pytest.warns(StorageWarning, match="other users may write to it"):
        quickly(net, x)
    assert len(imports) == 2


def test_a_reused_model_is_compared_with_the_original(net: Net, x: Tensor, folder: Path) -> None:
    quickly(net, x)
    (entry,) = folder.iterdir()
    wrong = _with(net, lambda other: other.linear.weight.mul_(2))
    quickly(wrong, x)
    (other,) = set(folder.iterdir()) - {entry}
    entry.write_bytes(other.read_bytes())  # not what the key says
    with pytest.raises(VerificationFailed):
        quickly(net, x)


def test_measured_schedules_decide_over_kept_models(
    net: Net, x: Tensor, folder: Path, imports: list[Any], tmp_path: Path
) -> None:
    quickly(net, x)
    store = tmp_path / "runs.sqlite"
    fx.optimize(net, x, trials=2, store=store, progress=False)
    with Store(store) as opened:
        assert opened.count()
    again = quickly(net, x, store=store)
    assert len(imports) == 3
    assert {task.how for task in again.report.tasks} == {"measured"}


def test_models_of_measured_schedules_are_reused_until_there_is_a_faster_one(
    net: Net, x: Tensor, folder: Path, imports: list[Any], tmp_path: Path
) -> None:
    file = tmp_path / "runs.sqlite"
    fx.optimize(net, x, trials=2, store=file, progress=False)
    first, second = quickly(net, x, store=file), quickly(net, x, store=file)
    assert len(imports) == 2
    assert {task.how for task in first.report.tasks} == {task.how for task in second.report.tasks} == {"measured"}
    torch.testing.assert_close(second(x)["y"], net(x)["y"])
    task = fx.extract_tasks(net, x)[0]
    with Store(file) as store:
        (record,) = store.fastest(task, 1)
        store.append(task, replace(record, measurement=replace(record.measurement, seconds=1e-9)))
    third = quickly(net, x, store=file)
    assert len(imports) == 3
    assert third.report.tasks[0].seconds == 1e-9


def test_runs_that_measure_or_may_run_out_of_time_are_not_kept(net: Net, x: Tensor, folder: Path) -> None:
    fx.optimize(net, x, trials=1, progress=False)
    quickly(net, x, seconds=60)
    assert not folder.exists()


def test_models_that_change_in_place_are_not_kept(folder: Path, x: Tensor) -> None:
    for _ in range(2):
        fast = quickly(Counter(), x)
        fast(x)
        assert fast.state["count"] == 1
    assert not folder.exists()


def test_a_reused_model_has_the_tolerance_of_this_run(
    folder: Path, imports: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error, and the places of its largest outputs, are those of this run's examples."""
    monkeypatch.setenv("FELIXLIKE_DEVICE", "zen5")  # its products of pairs run on any processor
    torch.manual_seed(0)
    model = nn.Linear(256, 64).eval()
    with torch.no_grad():
        model.weight[1:] = model.weight[:1] + 1e-3 * torch.randn(63, 256)  # nearly equal outputs
        model.bias.zero_()
    mild, hard = torch.zeros(32, 256), torch.randn(32, 256)
    options: dict[str, Any] = {"precision": "bfloat16", "tolerance": 1e-4}
    first = quickly(model, mild, **options)
    assert {task.precision for task in first.report.tasks} == {"bfloat16"}
    again = quickly(model, mild, **options)
    assert len(imports) == 1
    assert again.report.error == first.report.error
    exact = quickly(model, hard, **options)
    assert len(imports) == 2
    assert {task.precision for task in exact.report.tasks} == {"float32"}
    assert exact.report.error <= 1e-4
    loose = {**options, "tolerance": 1e-1}
    changed = [quickly(model, x, **loose).report.changed for x in (mild, hard)]
    assert len(imports) == 3
    assert changed[0] == 0 < changed[1]


def test_sizes_alone_suffice_for_floats(net: Net, folder: Path, imports: list[Any]) -> None:
    quickly(net, ((3, 24),))
    fast = quickly(net, ((3, 24),))
    assert len(imports) == 1
    assert fast.report.reference == "float64"


class Viewed(nn.Module):
    """A model whose result depends on what follows an equal graph. parts: how the result is nested."""

    def __init__(self, parts: type) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x: Tensor) -> Any:
        return self.parts([x + 1, x * 2])


def test_fingerprints_tell_models_apart(net: Net, x: Tensor) -> None:
    strided = torch.randn(24, 3).T
    models = [
        (net, x),
        (Net(0.2), x),
        (net, x.double()),
        (net, strided),
        (Viewed(tuple), x),
        (Viewed(list), x),
        (_with(net, lambda other: other.linear.weight.mul_(1 + 2**-20)), x),
    ]
    prints = [fingerprint(export_model(model.to(y.dtype), y)) for model, y in models]
    net.float()
    assert None not in prints
    assert len(set(prints)) == len(models)
    assert fingerprint(export_model(copy.deepcopy(net), torch.from_numpy(np.zeros((3, 24), np.float32)))) == prints[0]


@torch.library.custom_op("felixlike_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    """Double a tensor."""
    return x * 2


twice.register_fake(lambda x: torch.empty_like(x))


class Custom(nn.Module):
    """A model that calls an operator of this file."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = twice(x)
        return y + 1


def test_operators_of_users_have_no_fingerprint(x: Tensor) -> None:
    assert fingerprint(export_model(Custom(), x)) is None
