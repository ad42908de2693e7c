"""If a step after the search fails or is interrupted, `optimize` returns a model and a warning names the fallback."""

from __future__ import annotations

import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import felixlike as fx
from felixlike import records, runtime
from felixlike._util import interrupts
from felixlike._util.deadline import Deadline
from felixlike.errors import (
    CompilationFailed,
    FallbackWarning,
    FelixlikeWarning,
    InternalErrorWarning,
    NondeterministicModelWarning,
    SearchFailedWarning,
    StoreError,
    UnverifiedWarning,
    VerificationFailed,
    WorkerFailed,
)
from felixlike.frontend import Imported, import_model
from felixlike.hardware import device_name
from felixlike.report import Report, RunLog
from felixlike.runtime import Verdict, Verification
from felixlike.search import Candidate
from felixlike.spaces.design import RULES, Rule
from felixlike.tuning import Session, choice, config
from felixlike.tuning import run as run_module

TRIALS = 4


class Two(nn.Module):
    """A matrix product and a softmax, which are two tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 24)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.linear(x), -1)


@pytest.fixture(scope="module")
def model() -> Two:
    torch.manual_seed(0)
    return Two().eval()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.linspace(-1, 1, 64).reshape(4, 16)


@pytest.fixture(scope="module")
def store(model: Two, x: Tensor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with measurements of both tasks; a run with it measures nothing more."""
    path = tmp_path_factory.mktemp("store") / "runs.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("felixlike.tuning.budget.TRIALS_PER_ROUND", 2)
        tuned = fx.optimize(model, x, trials=TRIALS, space="all", strategy="random", store=path, progress=False)
    assert [task.how for task in tuned.report.tasks] == ["measured", "measured"]
    return path


class Idle:
    """A pool for runs that measure nothing."""

    def __init__(self, target: Any, *, deadline: Deadline) -> None:
        self.devices = frozenset([device_name(target)])

    def __enter__(self) -> Idle:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def imported(model: Two, x: Tensor) -> Imported:
    return import_model(model, x, "cpu")


@pytest.fixture
def finish(
    model: Two, x: Tensor, store: Path, imported: Imported, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """finish(*kinds): run `optimize` with nothing to measure and return the model and the texts of its warnings.

    It checks that the model is correct and the warnings are of these kinds (plus any number of FallbackWarning)."""

    def run(*kinds: type[FelixlikeWarning]) -> tuple[fx.Optimized, list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tuned = fx.optimize(model, x, trials=TRIALS, space="all", store=store, progress=False)
        kinds_raised = [warning.category for warning in caught]
        assert kinds_raised[: len(kinds)] == list(kinds)
        assert set(kinds_raised[len(kinds) :]) <= set(kinds) & {FallbackWarning}
        assert all(warning.message.optimized is tuned for warning in caught)  # type: ignore[union-attr]
        assert all(warning.filename == __file__ for warning in caught)
        with torch.no_grad():
            torch.testing.assert_close(tuned(x), model(x), rtol=1e-4, atol=1e-5)
        return tuned, [str(warning.message) for warning in caught]

    monkeypatch.setattr(run_module, "import_model", lambda *_, **__: imported)
    monkeypatch.setattr(config, "MeasurePool", Idle)
    before = signal.getsignal(signal.SIGINT)
    yield run
    assert signal.getsignal(signal.SIGINT) is before


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def once(error: BaseException, then: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises `error` at its first call and then calls `then`."""
    calls = []

    def call(*args: Any, **keywords: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return then(*args, **keywords)

    return call


def during(signals: int, then: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that receives Ctrl-C `signals` times and then calls `then`."""

    def call(*args: Any, **keywords: Any) -> Any:
        for _ in range(signals):
            signal.raise_signal(signal.SIGINT)
        return then(*args, **keywords)

    return call


@pytest.mark.parametrize(
    "error", [WorkerFailed("it died"), CompilationFailed("no"), ZeroDivisionError("odd"), MemoryError()]
)
def test_a_failing_choice_falls_back_for_one_task(
    error: Exception, finish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "choose", once(error, choice.choose))
    tuned, (words,) = finish(FallbackWarning)
    first, second = tuned.report.tasks
    assert first.how == "measured"
    assert first.note.startswith("choosing its schedule failed: ")
    assert "failed" not in second.note
    assert f"Two: {first.name}: {first.note}" in words
    assert first.note.rstrip(".") in str(tuned.report)


def test_tasks_are_untuned_if_no_schedule_can_be_checked(finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No schedule can be checked, so a task without measurements is untuned."""
    monkeypatch.setattr(choice, "choose", failing(WorkerFailed("the pool is closed")))
    monkeypatch.setattr(choice, "at_hand", lambda state: iter([choice.Choice(choice.How.UNTUNED, None, 0.0, None)]))
    tuned, _ = finish(FallbackWarning, FallbackWarning)
    assert {task.how for task in tuned.report.tasks} == {"untuned"}


def test_a_schedule_that_cannot_be_made_is_replaced_by_the_next_best(
    finish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    baseline, _ = finish()
    monkeypatch.setattr(Candidate, "module", once(RuntimeError("not in this TVM"), Candidate.module))
    tuned, (words, *_) = finish(FallbackWarning)
    fallback, best = tuned.report.tasks[0], baseline.report.tasks[0]
    assert "its schedule could not be made (not in this TVM)" in fallback.note
    assert "its schedule could not be made" in words
    assert fallback.how == "measured"
    assert fallback.seconds >= best.seconds
    assert fallback.point != best.point or fallback.sketch != best.sketch


def test_tasks_are_untuned_if_no_schedule_can_be_made(finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Candidate, "module", failing(RuntimeError("not in this TVM")))
    tuned, _ = finish(FallbackWarning)
    assert {task.how for task in tuned.report.tasks} == {"untuned"}


def test_a_schedule_that_breaks_the_model_is_removed(finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    baseline, _ = finish()
    broken, compiled = baseline.report.tasks[1].workload, runtime.compile_model

    def fail(imported: Any, schedules: Any = None) -> Any:
        if broken in (schedules or ()):
            raise CompilationFailed("it does not fit")
        return compiled(imported, schedules)

    monkeypatch.setattr(runtime, "compile_model", fail)
    tuned, problems = finish(FallbackWarning)
    other, task = tuned.report.tasks
    assert other.how == "measured"
    assert other.note == ""
    assert task.how == "untuned"
    assert "the model could not be compiled with its schedule (it does not fit" in task.note
    assert all(task.name in words for words in problems)


def test_a_model_that_compiles_without_schedules_only_is_untuned(finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = runtime.compile_model

    def fail(imported: Any, schedules: Any = None) -> Any:
        if schedules:
            raise ValueError("too large")
        return compiled(imported, schedules)

    monkeypatch.setattr(runtime, "compile_model", fail)
    tuned, _ = finish(FallbackWarning)
    assert {task.how for task in tuned.report.tasks} == {"untuned"}


def test_a_model_that_does_not_compile_at_all_is_an_error(finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "compile_model", failing(CompilationFailed("no room")))
    with pytest.raises(CompilationFailed, match="no room"):
        finish()


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), MemoryError(), SystemExit(3)])
def test_a_failing_comparison_leaves_the_model_unverified(
    error: BaseException, finish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "max_relative_error", failing(error))
    tuned, (words,) = finish(UnverifiedWarning)
    assert words.startswith("Two was not verified as a whole: comparing failed: ")
    assert "The whole model was not verified: comparing failed" in " ".join(str(tuned.report).split())
    assert "Maximum relative error" not in str(tuned.report)
    restored = Report.from_json(tuned.report.to_json())
    assert str(restored) == str(tuned.report)


@pytest.mark.parametrize(
    ("target", "name"),
    [(choice, "choose"), (Candidate, "module"), (runtime, "compile_model"), (runtime, "max_relative_error")],
)
@pytest.mark.parametrize("by", [lambda then: once(KeyboardInterrupt(), then), lambda then: during(1, then)])
def test_an_interrupt_anywhere_returns_the_best_so_far(
    target: Any, name: str, by: Any, finish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, name, by(getattr(target, name)))
    tuned, (words,) = finish(UnverifiedWarning)
    assert tuned.report.tasks[0].how == "measured"
    assert words == "Two was not verified as a whole: the run was interrupted before that."


@pytest.mark.parametrize(
    "impatient", [failing(KeyboardInterrupt()), during(2, runtime.compile_model)], ids=["raised", "signals"]
)
def test_two_interrupts_abort_the_run(impatient: Any, finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "TOGETHER_SECONDS", 0.0)
    monkeypatch.setattr(runtime, "compile_model", impatient)
    with pytest.raises(KeyboardInterrupt):
        finish()


@pytest.mark.parametrize(
    ("where", "what", "how"), [(run_module, "check_ahead", "untuned"), (choice, "choose", "unmeasured")]
)
def test_a_second_interrupt_skips_checks(
    model: Two,
    x: Tensor,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: Any,
    what: str,
    how: str,
) -> None:
    """The first Ctrl-C ends a running search, the second skips the remaining checks. Finished checks are used."""
    monkeypatch.setattr(interrupts, "TOGETHER_SECONDS", 0.0)
    original_event, events = RunLog.event, []

    def press(log: RunLog, measured_event: Any) -> None:
        original_event(log, measured_event)
        events.append(measured_event)
        if sum(one.measurement is not None for one in events) == 3:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:  # the interrupt is swallowed
                events.clear()

    monkeypatch.setattr(RunLog, "event", press)
    monkeypatch.setattr(where, what, during(1, getattr(where, what)))
    with pytest.warns(UnverifiedWarning, match="the run was interrupted before that"):
        tuned = fx.optimize(model, x, rounds=50, space="all", strategy="random", progress="plain")
    assert tuned.report.trials == 3
    assert tuned.report.stopped == "interrupted"
    assert "Ctrl-C again leaves out what is still to be checked" in capsys.readouterr().err
    assert sorted(task.how for task in tuned.report.tasks) == ["measured", how]
    unchecked = "interrupted before a schedule of it was checked" in " ".join(str(tuned.report).split())
    assert unchecked == (how == "untuned")
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x), rtol=1e-4, atol=1e-5)


def test_an_interrupt_at_the_start_of_the_search_aborts_the_run(finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has not been read yet, so a model made now could be worse than the one of an earlier run."""
    monkeypatch.setattr(Session, "run", during(1, Session.run))
    with pytest.raises(KeyboardInterrupt):
        finish()


def test_an_interrupt_while_the_store_is_read_keeps_its_results(finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of an earlier run is still used."""
    baseline, _ = finish()
    monkeypatch.setattr(records.Store, "briefs", once(KeyboardInterrupt(), records.Store.briefs))
    tuned, _ = finish()
    assert [task.how for task in tuned.report.tasks] == ["measured", "measured"]
    assert [task.point for task in tuned.report.tasks] == [task.point for task in baseline.report.tasks]
    assert tuned.report.stopped == "interrupted"


def test_an_interrupt_turned_into_an_error_counts_as_an_interrupt(finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_and_raise(session: Session, budget: Any) -> None:
        run(session, budget)
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("in a callback") from None

    run = Session.run
    monkeypatch.setattr(Session, "run", run_and_raise)
    tuned, _ = finish()
    assert tuned.report.stopped == "interrupted"


def test_an_interrupt_before_tuning_is_a_keyboard_interrupt(finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "import_model", during(1, import_model))
    with pytest.raises(KeyboardInterrupt):
        finish()


@pytest.mark.parametrize("error", [StoreError("the disk is full"), WorkerFailed("it died"), IndexError("ours")])
def test_a_failing_search_returns_its_results(error: Exception, finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Session.run

    def fail(session: Session, budget: Any) -> None:
        run(session, budget)
        raise error

    monkeypatch.setattr(Session, "run", fail)
    tuned, (words,) = finish(SearchFailedWarning)
    assert f"the search failed: {str(error).rstrip('.')}" in words
    assert tuned.report.stopped.startswith("the search failed: ")
    monkeypatch.setattr(Session, "run", failing(error))  # now before the store is read
    with pytest.raises(type(error)):
        finish()


def test_a_failing_rule_is_a_warning_and_the_model_is_tuned(
    model: Two, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, "llvm", (Rule("mistaken", failing(TypeError("ours")), ()),))
    monkeypatch.setattr("felixlike.tuning.session.TRIALS_PER_ROUND", 2)
    with pytest.warns(InternalErrorWarning) as caught:
        tuned = fx.optimize(model, x, trials=TRIALS, progress=False)
    assert [task.how for task in tuned.report.tasks] == ["measured", "measured"]
    for warning, task in zip(caught, tuned.report.tasks, strict=True):
        assert f"schedules of {task.name} was cut short by a mistake in felixlike (TypeError: ours)" in str(
            warning.message
        )
        assert "Please report this" in str(warning.message)
        assert warning.message.optimized is tuned  # type: ignore[union-attr]
        assert task.note == "a mistake in felixlike: TypeError: ours"
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x), rtol=1e-4, atol=1e-5)


def test_failures_to_close_log_store_and_pool_are_warnings(finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write = RunLog.write

    def write_to_full_disk(log: RunLog, event: str, **values: Any) -> None:
        if event == "end" and log._file is not None:
            log._file.close()
            log._file = open("/dev/full", "w")  # noqa: SIM115  the log closes it
        write(log, event, **values)

    monkeypatch.setattr(RunLog, "write", write_to_full_disk)
    monkeypatch.setattr(records.Store, "__exit__", failing(OSError(28, "No space left on device")))
    monkeypatch.setattr(Idle, "__exit__", failing(ProcessLookupError("gone")))
    _, problems = finish(FallbackWarning, FallbackWarning, FallbackWarning)
    assert "closing the Idle failed: gone" in problems[0]
    assert "the run's log could not be written: [Errno 28] No space left on device" in problems[1]
    assert "closing the Store failed: [Errno 28] No space left" in problems[2]


def test_a_failing_report_is_shortened(finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("felixlike.tuning.reporting.task_report", failing(KeyError("sketch")))
    tuned, problems = finish(FallbackWarning, FallbackWarning)
    assert all("the report failed: 'sketch'" in words for words in problems)
    assert tuned.report.tasks[0].how == "measured"
    monkeypatch.setattr("felixlike.tuning.reporting._bare_task", failing(KeyError("name")))
    tuned, _ = finish(FallbackWarning)
    assert tuned.report.tasks == ()


def test_failing_progress_does_not_end_the_run(
    model: Two, x: Tensor, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BrokenStream:
        encoding = "utf-8"

        def write(self, _: str) -> int:
            raise ZeroDivisionError

    monkeypatch.setattr(sys, "stderr", BrokenStream())
    monkeypatch.setattr("felixlike.report.progress.LineReporter.event", failing(AttributeError("flush")))
    tuned = fx.optimize(model, x, trials=TRIALS + 1, space="all", store=store, progress=True)
    assert tuned.report.trials == 1


class RandomScale(nn.Module):
    """A model with random outputs by Python's generator; torch.export records the random number as a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (2 + random.random())


def test_a_nondeterministic_model_is_a_warning(x: Tensor) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    with pytest.warns(NondeterministicModelWarning, match=r"RandomScale: .*every call") as caught:
        tuned = fx.optimize(RandomScale(), x, trials=1, progress=False)
    assert caught[0].message.optimized is tuned  # type: ignore[union-attr]
    assert "different outputs at every call" in " ".join(str(tuned.report).split())
    assert torch.equal(torch.rand(1), expected)  # the state of the caller's generator is unchanged
    with warnings.catch_warnings():
        warnings.simplefilter("error", NondeterministicModelWarning)
        with pytest.raises(NondeterministicModelWarning) as raised:
            fx.optimize(RandomScale(), x, trials=1, progress=False)
    assert isinstance(raised.value.optimized, fx.Optimized)


def test_a_model_with_wrong_outputs_is_an_error(
    model: Two, x: Tensor, finish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = model.linear.bias
    compiled = runtime.compile_model

    def compile_and_change_model(imported: Any, schedules: Any = None) -> Any:
        result = compiled(imported, schedules)
        model.linear.bias = nn.Parameter(before.detach() + 1.5 * torch.arange(24))
        return result

    monkeypatch.setattr(runtime, "compile_model", compile_and_change_model)
    try:
        with pytest.raises(VerificationFailed) as raised:
            finish()
    finally:
        model.linear.bias = before
    error = raised.value
    assert error.where == "Two"
    assert "(float64): output is off by" in error.what
    assert isinstance(error.optimized, fx.Optimized)
    assert error.optimized.report.error > 0.1
    assert "It is wrong: output is off by" in str(error.optimized.report)
    with torch.no_grad():
        torch.testing.assert_close(error.optimized(x), model(x), rtol=1e-4, atol=1e-5)


def test_an_undecided_comparison_leaves_the_model_unverified(finish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    verification = Verification(0.0, "float64", Verdict.UNSURE, "1 of the 200 values of output are not the original's")
    monkeypatch.setattr(runtime, "max_relative_error", lambda *_, **__: verification)
    tuned, (words,) = finish(UnverifiedWarning)
    assert words == f"Two was not verified as a whole: {verification.words}."
    assert tuned.report.error == 0
    assert verification.words in " ".join(str(tuned.report).split())
