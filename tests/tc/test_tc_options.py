"""Test the hints of `Options` and the errors for invalid hints."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import felixlike as fx
from felixlike.errors import InvalidOption
from felixlike.features import NAMES
from felixlike.frontend import Task
from felixlike.hardware import resolve_target
from felixlike.search import Observations, Space
from felixlike.symbolic import Points, Sketch, sketches
from felixlike.tc.call import Given
from felixlike.tc.entry import read
from felixlike.tc.hints import Hinted, Seeded, hinted_pools, nearest_points
from felixlike.tc.instance import imported, instance


def test_hints_accumulate() -> None:
    options = fx.tc.Options().tile(32, 8).unroll(4).map_to_blocks(16).map_to_threads(8, 8).fuse("Min")
    assert (options.tiles, options.unrolled, options.blocks, options.threads) == ((32, 8), 4, (16,), (8, 8))
    assert options.fusion == "Min"
    assert str(options) == "Options(tiles=(32, 8), unrolled=4, blocks=(16,), threads=(8, 8), fusion='Min')"
    assert str(fx.tc.Options().use_shared_memory(False)) == "Options(shared=False)"


def test_invalid_hints_raise() -> None:
    with pytest.raises(InvalidOption, match=r"^tile: .* got 0"):
        fx.tc.Options().tile(32, 0)
    with pytest.raises(InvalidOption, match=r"^map_to_threads: .* 1 to 3 .* got 4"):
        fx.tc.Options().map_to_threads(1, 2, 3, 4)
    with pytest.raises(InvalidOption, match=r"^unroll: .* got 2\.5"):
        fx.tc.Options().unroll(2.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"^fuse: .*'Most'"):
        fx.tc.Options().fuse("Most")
    for attributes, words in (
        ({"tiles": (0,)}, r"^tile: .* got 0"),
        ({"tiles": 32}, r"^tile: expected a tuple, got 32"),
        ({"threads": (1, 1, 1, 1)}, r"^map_to_threads: .* got 4"),
        ({"fusion": "max"}, r"^fuse: .*'max'.*Max"),
        ({"fusion": "Max", "fused": ((1, 2),)}, "^fuse: .* contradicts"),
        ({"fused": ((1, 2), (2, 3))}, "^fuse_statements: .* each in one group"),
        ({"shared": 1}, "^use_shared_memory: .* got 1"),
    ):
        with pytest.raises(InvalidOption, match=words):
            fx.tc.Options(**attributes)


def test_memory_that_a_cpu_lacks_is_refused() -> None:
    program = "def f(float(N) A) -> (O) { O(i) = A(i) }"
    with pytest.raises(InvalidOption, match=r"^use_shared_memory: a CPU has no shared memory"):
        fx.tc.define(program, options=fx.tc.Options().use_shared_memory())
    with pytest.raises(InvalidOption, match=r"^use_private_memory: a CPU has no private memory"):
        fx.tc.define(program, options=fx.tc.Options().use_private_memory())
    with pytest.raises(InvalidOption, match=r"^max_shared_memory: a CPU has no shared memory"):
        fx.tc.define(program).tune(torch.ones(8), starting_options=fx.tc.Options().max_shared_memory(1024))
    kernel = fx.tc.define(program, options=fx.tc.Options().use_shared_memory(False).use_private_memory(False))
    assert kernel(torch.ones(8)).tolist() == [1.0] * 8
    fx.tc.define(program, target="sm_90", options=fx.tc.Options().use_shared_memory().use_private_memory())
    with pytest.raises(InvalidOption, match=r"^use_shared_memory: .* got 1"):
        fx.tc.Options().use_shared_memory(1)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"^max_shared_memory: .* got 0"):
        fx.tc.Options().max_shared_memory(0)


def test_options_to_start_from_must_not_contradict_the_definition() -> None:
    kernel = fx.tc.define("def f(float(N) A) -> (O) { O(i) = A(i) }", options=fx.tc.Options().tile(32))
    with pytest.raises(InvalidOption, match=r"^starting_options, tile: \(16,\) contradicts \(32,\)"):
        kernel.tune(torch.ones(8), starting_options=fx.tc.Options().tile(16))
    with pytest.raises(InvalidOption, match=r"^starting_options, fuse: fusion is not searched"):
        kernel.tune(torch.ones(8), starting_options=[fx.tc.Options(), fx.tc.Options().fuse("Max")])
    with pytest.raises(InvalidOption, match=r"^starting_options: .* got a str"):
        kernel.tune(torch.ones(8), starting_options="naive")  # type: ignore[arg-type]


def test_presets_have_the_numbers_of_tensor_comprehensions() -> None:
    convolution = fx.tc.make_convolution_mapping_options("sm_90")
    assert (convolution.tiles, convolution.unrolled) == ((4, 8, 8, 8), 1)
    assert (convolution.threads, convolution.blocks) == ((4, 16, 4), (256, 256, 256))
    assert (convolution.shared, convolution.private) == (False, False)
    assert fx.tc.make_convolution_mapping_options() == fx.tc.Options().tile(4, 8, 8, 8).unroll(1)
    naive = fx.tc.make_naive_mapping_options("sm_90")
    assert (naive.tiles, naive.threads, naive.blocks) == ((32, 32, 32), (32, 8), (256, 256))
    assert fx.tc.make_mlp_mapping_options("sm_90").fusion == "Max"
    assert fx.tc.make_mlp_mapping_options().fusion is None
    assert fx.tc.make_single_thread_mapping_options("sm_90").threads == (1,)
    assert fx.tc.make_pointwise_mapping_options("sm_90").unrolled == 128
    assert fx.tc.make_group_convolution_mapping_options("sm_90").tiles == (1, 1)


def _task(target: str = "cpu") -> Task:
    program = read("def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }")
    program_instance = instance(program, [Given((64, 128), "float32"), Given((128, 96), "float32")])
    (task,) = imported(program_instance, resolve_target(target)).tasks
    return task


def _nearest(sketch: Sketch, options: fx.tc.Options) -> Points | None:
    return nearest_points(sketch, options, sketch.sample(4096, 0))


def test_hints_fix_the_variables_they_name() -> None:
    sketch = sketches(_task(), space="default")[0]
    names = [variable.name for variable in sketch.variables]
    points = _nearest(sketch, fx.tc.Options().tile(16, 32).unroll(64))
    assert points is not None
    assert len(np.unique(points, axis=0)) > 1
    assert set(64 // points[:, names.index("i0.0")]) == {16}
    assert set(96 // points[:, names.index("i1.0")]) == {32}
    assert set(points[:, names.index("unroll")]) == {64}
    nearest = _nearest(sketch, fx.tc.Options().map_to_blocks(7))
    assert nearest is not None
    assert set(nearest[:, names.index("i0.0")]) == {8}
    assert _nearest(sketch, fx.tc.Options().map_to_threads(32)) is None


def test_memory_options_choose_schedules_of_gpus() -> None:
    space = Space(_task("sm_90"))

    def bytes_of(options: fx.tc.Options, column: str) -> set[float]:
        pools = hinted_pools(space, options, 0)
        features = [space.features(sketch, points[:64]) for sketch, points in pools]
        return {
            float(size) for array in features if array is not None for size in array[:, :, NAMES.index(column)].max(1)
        }

    most = max(bytes_of(fx.tc.Options().use_shared_memory(), "shared_bytes"))
    assert min(bytes_of(fx.tc.Options().use_shared_memory(), "shared_bytes")) > 0
    assert most > 8192
    assert max(bytes_of(fx.tc.Options().max_shared_memory(8192), "shared_bytes")) <= 8192
    assert min(bytes_of(fx.tc.Options().use_private_memory(), "local_bytes")) > 0
    # No schedule does without private memory: then the hint has no effect.
    assert hinted_pools(space, fx.tc.Options().use_private_memory(False), 0) == []


def test_options_to_start_from_come_first_and_do_not_restrict() -> None:
    space = Space(_task(), "default")
    strategy = Seeded([fx.tc.Options().tile(16, 32)], fx.search.Random())
    known, rng = Observations(), np.random.default_rng(0)
    (first, second), (names, *_) = (
        (strategy.propose(space, known, 4, rng), strategy.propose(space, known, 12, rng)),
        ([variable.name for variable in sketch.variables] for sketch in space.sketches),
    )
    assert [candidate.origin for candidate in first] == ["seed"] * 4
    assert [candidate.origin for candidate in second] == ["seed"] * 8 + ["random"] * 4
    assert all(64 // candidate.point[names.index("i0.0")] == 16 for candidate in first)
    for candidate in second[:8]:
        known.add(candidate, 1.0)
    assert {candidate.origin for candidate in strategy.propose(space, known, 6, rng)} == {"random"}


def test_options_keep_the_rounds_of_the_strategy() -> None:
    options, strategy = fx.tc.Options().tile(16, 32), fx.search.Random(trials_per_round=24)
    assert Hinted(options, strategy).trials_per_round == Seeded([options], strategy).trials_per_round == 24


def test_tuning_starts_from_options() -> None:
    kernel = fx.tc.define("def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }")
    a, b = torch.randn(64, 128), torch.randn(128, 96)
    kernel.tune(a, b, trials=3, starting_options=[fx.tc.Options().tile(16, 32), fx.tc.make_naive_mapping_options()])
    assert kernel.report is not None
    (task,) = kernel.report.tasks
    inner = [value for name, value in task.point.items() if name.startswith("i0.") and name != "i0.0"]
    assert np.prod(inner) in (16, 32)
    torch.testing.assert_close(kernel(a, b), a @ b, rtol=1e-5, atol=1e-4)


def test_tuning_follows_hints() -> None:
    options = fx.tc.Options().tile(16, 32)
    program = "def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }"
    kernel = fx.tc.define(program, options=options)
    a, b = torch.randn(64, 128), torch.randn(128, 96)
    kernel.tune(a, b, trials=3)
    assert kernel.report is not None
    (task,) = kernel.report.tasks
    sizes: dict[str, int] = {}
    for name, value in task.point.items():
        loop, _, place = name.partition(".")
        if place not in ("", "0"):
            sizes[loop] = sizes.get(loop, 1) * value
    assert sizes["i0"] == 16
    assert sizes["i1"] in (2, 4, 8, 32)  # counted in vectors if the vector loop is split off first
    torch.testing.assert_close(kernel(a, b), a @ b, rtol=1e-5, atol=1e-4)


def test_fuse_min_compiles_statements_separately() -> None:
    program = "def f(float(N,D) A) -> (M, O) { M(n) max=! A(n, d) O(n, d) = A(n, d) - M(n) }"
    a = torch.randn(4, 6)
    fused, separate = fx.tc.define(program), fx.tc.define(program, options=fx.tc.Options().fuse("Min"))
    assert fused.explain(a).count("@T.prim_func") == 1
    assert separate.explain(a).count("@T.prim_func") == 2
    for fused_output, separate_output in zip(fused(a), separate(a), strict=True):
        assert torch.equal(fused_output, separate_output)
    with pytest.raises(InvalidOption, match=r"^options: .* a dict"):
        fx.tc.define(program, options={})  # type: ignore[arg-type]
