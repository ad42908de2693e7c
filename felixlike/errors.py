"""Define all errors and warnings of the package.

Every error message says what is wrong, where, and what to do. Each class stands for one situation. Where callers expect
a built-in exception (ValueError, OSError, …), the class derives from it too.
"""

import inspect
import warnings
from typing import Any

from felixlike._encoding import showable


class FelixlikeError(Exception):
    """Base class of all errors of this package.

    Attributes:
        what: What is wrong, with the offending value.
        where: The input, file, task or operator; empty if there is none.
        remedy: What to do next; empty if there is nothing to suggest.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        parts = [f"{where}: {what}" if where else what]
        if remedy:
            parts.append(remedy)
        super().__init__(". ".join(part.rstrip(".") for part in parts) + ".")

    def __str__(self) -> str:
        """Return the message in characters that standard output can encode, since programs print caught errors."""
        return showable(super().__str__())

    def __reduce__(self) -> tuple[object, ...]:
        # Default pickling loses keyword-only arguments, and errors are sent between processes.
        return (_rebuild, (type(self), self.what, self.where, self.remedy))


def _rebuild(cls: type[FelixlikeError], what: str, where: str, remedy: str) -> FelixlikeError:
    """Recreate an error when it is unpickled."""
    return cls(what, where=where, remedy=remedy)


class VersionMismatch(FelixlikeError, ImportError):
    """A library is installed in a version that is known not to work."""


class MissingDependency(FelixlikeError, ImportError):
    """An optional library is required but not installed."""


class InvalidBudget(FelixlikeError, ValueError):
    """rounds, trials or seconds is negative or not a number."""


class InvalidOption(FelixlikeError, ValueError):
    """An option (strategy, seed, progress …) has an invalid value."""


class InvalidShape(FelixlikeError, ValueError):
    """A shape is malformed, or has a zero or negative size."""


class InputMismatch(FelixlikeError, ValueError):
    """Inputs differ from those of a model or a callable in number, name, shape or dtype."""


class SharedInputs(InputMismatch):
    """An input that the model changes in place shares memory with another input."""


class InvalidModel(FelixlikeError, ValueError):
    """The model cannot be read, or its type is not supported."""


class EmptyModel(InvalidModel):
    """The model computes nothing."""


class ExportFailed(InvalidModel):
    """torch.export rejected the model. The message names the operator or the line that torch reports."""


class DynamicControlFlow(ExportFailed):
    """The model's control flow depends on the values of its tensors."""


class RandomOperator(InvalidModel):
    """The model draws random numbers, which compiled code does not support."""


class UnsupportedOperator(InvalidModel):
    """Neither TVM nor PyTorch's kernels can run an operator in compiled code, or PyTorch would run all of them."""


class UnknownTarget(FelixlikeError, ValueError):
    """The target's name is unknown, or the device it needs is missing."""


class NoGPU(UnknownTarget):
    """A GPU is required, but no GPU or no driver for it was found."""


class WrongArchitecture(UnknownTarget):
    """Code or a target is for another GPU architecture than this machine's."""


class GPUFailed(FelixlikeError, RuntimeError):
    """A kernel could not be launched on a GPU, or aborted."""


class GPUOutOfMemory(GPUFailed, MemoryError):
    """A GPU is out of memory."""


class KernelOverLimits(GPUFailed):
    """A kernel needs more registers, threads or shared memory than the GPU has."""


class InvalidDevice(FelixlikeError, ValueError):
    """A hardware description lacks a value, or has an impossible one."""


class InvalidDim(FelixlikeError, ValueError):
    """A dynamic dimension has no sizes or has invalid sizes or weights, or there are too many dynamic dimensions."""


class NoUKernels(FelixlikeError):
    """A filter stage removes every uKernel of an operator, even with fully relaxed thresholds."""


class UnsupportedSketch(FelixlikeError):
    """A sketch has no symbolic form yet. It is tuned by sampling instead."""


class WrongSketch(UnsupportedSketch):
    """TVM lowers a sketch to a program that computes something other than the task. None of its points can be used."""


class NoSmoothForm(FelixlikeError):
    """No smoothing rule covers a formula. The sketch is searched without a gradient."""


class InvalidGraph(FelixlikeError, ValueError):
    """A cached smooth program is damaged. It is discarded and rebuilt."""


class InvalidWeights(FelixlikeError, ValueError):
    """A file of cost-model weights cannot be read, or was trained on other features."""


class InvalidPoint(FelixlikeError, ValueError):
    """A point does not fit its sketch: its length is wrong, or it violates a constraint."""


class InvalidSchedule(FelixlikeError):
    """TVM rejected a schedule during replay or postprocessing."""


class OutputNotWritable(FelixlikeError, OSError):
    """A path cannot be written."""


class InvalidArtefact(FelixlikeError, ValueError):
    """A saved model is damaged, or was made by an incompatible version or for another machine."""


class StoreError(FelixlikeError, OSError):
    """A record store cannot be opened or written."""


class SourceLeftOut(StoreError):
    """None of a record store could be merged into another store. The other store is intact."""


class UnconfirmedCommand(FelixlikeError):
    """A store contains a command that this user has neither entered on this machine nor confirmed."""


class CompilationFailed(FelixlikeError):
    """TVM failed to compile a module."""


class MissingCompiler(FelixlikeError, RuntimeError):
    """This machine has no compiler for CUDA source, or lacks a header that the source needs."""


class ForkedProcess(FelixlikeError, RuntimeError):
    """A compiled model is called in a process forked from one in which it has already run."""


class WorkerFailed(FelixlikeError):
    """A measuring process could not be started, or died."""


class TrackerFailed(WorkerFailed, ConnectionError):
    """A tracker cannot be reached, or has no server registered under the key."""


class WrongDevice(FelixlikeError):
    """The devices of a tracker's servers differ from the target."""


class ModelNotLoaded(FelixlikeError, RuntimeError):
    """A PyTorch graph calls a compiled model that is not loaded in this process."""


class FixedModel(FelixlikeError, RuntimeError):
    """A compiled model cannot be moved to another device or converted to another dtype."""


class ReferenceFailed(FelixlikeError):
    """The unscheduled function of a task, which computes the reference outputs, could not be run."""


class NoSpaceLeft(ReferenceFailed):
    """The inputs and reference outputs for checking a task's candidates cannot be written."""


class VerificationFailed(FelixlikeError):
    """The outputs of a tuned model differ from those of the original.

    Attributes:
        optimized: The tuned model, for inspection or saving; None after pickling.
    """

    optimized: Any = None


class WrongContext(FelixlikeError, RuntimeError):
    """A call was made inside a PyTorch mode, transform or trace that does not support it."""


class TCError(FelixlikeError, ValueError):
    """A tensor comprehension is invalid. Subclasses tell errors of syntax, semantics, ranges and calls apart.

    Attributes:
        reason: What is wrong.
        remedy: What to do.
        line: Line in the text, from 1; 0 where the text is not the cause.
        column: Column in the text, from 1; 0 where the text is not the cause.
        underlined: The part of the text that the error refers to.
        excerpt: The line of the text, and a second line with marks under `underlined`.
    """

    def __init__(
        self,
        reason: str,
        *,
        where: str = "",
        remedy: str = "",
        line: int = 0,
        column: int = 0,
        underlined: str = "",
        excerpt: str = "",
    ) -> None:
        """Create an error for a place in the text; see the attributes of the class."""
        super().__init__(reason, where=where, remedy=remedy)
        self.line, self.column, self.underlined, self.excerpt = line, column, underlined, excerpt

    @property
    def reason(self) -> str:
        """Return what is wrong."""
        return self.what

    def __str__(self) -> str:
        return f"{super().__str__()}\n{showable(self.excerpt)}" if self.excerpt else super().__str__()

    def __reduce__(self) -> tuple[object, ...]:
        place = {name: getattr(self, name) for name in ("line", "column", "underlined", "excerpt")}
        return (_rebuild_placed, (type(self), self.what, self.where, self.remedy, place))


def _rebuild_placed(cls: type[TCError], what: str, where: str, remedy: str, place: dict[str, Any]) -> TCError:
    """Recreate an error with its place when it is unpickled."""
    return cls(what, where=where, remedy=remedy, **place)


class TCSyntaxError(TCError):
    """The text is not a valid tensor comprehension."""


class TCSemanticError(TCError):
    """Names, types or ranks do not match, or a tensor is read or written where this is not allowed."""


class TCRangeError(TCError):
    """A range is empty or cannot be inferred, or an access is out of bounds."""


class TCFusionError(TCError):
    """Statements that are to be fused by request cannot share a loop, or another statement has to run between them."""


class TCCallError(TCError, InputMismatch):
    """A tensor comprehension is called with tensors that do not match its inputs."""


class FelixlikeWarning(UserWarning):
    """Base class of all warnings of this package.

    Attributes:
        optimized: The tuned model that the warning is about, for users who turn warnings into errors; None if the
            warning is about something else.
    """

    def __init__(self, message: str, *, optimized: Any = None) -> None:
        super().__init__(message)
        self.optimized = optimized


class UnverifiedWarning(FelixlikeWarning):
    """A tuned model could not be compared with its original, or differs within the original's rounding errors."""


class TrainingModeWarning(FelixlikeWarning):
    """A model in training mode was optimized in eval mode, in which its outputs differ."""


class NotCompiledWarning(FelixlikeWarning):
    """A graph of torch.compile is run by PyTorch instead of felixlike."""


class NondeterministicModelWarning(FelixlikeWarning):
    """A model returns different outputs at every call, so the tuned model cannot be verified."""


class FallbackWarning(FelixlikeWarning):
    """A part of a run failed after tuning: a schedule was replaced by another one, or a log was lost."""


class InternalErrorWarning(FelixlikeWarning):
    """An internal error in this package's rules or formulas cut a task's search short or prevented it."""


class SearchFailedWarning(FelixlikeWarning):
    """An error ended the search. The model uses the best schedules found until then."""


class StorageWarning(FelixlikeWarning):
    """The user's folder for caches or data cannot be used. Results are kept in memory. Issued once per process."""


class SuspiciousNameWarning(FelixlikeWarning):
    """A tensor comprehension sums over an index whose name resembles another one: probably a typo."""


class ImplicitSumWarning(FelixlikeWarning):
    """A statement of a tensor comprehension with a plain `=` sums over an index that is only on its right."""


class NarrowedRangeWarning(FelixlikeWarning):
    """An access of a tensor comprehension limits an index to values for which the test around the access holds."""


class NoGradientWarning(FelixlikeWarning):
    """An input of a compiled model requires a gradient, but the outputs carry none."""


def first_line(error: BaseException, *, longest: int = 300) -> str:
    """Return the first line of an error's message, cut to `longest` characters; its class name if it is empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= longest else text[: longest - 1] + "…"


def callers_level() -> int:
    """Return the `stacklevel` of the innermost frame that belongs to the user's code, for `warnings.warn`."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_CALLER:
        level, frame = level + 1, frame.f_back
    return max(1, level - 1)


_NOT_THE_CALLER = ("felixlike", "torch", "contextlib")
"""Top-level packages whose frames are skipped when a warning is attributed to the user's code."""


_RENAMED = {
    "FellBack": FallbackWarning,
    "GradientsStop": NoGradientWarning,
    "NotCompiled": NotCompiledWarning,
    "NotVerified": UnverifiedWarning,
    "OwnMistake": InternalErrorWarning,
    "RandomModel": NondeterministicModelWarning,
    "SearchFailed": SearchFailedWarning,
    "SuspiciousName": SuspiciousNameWarning,
}
"""Names of classes before version 0.1.0. Using one issues a DeprecationWarning."""


def __getattr__(name: str) -> type[FelixlikeWarning]:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _RENAMED[name]
    warnings.warn(f"felixlike.errors.{name} is now {new.__name__}", DeprecationWarning, stacklevel=2)
    return new
