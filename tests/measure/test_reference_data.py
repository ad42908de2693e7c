"""Reference data, computed in this process: the function `here` does what a candidate's process does."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import workloads
from support.faulty import elementwise, matmul, task_of, te, tirx, topi

from felixlike import _tvm
from felixlike.errors import ReferenceFailed
from felixlike.frontend.task import Task, make_task
from felixlike.hardware import resolve_target, with_precision
from felixlike.measure.check.runner import run
from felixlike.measure.child.trial_process import build
from felixlike.measure.limits import Timing
from felixlike.measure.local import reference_data as reference_module
from felixlike.measure.local.reference_data import ReferenceData, unverified
from felixlike.measure.local.steps import Steps, complete
from felixlike.measure.measurement import Status
from felixlike.measure.messages import Message


def here(module: Any, memory: int, request: Message) -> Message:
    """Build and run in this process."""
    assert memory > 0
    try:
        built, _ = build(str(_tvm.ir.save_json(module)), _tvm.Target("llvm"))
    except Exception as error:
        return {"status": Status.BUILD_ERROR, "message": str(error)}
    return run(built, _tvm.runtime.cpu(), request)[0]


def verified(task: Task, directory: Path, run: Callable[[Any, int, Message], Message]) -> ReferenceData:
    """Compute the reference data of a task. Its steps do not wait."""

    def run_steps(module: Any, memory: int, request: Message) -> Steps[Message]:
        yield from ()
        return run(module, memory, request)

    return complete(reference_module.verified(task, directory, run_steps))


def outcome(task: Task, reference_data: ReferenceData, func: Any, timing: Timing | None = None) -> Message:
    """Return the answer to a request that runs `func` as a candidate."""
    request = reference_data.request(base=1e-4, timing=timing, best=None)
    return here(_tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), 1, request)


def _waves(steps: float) -> Any:
    """Z = sin(steps · X · Y)."""
    x, y = te.placeholder((16, 32), name="x"), te.placeholder((32, 16), name="y")
    k = te.reduce_axis((0, 32), name="k")
    product = te.compute((16, 16), lambda i, j: te.sum(x[i, k] * y[k, j], axis=k), name="product")
    return te.create_prim_func([x, y, te.compute((16, 16), lambda i, j: te.sin(product[i, j] * steps), name="z")])


@pytest.mark.parametrize("steps", [1.0, 300.0])
def test_magnified_rounding_errors_are_tolerated(tmp_path: Path, steps: float) -> None:
    """The tolerance covers magnified rounding errors but not larger ones. A tolerance of the user is not changed."""
    task = task_of(_waves(steps))
    reference_data = verified(task, tmp_path, here)
    row = reference_data.request(base=None, timing=None, best=None)["arguments"][2]
    assert (row["tolerance"] > 1e-5) == (steps > 1)
    assert row["tolerance"] < 1e-2
    assert reference_data.request(base=1e-6, timing=None, best=None)["arguments"][2]["tolerance"] == 1e-6
    for candidate_steps, status in ((steps, Status.OK), (steps * 1.01, Status.WRONG)):
        request = reference_data.request(base=None, timing=None, best=None)
        candidate = _tvm.IRModule({"main": _waves(candidate_steps).with_attr("global_symbol", "main")})
        assert here(candidate, 1, request)["status"] == status


def test_the_reference_output_equals_numpys(tmp_path: Path) -> None:
    task = task_of(matmul(32))
    reference_data = verified(task, tmp_path, here)
    a, b = (np.load(file).astype(np.float64) for file in reference_data.files[:2] if file is not None)
    answer = reference_data.answers[2]
    assert answer is not None
    np.testing.assert_allclose(np.load(answer), a @ b, rtol=1e-13, atol=1e-13)
    assert a.min() < 0
    assert reference_data.answers[:2] == (None, None)
    assert reference_data.bytes == 4 * 3 * 32 * 32 * 4


def test_errors_of_correct_and_wrong_candidates(tmp_path: Path) -> None:
    task = task_of(matmul(32))
    reference_data = verified(task, tmp_path, here)
    right = outcome(task, reference_data, matmul(32), Timing())
    assert right["status"] is Status.OK
    assert 0 < right["error"] < 1e-6
    assert len(right["repeats"]) >= 3
    wrong = outcome(task, reference_data, matmul(32, added=1.0), Timing())
    assert wrong["status"] is Status.WRONG
    assert wrong["error"] > 1e-3
    assert "differs from the float64 reference" in wrong["message"]


def test_unwritten_values_are_detected(tmp_path: Path) -> None:
    task = task_of(elementwise(topi.nn.relu))
    reference_data = verified(task, tmp_path, here)
    nothing = task.module["main"].with_body(tirx.Evaluate(0))
    assert outcome(task, reference_data, nothing)["error"] == np.inf


def test_inputs_are_positive_if_outputs_would_be_nan(tmp_path: Path) -> None:
    task = task_of(elementwise(lambda x: topi.divide(1.0, topi.sqrt(x))))
    (file, _) = verified(task, tmp_path, here).files
    assert file is not None
    assert np.load(file).min() > 0


def test_finite_values_of_an_output_with_infinities_are_compared(tmp_path: Path) -> None:
    x = te.placeholder((4,), name="X")
    y = te.compute((4,), lambda i: tirx.if_then_else(i < 2, tirx.FloatImm("float32", -np.inf), x[i]), name="Y")
    task = task_of(te.create_prim_func([x, y]))
    reference_data = verified(task, tmp_path, here)
    assert outcome(task, reference_data, task.module["main"])["status"] is Status.OK


def test_integers_are_compared_exactly(tmp_path: Path) -> None:
    task = task_of(elementwise(lambda x: topi.argmax(x, axis=1)))
    reference_data = verified(task, tmp_path, here)
    assert outcome(task, reference_data, task.module["main"])["error"] == 0.0
    other = elementwise(lambda x: topi.argmin(x, axis=1))
    assert outcome(task, reference_data, other)["error"] == np.inf


def test_an_output_updated_in_place_has_initial_values(tmp_path: Path) -> None:
    x = te.placeholder((16,), name="X")
    schedule = _tvm.Schedule(_tvm.IRModule({"main": te.create_prim_func([x, te.compute((16,), lambda i: x[i] + 1.0)])}))
    func = schedule.mod["main"]
    source, target = func.params
    swap = _tvm.substituted(func.body, {source: target})
    task = task_of(func.with_body(swap))
    reference_data = verified(task, tmp_path, here)
    assert reference_data.files[1] is not None
    assert outcome(task, reference_data, task.module["main"])["status"] is Status.OK
    assert outcome(task, reference_data, func)["status"] is Status.WRONG


def test_a_function_of_fixed_width_is_its_own_reference(tmp_path: Path) -> None:
    task = task_of(elementwise(lambda x: topi.reinterpret(topi.reinterpret(x, "int32"), "float32")))
    answer = verified(task, tmp_path, here).answers[1]
    assert answer is not None
    assert np.load(answer).dtype == np.float32


def test_a_reference_that_times_out_is_an_error(tmp_path: Path) -> None:
    def never(module: Any, memory: int, request: Message) -> Message:
        return {"status": Status.TIMEOUT, "message": "stopped after 120.0 s"}

    with pytest.raises(ReferenceFailed, match=r"task slow: .*timeout, stopped after 120.0 s.*verify=False"):
        verified(task_of(matmul(8), "slow"), tmp_path, never)


def test_without_verification_there_are_only_inputs(tmp_path: Path) -> None:
    started = time.time()
    reference_data = unverified(task_of(matmul(8)), tmp_path)
    assert reference_data.answers == (None, None, None)
    assert all(file is not None and file.stat().st_mtime >= started - 1 for file in reference_data.files)
    answer = outcome(task_of(matmul(8)), reference_data, matmul(8, added=1.0), Timing())
    assert answer["status"] is Status.OK
    assert answer["error"] is None


def test_products_rounded_by_the_target_have_a_larger_tolerance(tmp_path: Path) -> None:
    """Sums of products have a larger tolerance; a task without products does not."""
    for func, factor in ((workloads.matmul(8, 16, 8), 2.0**-9), (workloads.chain(4, 4), 0.0)):
        plain = make_task(func, resolve_target("sm_90"), name="exact")
        rounded = make_task(func, with_precision(resolve_target("sm_90"), "tf32"), name="rounded")
        tolerances = [
            unverified(task, tmp_path).request(base=None, timing=None, best=None)["arguments"][-1]["tolerance"]
            for task in (plain, rounded)
        ]
        assert tolerances[1] == max(tolerances[0], factor)
