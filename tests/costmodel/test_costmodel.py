"""The cost model learns an order, ignores empty rows, and loads weights without running code."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from felixlike.costmodel import (
    CostModel,
    Dataset,
    InvalidWeights,
    Network,
    Training,
    load,
    load_weights,
    read_card,
    save_weights,
)
from felixlike.costmodel.boosted_trees import Trees
from felixlike.costmodel.loss import best_loss, loss, ranking_loss, regression_loss
from felixlike.costmodel.summary import per_operation
from felixlike.costmodel.train import train
from felixlike.costmodel.weights import FORMAT
from felixlike.errors import InvalidOption
from felixlike.features import NAMES, VERSION, FeatureArray


def _samples(count: int, seed: int) -> tuple[FeatureArray, list[float]]:
    """Return features and times. The first two columns of both stores decide the time."""
    rng = np.random.default_rng(seed)
    features = np.ones((count, 2, len(NAMES)))
    features[:, :, :8] = rng.integers(1, 2000, size=(count, 2, 8))
    seconds = 1e-3 * np.sqrt(features[:, :, 0]).prod(axis=1) / np.sqrt(features[:, :, 1].sum(axis=1))
    return features, seconds.tolist()


def test_the_version_depends_on_the_weights() -> None:
    model = CostModel(seed=1)
    assert model.version() == CostModel(seed=1).version() != CostModel(seed=2).version()
    before = model.version()
    model.remember("t", *_samples(8, seed=0))
    model.refresh("t", options=Training(steps=1))
    assert model.version() != before


def test_training_learns_the_order() -> None:
    model = CostModel(seed=1)
    assert not model.trained
    features, seconds = _samples(256, seed=0)
    model.remember("t", features, seconds)
    first = model.refresh("t", options=Training(steps=1))
    last = model.refresh("t", options=Training(steps=300, samples=128))
    assert last < 0.6 * first
    unseen, truth = _samples(200, seed=1)
    order = np.corrcoef(model.predict(unseen), -np.log(truth))[0, 1]
    assert order > 0.8


def test_the_same_seed_learns_the_same_weights() -> None:
    features, seconds = _samples(64, seed=3)
    predictions = []
    for _ in range(2):
        model = CostModel(seed=5)
        model.remember("t", features, seconds)
        model.refresh(options=Training(steps=5))
        predictions.append(model.predict(features))
    np.testing.assert_array_equal(predictions[0], predictions[1])


def test_rows_of_zeros_are_ignored() -> None:
    network = Network(seed=0)
    features = torch.rand(3, 2, len(NAMES))
    padded = torch.nn.functional.pad(features, (0, 0, 0, 2))
    torch.testing.assert_close(network(features), network(padded))


def test_scores_are_differentiable() -> None:
    features = torch.rand(4, 2, len(NAMES), dtype=torch.float64, requires_grad=True)
    CostModel().score(features).sum().backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None
    assert features.grad.abs().sum() > 0


def test_labels_are_relative_to_the_best_and_failures_are_slowest() -> None:
    dataset = Dataset()
    dataset.add("t", np.ones((4, 1, len(NAMES))), [2e-3, 1e-3, math.inf, 1.0])
    torch.testing.assert_close(dataset.samples("t").labels(), torch.tensor([-math.log(2), 0.0, -4.0, -4.0]))
    assert len(dataset) == 4
    assert dataset.tasks() == ("t",)


def test_losses_ignore_a_constant_and_prefer_the_right_order() -> None:
    labels = torch.tensor([[0.0, -1.0, -2.0]])
    right, wrong = torch.tensor([[[0.1, -0.9, -1.9]]]), torch.tensor([[[-1.9, -0.9, 0.1]]])
    for part in (loss, ranking_loss, regression_loss, best_loss):
        assert part(right, labels) < part(wrong, labels)
        torch.testing.assert_close(part(right, labels), part(right + 7, labels))


def test_losses_ignore_absent_samples() -> None:
    labels, scores = torch.tensor([[0.0, -1.0]]), torch.tensor([[[0.3, -0.2]]])
    more, present = torch.tensor([[0.0, -1.0, -3.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    for part in (loss, ranking_loss, regression_loss, best_loss):
        padded = torch.nn.functional.pad(scores, (0, 1), value=9.0)
        torch.testing.assert_close(part(padded, more, present), part(scores, labels))


def test_training_without_samples_returns_nan() -> None:
    assert math.isnan(train(Network(), Dataset(), np.random.default_rng(0)))


def test_weights_round_trip_through_a_file(tmp_path: Path) -> None:
    network = Network(seed=3, members=2, width=32)
    save_weights(network, tmp_path / "w.pt", {"data": "0123", "unseen": {"rank": 0.5}})
    loaded = load_weights(tmp_path / "w.pt")
    features = torch.rand(2, 2, len(NAMES))
    torch.testing.assert_close(network(features), loaded(features))
    assert load("cpu", tmp_path / "w.pt").pretrained
    assert read_card(tmp_path / "w.pt") == {"data": "0123", "unseen": {"rank": 0.5}}


def _with_trees(threshold: float = 5.0) -> Network:
    """Return a network with one tree that predicts ±3 by the first column."""
    network = Network(seed=3, members=2, width=16)
    network.trees = Trees(
        feature=np.array([0, -1, -1], dtype=np.int16),
        threshold=np.array([threshold, 0, 0], dtype=np.float32),
        left=np.array([1, 0, 0], dtype=np.int32),
        right=np.array([2, 0, 0], dtype=np.int32),
        value=np.array([0, 3, -3], dtype=np.float32),
        roots=np.array([0], dtype=np.int32),
        base=0.0,
        depth=1,
    )
    return network


def test_trees_round_trip_through_a_file_and_are_half_of_an_exact_score(tmp_path: Path) -> None:
    save_weights(_with_trees(), tmp_path / "w.pt")
    network = load_weights(tmp_path / "w.pt")
    logs = torch.rand(32, 2, len(NAMES), generator=torch.Generator().manual_seed(0)) * 8
    first = logs[:, :, 0].double().expm1().sum(dim=1).log1p()
    assert set((first <= 5.0).tolist()) == {False, True}
    expected = torch.where(first <= 5.0, 3.0, -3.0).to(logs.dtype)
    torch.testing.assert_close(network.exact(logs), 0.5 * (network(logs).detach() + expected))
    model = load("cpu", tmp_path / "w.pt")
    features = np.expm1(logs.numpy().astype(np.float64))
    np.testing.assert_allclose(model.predict(features), network.exact(logs).mean(dim=0), rtol=1e-4, atol=1e-5)
    assert network.exact(logs[:0]).shape == (2, 0)


def test_the_version_depends_on_the_trees(tmp_path: Path) -> None:
    versions = []
    for threshold in (5.0, 6.0):
        save_weights(_with_trees(threshold), tmp_path / "w.pt")
        versions.append(load("cpu", tmp_path / "w.pt").version())
    assert versions[0] != versions[1]


@pytest.mark.parametrize("broken", [{"feature": np.array([9999, -1, -1], dtype=np.int16)}, {"base": float("nan")}])
def test_bad_trees_are_errors(broken: dict[str, Any], tmp_path: Path) -> None:
    network = _with_trees()
    assert network.trees is not None
    network.trees = replace(network.trees, **broken)
    save_weights(network, tmp_path / "w.pt")
    with pytest.raises(InvalidWeights, match="for another network"):
        load("cpu", tmp_path / "w.pt")


class _Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("felixlike-was-here"),))


@pytest.mark.parametrize(
    "kind", ["absent", "text", "pickle", "truncated", "other format", "other version", "other features", "nan", "huge"]
)
def test_bad_weights_are_errors(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "w.pt"
    words = {
        "absent": "there is no such file",
        "text": "no file of weights",
        "pickle": "no file of weights",
        "truncated": "no file of weights, or damaged",
        "other format": "of another format",
        "other version": f"for features of version {VERSION - 1}, these are version {VERSION}",
        "nan": "no numbers",
        "huge": "for another network",
        "other features": "for other features",
    }[kind]
    if kind == "text":
        path.write_text("hello")
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(_Evil()))
    elif kind == "other format":
        torch.save({"format": 99}, path)
    elif kind == "other features":
        torch.save({"format": FORMAT, "features": VERSION, "columns": ["x"], "state": {}}, path)
    elif kind != "absent":
        network = Network(members=1, width=8)
        if kind == "nan":
            network.state_dict()["head.bias"].fill_(float("nan"))
        save_weights(network, path)
        stored = torch.load(path, weights_only=True)
        torch.save(stored | {"other version": {"features": VERSION - 1}, "huge": {"width": 10**9}}.get(kind, {}), path)
        if kind == "truncated":
            path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(InvalidWeights, match=words):
        load("cpu", path)
    assert not (tmp_path / "felixlike-was-here").exists()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"target": "abacus"}, InvalidOption, r"'abacus' is not a kind of target\. use one of cpu, cuda"),
        ({"target": None}, InvalidOption, "None is not a kind of target"),
        ({"seed": -1}, InvalidOption, "costmodel.load: expected seed to be .*, got -1"),
        ({"seed": 2**70}, InvalidOption, f"expected seed to be .*, got {2**70}"),
        ({"path": 5}, InvalidWeights, r"weights: 5 is not a path\. pass a str.*, or None for those shipped"),
        ({"path": ""}, InvalidWeights, "'' is not a path"),
    ],
)
def test_options_of_loading_are_checked(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        load(**options)


def test_counts_per_operation_do_not_depend_on_the_workload_size() -> None:
    rng = np.random.default_rng(0)
    features = rng.uniform(10.0, 1e6, size=(5, 3, len(NAMES)))
    rows, larger = (per_operation(np.log1p(f).astype(np.float32)) for f in (features, 1000.0 * features))
    assert rows.shape == (5, 2 * len(NAMES) + 1)
    np.testing.assert_allclose(rows[:, : len(NAMES)], larger[:, : len(NAMES)], atol=1e-3)
    np.testing.assert_allclose(larger[:, -1] - rows[:, -1], np.log(1000.0), atol=1e-3)
    operations = features[..., [i for i, name in enumerate(NAMES) if name.startswith("float_")]].sum(axis=-1)
    busiest = features[np.arange(5), operations.argmax(axis=1)]
    np.testing.assert_allclose(rows[:, len(NAMES) : -1], np.log1p(busiest), rtol=1e-5)
