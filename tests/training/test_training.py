"""Training from a store: reading and skipping samples, splitting, scoring and fitting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import made_up
import numpy as np
import pytest
import torch

from felixlike import records
from felixlike.errors import InvalidOption
from felixlike.measure import Measurement, Status
from felixlike.records import make_record
from felixlike.symbolic import sketches
from felixlike.training.fit import Fit, dataset_of, fit, scorer
from felixlike.training.pipeline import course, data_hash
from felixlike.training.samples import Samples, Workload, operator_of, read
from felixlike.training.scores import Quality, judge, judged, mean_quality, rank_correlation
from felixlike.training.split import fold_of, held_out, without_operator

QUICK = Fit(steps=60, members=1, width=32, check_every=20, samples=32)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store_path = tmp_path_factory.mktemp("stores") / "made-up.sqlite"
    made_up.write(store_path)
    return store_path


@pytest.fixture(scope="module")
def samples(path: Path) -> Samples:
    with records.open(path, read_only=True) as store:
        return read([store])


def test_all_measurements_are_read(path: Path, samples: Samples) -> None:
    with records.open(path, read_only=True) as store:
        assert len(samples) == store.count()
    assert len(samples.workloads) == len(made_up.tasks())
    assert not any(samples.left_out.values())
    for workload, task in zip(samples.workloads, made_up.tasks(), strict=True):
        assert (workload.key, workload.name, workload.kind) == (task.key, task.name, "cpu")
        for part in workload.parts:
            sketch = next(s for s in made_up.known_sketches(task) if s.key == part.sketch)
            np.testing.assert_allclose(made_up.seconds(sketch, part.points), part.seconds)


def test_no_candidate_counts_twice(path: Path, samples: Samples) -> None:
    with records.open(path, read_only=True) as first, records.open(path, read_only=True) as second:
        merged = read([first, second])
    assert len(merged) == len(samples)
    assert data_hash(merged.workloads) == data_hash(samples.workloads)


def test_unusable_records_are_left_out_and_counted(tmp_path: Path) -> None:
    task, single_record_task = made_up.tasks()[:2]
    sketch, single_sketch = sketches(task)[0], sketches(single_record_task)[0]
    points = sketch.sample(8, 0).tolist()
    times = [math.nan, 1e-5, 2e-5, math.inf, 0.0, -1.0]
    with records.open(tmp_path / "odd.sqlite") as store:
        for point, seconds in zip(points, times, strict=False):
            status = Status.OK if seconds < math.inf or math.isnan(seconds) else Status.TIMEOUT
            store.append(task, make_record(task, sketch.key, point, Measurement(status, seconds)), sketch)
        store.append(task, make_record(task, "unknown", (1, 2), Measurement(Status.OK, 1e-5)))
        simulated = Measurement(Status.OK, 1e-5, device="simulated AMD EPYC")
        store.append(task, make_record(task, sketch.key, points[6], simulated), sketch)
        store.append(task, make_record(task, sketch.key, (1, 2), Measurement(Status.OK, 1e-5)), sketch)
        store.append(
            single_record_task,
            make_record(
                single_record_task, single_sketch.key, single_sketch.sample(1, 0)[0], Measurement(Status.OK, 1.0)
            ),
            single_sketch,
        )
        samples_read = read([store])
    (workload,) = samples_read.workloads
    assert sorted(workload.seconds.tolist()) == [1e-5, 2e-5, math.inf]
    assert {reason: count for reason, count in samples_read.left_out.items() if count} == {
        "of a simulated device": 1,
        "no usable time": 3,
        "sketch cannot be read": 1,
        "point of another sketch": 1,
        "of a workload with fewer than two times": 1,
    }


def test_records_of_other_kinds_of_targets_are_left_out(path: Path, samples: Samples) -> None:
    with records.open(path, read_only=True) as store:
        samples_read = read([store], kind="cuda")
    assert not samples_read.workloads
    assert samples_read.left_out["for another kind of target"] == len(samples)


def test_an_empty_store_has_no_workloads() -> None:
    with records.open() as store:
        assert not read([store]).workloads


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("fused_conv2d_add_relu1", "conv2d"),
        ("conv2d_transpose", "conv2d_transpose"),
        ("fused_matmul_add_tir_sigmoid_multiply", "matmul"),
        ("layer_norm", "layer_norm"),
        ("log_softmax", "log_softmax"),
        ("softmax12", "softmax"),
        ("fused_multiply_add_tanh", "elementwise"),
        ("max_pool2d", "max_pool2d"),
    ],
)
def test_the_operator_is_part_of_the_name(name: str, operator: str) -> None:
    assert operator_of(name) == operator


def test_splits_are_by_workload_and_by_operator(samples: Samples) -> None:
    workloads = samples.workloads
    learned, unseen = held_out(workloads, fold=fold_of(workloads[0]))
    assert workloads[0] in unseen
    assert {w.key for w in learned} | {w.key for w in unseen} == {w.key for w in workloads}
    other_device = replace(workloads[0], device="another", key="another")
    assert fold_of(other_device) == fold_of(workloads[0])
    operators = {name: (others, members) for name, others, members in without_operator(workloads)}
    assert set(operators) == {"matmul", "conv1d"}
    assert {w.operator for w in operators["matmul"][0]} == {"conv1d"}
    assert {w.operator for w in operators["matmul"][1]} == {"matmul"}


def test_quality_of_known_orders() -> None:
    seconds = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 8.0, math.inf])
    perfect = judged(-seconds, seconds)
    assert perfect is not None
    assert perfect.rank == pytest.approx(1.0)
    assert (perfect.top_1, perfect.top_5) == (1.0, 1.0)
    assert perfect.median == 1.0 / 3.5
    worst = judged(seconds, seconds)
    assert worst is not None
    assert worst.rank == pytest.approx(-1.0)
    assert (worst.top_1, worst.top_5) == (1 / 8, 1 / 2)
    assert judged(seconds[:4], seconds[:4]) is None
    assert rank_correlation(np.array([1.0, 1.0, 2.0]), np.array([1.0, 1.0, 5.0])) == pytest.approx(1.0)
    assert rank_correlation(np.zeros(3), np.arange(3.0)) == 0.0
    assert math.isnan(mean_quality([]).rank)


def _means(network: torch.nn.Module, workloads: Sequence[Workload]) -> Quality:
    return mean_quality([quality for _, quality in judge(scorer(network), workloads)])  # type: ignore[arg-type]


def test_a_fitted_network_orders_unseen_workloads(samples: Samples) -> None:
    products = [w for w in samples.workloads if w.operator == "matmul"]
    fitted = fit(products[:-2], replace(QUICK, steps=160, trees=0), validation=products[-2:-1])
    assert _means(fitted.network, products[-1:]).rank > 0.8
    assert [step for step, _, _ in fitted.history] == list(range(20, 20 * len(fitted.history) + 1, 20))
    assert fitted.steps in [step for step, _, _ in fitted.history]
    best = max(fitted.history, key=lambda entry: entry[2].rank + entry[2].top_1 + entry[2].top_5)
    assert _means(fitted.network, products[-2:-1]) == best[2]


def test_the_same_seed_fits_the_same_weights(samples: Samples) -> None:
    first, second = (fit(samples.workloads, replace(QUICK, steps=5)).network for _ in range(2))
    for left, right in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


def test_labels_are_relative_to_the_device(samples: Samples) -> None:
    workload = samples.workloads[0]
    slower = replace(
        workload, device="slow", parts=tuple(replace(part, seconds=part.seconds * 10) for part in workload.parts)
    )
    dataset = dataset_of([workload, slower])
    labels = [dataset.samples(key).labels() for key in dataset.tasks()]
    assert len(labels) == 2
    torch.testing.assert_close(labels[0], labels[1])


def test_fitting_without_workloads_is_an_error() -> None:
    with pytest.raises(InvalidOption, match="two measured candidates") as caught:
        fit([])
    assert caught.value.where == "fit"
    assert "felixlike collect" in caught.value.remedy


def test_the_pipeline_evaluates_and_trains_on_all_samples(samples: Samples) -> None:
    lines: list[str] = []
    result = course(samples.workloads, replace(QUICK, steps=20, check_every=10), say=lines.append)
    assert result.card["workloads"] == len(samples.workloads)
    assert result.card["candidates"] == len(samples)
    assert result.card["data"] == data_hash(samples.workloads)
    assert set(result.card["operators"]) == {"matmul", "conv1d"}
    assert result.card["fit"]["steps"] in (10, 20)
    assert "operator never seen" in result.text()
    assert any("held out" in line for line in lines)
