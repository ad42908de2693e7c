"""What a task's candidates are given and compared with: files of inputs and of the float64 answer, made once per task.

In: a task, and a way to run a module. Out: an ReferenceData, from which the requests to a candidate's process are made.
"""

import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from felixlike.errors import NoSpaceLeft, ReferenceFailed
from felixlike.frontend.signature.arguments import Argument, arguments
from felixlike.frontend.task import Task
from felixlike.hardware import precision_of
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

Runner = Callable[[object, int, Message], Steps[Message]]
"""(unscheduled module, bytes of its buffers, run request) → steps to the answer."""


@dataclass(frozen=True, slots=True)
class ReferenceData:
    """The inputs of a task's candidates and the answers expected.

    terms: of the longest sum.  rounded: the coarsest float type on the way.  products: what the precision that the
    task's target asks for may cost (`verify.tolerance`).  files: initial contents of each parameter
    (.npy), None for pure outputs.  answers: the float64 answer of each written parameter, None for inputs; all None if
    not verified.  magnified: for each parameter, what rounding errors may become (`verify.magnification`)."""

    arguments: tuple[Argument, ...]
    terms: int
    rounded: str
    products: float
    files: tuple[Path | None, ...]
    answers: tuple[Path | None, ...]
    magnified: tuple[float, ...]

    @property
    def bytes(self) -> int:
        """Memory for the buffers and the copies made on the way to and from them."""
        return _ARGUMENT_COPIES * sum(argument.bytes for argument in self.arguments)

    @property
    def disk_bytes(self) -> int:
        """The size of its files."""
        return sum(path.stat().st_size for path in (*self.files, *self.answers) if path is not None and path.exists())

    def request(self, *, base: float | None, timing: Timing | None, best: float | None) -> Message:
        """The run request for a candidate.

        base: tolerance of float32, None: by the terms.  timing: None to call it once only."""
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
    """Inputs only; such as every function is defined for."""
    return _inputs(task, directory, positive=True)


def verified(task: Task, directory: Path, run: Runner) -> Steps[ReferenceData]:
    """Steps to the inputs, and the float64 answers.  Raises ReferenceFailed if the unscheduled function cannot be run,
    NoSpaceLeft if its files do not fit.

    The inputs are those of the two kinds (any sign, positive) for which fewer values of the answer are inf or nan."""
    best: ReferenceData | None = None
    chosen = directory
    fewest = math.inf
    failure = ""
    for positive in (False, True):
        home = directory / ("positive" if positive else "signed")
        reference_data = _inputs(task, home, positive=positive)
        answers, strange, failure = yield from _answers(task, reference_data, home, run)
        if answers and strange < fewest:
            best, fewest, chosen = replace(reference_data, answers=answers), strange, home
        if fewest == 0:
            break
    if best is None:
        raise ReferenceFailed(
            f"the unscheduled function could not be run for reference: {failure}",
            where=f"task {task.name}",
            remedy="measure it with verify=False, or raise Limits.reference_seconds or memory_bytes if that ran out",
        )
    if magnifies(task.module["main"]):
        best = yield from _magnified(task, best, directory, run)
    for home in directory.iterdir():
        if home != chosen:
            shutil.rmtree(home, ignore_errors=True)
    return best


def _inputs(task: Task, directory: Path, *, positive: bool) -> ReferenceData:
    parameters = arguments(task.module["main"])
    files: list[Path | None] = []
    terms = reduction_length(task.module["main"])
    for index, array in enumerate(contents(parameters, positive=positive, terms=terms)):
        files.append(None if array is None else directory / f"input{index}.npy")
        if array is not None:
            _save(task, directory / f"input{index}.npy", array)
    products = precision_of(task.target).tolerance if terms > 1 else 0.0
    rounded = coarsest(task.module["main"])
    answers, magnified = (None,) * len(parameters), (0.0,) * len(parameters)
    return ReferenceData(parameters, terms, rounded, products, tuple(files), answers, magnified)


def _magnified(task: Task, reference_data: ReferenceData, directory: Path, run: Runner) -> Steps[ReferenceData]:
    """Steps to the reference data with what rounding errors become, by float64 answers to slightly different inputs.

    The data is returned unchanged where such answers cannot be computed."""
    moved = list(reference_data.files)
    random = np.random.default_rng(0)
    home = directory / "moved"
    for index, (argument, file) in enumerate(zip(reference_data.arguments, reference_data.files, strict=True)):
        if file is not None and argument.dtype in ROUNDING:
            exact = np.load(file).astype("float64")
            path = home / f"input{index}.npy"
            _save(task, path, exact * (1 + ROUNDING[argument.dtype] * random.choice([-1.0, 1.0], exact.shape)))
            moved[index] = path
    unknown = replace(reference_data, files=tuple(moved), answers=(None,) * len(moved))
    answers, _, _ = yield from _answers(task, unknown, home, run)
    if not answers:
        return reference_data
    errors = [
        magnification(np.load(there), np.load(here)) if here is not None and there is not None else 0.0
        for here, there in zip(reference_data.answers, answers, strict=True)
    ]
    return replace(reference_data, magnified=tuple(errors))


def _answers(
    task: Task, reference_data: ReferenceData, directory: Path, run: Runner
) -> Steps[tuple[tuple[Path | None, ...], float, str]]:
    """Files of the float64 answers, how many values in them are inf or nan, and what went wrong if there are none.

    A function that cannot be compiled in float64 is run in its own types."""
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
    """Write an array.  Raises NoSpaceLeft."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    except OSError as error:
        raise _no_space(task, path.parent, unwritten(error)) from error


def _no_space(task: Task, directory: Path, why: str) -> NoSpaceLeft:
    return NoSpaceLeft(
        f"the inputs and answers that its candidates are checked with could not be written to {directory}: {why}",
        where=f"task {task.name}",
        remedy="make room there, or set TMPDIR to a folder with more",
    )
