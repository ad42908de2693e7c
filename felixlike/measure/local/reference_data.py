"""Create the reference data of a task: files of its candidates' inputs and of the float64 outputs.

The input is a task and a function that runs a module. The output is a ReferenceData, which creates the requests to a
candidate's process.
"""

import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from felixlike._util.spent import on
from felixlike.errors import NoSpaceLeft, ReferenceFailed
from felixlike.frontend.constants import has_half_factors
from felixlike.frontend.signature.arguments import Argument, arguments
from felixlike.frontend.task import Task
from felixlike.hardware import FLOAT32, precision_of, precision_of_halves
from felixlike.measure.check.answer_check import ROUNDING, magnification, tolerance
from felixlike.measure.check.inputs import contents
from felixlike.measure.check.reduction import reduction_length
from felixlike.measure.check.reference import double_precision
from felixlike.measure.check.rounding import coarsest, magnifies
from felixlike.measure.check.runner import unwritten
from felixlike.measure.limits import Timing
from felixlike.measure.local.steps import Steps
from felixlike.measure.measurement import Status
from felixlike.measure.messages import Message

_ARGUMENT_COPIES = 4
"""Memory of a candidate's process, in multiples of the task's buffers; chosen by hand."""

Runner = Callable[[object, int, Message], Steps[Message]]
"""Maps (unscheduled module, bytes of its buffers, run request) to steps that return the answer."""


@dataclass(frozen=True, slots=True)
class ReferenceData:
    """Inputs of a task's candidates and the expected outputs.

    Attributes:
        arguments: Parameters of the task's function.
        terms: Number of terms of the longest sum.
        rounded: Coarsest float type of an intermediate value.
        products: Largest error due to the target's precision of products (see `answer_check.tolerance`).
        files: Initial contents of each parameter (.npy); None for pure outputs.
        answers: float64 output of each written parameter (.npy), None for inputs; all None without verification.
        magnified: Error of each parameter that magnified rounding errors may cause (see `answer_check.magnification`).
    """

    arguments: tuple[Argument, ...]
    terms: int
    rounded: str
    products: float
    files: tuple[Path | None, ...]
    answers: tuple[Path | None, ...]
    magnified: tuple[float, ...]

    @property
    def bytes(self) -> int:
        """Memory for the buffers and their copies, bytes."""
        return _ARGUMENT_COPIES * sum(argument.bytes for argument in self.arguments)

    @property
    def disk_bytes(self) -> int:
        """Size of the files, bytes."""
        return sum(path.stat().st_size for path in (*self.files, *self.answers) if path is not None and path.exists())

    def request(self, *, base: float | None, timing: Timing | None, best: float | None) -> Message:
        """Return the run request for a candidate.

        Args:
            base: Tolerance of float32 outputs; None to compute it from the terms.
            timing: When to stop timing; None to call the candidate once without timing.
            best: Seconds per call of the best candidate so far, or None.
        """
        rows = [
            {
                "name": argument.name,
                "shape": argument.shape,
                "dtype": argument.dtype,
                "written": argument.written,
                "file": file and str(file),
                "reference": answer and str(answer),
                "tolerance": max(
                    tolerance(argument.dtype, self.terms, base, rounded=self.rounded, products=self.products),
                    magnified if base is None else 0.0,
                ),
                "save": None,
            }
            for argument, file, answer, magnified in zip(
                self.arguments, self.files, self.answers, self.magnified, strict=True
            )
        ]
        return {"arguments": rows, "timing": timing and asdict(timing), "best": best}


def unverified(task: Task, directory: Path) -> ReferenceData:
    """Return reference data with inputs only; they are positive, so every function is defined for them."""
    return _inputs(task, directory, positive=True)


def verified(task: Task, directory: Path, run: Runner) -> Steps[ReferenceData]:
    """Return steps to the reference data with inputs and float64 outputs.

    Inputs of any sign and positive inputs are tried; those whose output has fewer inf and nan values are used.

    Raises:
        ReferenceFailed: The unscheduled function cannot be run.
        NoSpaceLeft: The files do not fit on the disk.
    """
    best: ReferenceData | None = None
    chosen = directory
    fewest_strange = math.inf
    failure = ""
    for positive in (False, True):
        folder = directory / ("positive" if positive else "signed")
        reference_data = _inputs(task, folder, positive=positive)
        answers, strange, failure = yield from _answers(task, reference_data, folder, run)
        if answers and strange < fewest_strange:
            best, fewest_strange, chosen = replace(reference_data, answers=answers), strange, folder
        if fewest_strange == 0:
            break
    if best is None:
        raise ReferenceFailed(
            f"the unscheduled function could not be run to compute the reference outputs: {failure}",
            where=f"task {task.name}",
            remedy="measure the task with verify=False, or increase Limits.reference_seconds or Limits.memory_bytes if"
            " that limit was exceeded",
        )
    if magnifies(task.module["main"]):
        best = yield from _magnified(task, best, directory, run)
    for folder in directory.iterdir():
        if folder != chosen:
            shutil.rmtree(folder, ignore_errors=True)
    return best


@on("references")
def _inputs(task: Task, directory: Path, *, positive: bool) -> ReferenceData:
    """Write the inputs' files and return reference data without outputs."""
    parameters = arguments(task.module["main"])
    files: list[Path | None] = []
    terms = reduction_length(task.module["main"])
    for index, array in enumerate(contents(parameters, positive=positive, terms=terms)):
        files.append(None if array is None else directory / f"input{index}.npy")
        if array is not None:
            _save(task, directory / f"input{index}.npy", array)
    given = precision_of_halves(task.target) if has_half_factors(task.module["main"]) else FLOAT32
    precision = given if given.is_reduced else precision_of(task.target)
    products = precision.tolerance if terms > 1 else 0.0
    rounded = coarsest(task.module["main"])
    answers, magnified = (None,) * len(parameters), (0.0,) * len(parameters)
    return ReferenceData(parameters, terms, rounded, products, tuple(files), answers, magnified)


def _magnified(task: Task, reference_data: ReferenceData, directory: Path, run: Runner) -> Steps[ReferenceData]:
    """Return steps to the reference data with `magnified`, from float64 outputs for slightly different inputs.

    If such outputs cannot be computed, the data is returned unchanged."""
    moved = list(reference_data.files)
    random = np.random.default_rng(0)
    folder = directory / "moved"
    for index, (argument, file) in enumerate(zip(reference_data.arguments, reference_data.files, strict=True)):
        if file is not None and argument.dtype in ROUNDING:
            exact = np.load(file).astype("float64")
            path = folder / f"input{index}.npy"
            _save(task, path, exact * (1 + ROUNDING[argument.dtype] * random.choice([-1.0, 1.0], exact.shape)))
            moved[index] = path
    moved_data = replace(reference_data, files=tuple(moved), answers=(None,) * len(moved))
    answers, _, _ = yield from _answers(task, moved_data, folder, run)
    if not answers:
        return reference_data
    errors = [
        magnification(np.load(moved_answer), np.load(exact_answer))
        if exact_answer is not None and moved_answer is not None
        else 0.0
        for exact_answer, moved_answer in zip(reference_data.answers, answers, strict=True)
    ]
    return replace(reference_data, magnified=tuple(errors))


def _answers(
    task: Task, reference_data: ReferenceData, directory: Path, run: Runner
) -> Steps[tuple[tuple[Path | None, ...], float, str]]:
    """Return steps to (files of the float64 outputs, number of inf and nan values, failure or "").

    A function that cannot be compiled in float64 runs in its own types."""
    failure = ""
    for widen in (True, False):
        request = reference_data.request(base=None, timing=None, best=None)
        for index, (row, argument) in enumerate(zip(request["arguments"], reference_data.arguments, strict=True)):
            if widen and "float" in argument.dtype:
                row["dtype"] = "float64"
            if argument.written:
                row["save"] = str(directory / f"answer{index}.npy")
        module = double_precision(task.module) if widen else task.module
        answer = yield from run(module, 2 * reference_data.bytes, request)
        if answer["status"] == Status.OK:
            saved = tuple(row["save"] and Path(row["save"]) for row in request["arguments"])
            return saved, answer["strange"], ""
        if answer.get("unwritten"):
            raise _no_space(task, directory, answer["message"])
        failure = f"{answer['status']}, {answer['message']}"
        if answer["status"] != Status.BUILD_ERROR:
            break
    return (), math.inf, failure


def _save(task: Task, path: Path, array: np.ndarray[Any, np.dtype[Any]]) -> None:
    """Write an array to a file; raise NoSpaceLeft if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    except OSError as error:
        raise _no_space(task, path.parent, unwritten(error)) from error


def _no_space(task: Task, directory: Path, why: str) -> NoSpaceLeft:
    """Return the error for files that cannot be written."""
    return NoSpaceLeft(
        f"the inputs and reference outputs of the task could not be written to {directory}: {why}",
        where=f"task {task.name}",
        remedy="free some space there, or set TMPDIR to a folder with more",
    )
