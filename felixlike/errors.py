"""One family of errors: every message says what is wrong, where, and what to do.

Each class stands for one situation; where callers expect a built-in (ValueError, OSError, …) it is a base too.
"""

import inspect
import warnings
from typing import Any

from felixlike._encoding import showable


class FelixlikeError(Exception):
    """Root of all errors of this package.

    what: the fact, with the offending value; where: the input, file, task or operator; remedy: what to do next."""

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        parts = [f"{where}: {what}" if where else what]
        if remedy:
            parts.append(remedy)
        super().__init__(". ".join(part.rstrip(".") for part in parts) + ".")

    def __str__(self) -> str:
        """In signs that standard output can show, since that is where programs print what they caught."""
        return showable(super().__str__())

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive the default pickling, and errors cross process borders.
        return (_rebuild, (type(self), self.what, self.where, self.remedy))


def _rebuild(cls: type[FelixlikeError], what: str, where: str, remedy: str) -> FelixlikeError:
    return cls(what, where=where, remedy=remedy)


class VersionMismatch(FelixlikeError, ImportError):
    """A library is installed in a version known not to work."""


class MissingDependency(FelixlikeError, ImportError):
    """An optional library is needed for what was asked."""


class InvalidBudget(FelixlikeError, ValueError):
    """rounds, trials or seconds is negative or not a number."""


class InvalidOption(FelixlikeError, ValueError):
    """An option (strategy, seed, progress …) has a value that is not understood."""


class InvalidShape(FelixlikeError, ValueError):
    """A shape is malformed, or has a zero or negative size."""


class InputMismatch(FelixlikeError, ValueError):
    """Inputs differ from what a model or a callable takes, in number, name, shape or dtype."""


class InvalidModel(FelixlikeError, ValueError):
    """The model cannot be read or is of a kind that is not understood."""


class EmptyModel(InvalidModel):
    """The model computes nothing."""


class ExportFailed(InvalidModel):
    """torch.export refused the model; the message names the operator or the line torch gives."""


class DynamicControlFlow(ExportFailed):
    """The model's control flow depends on the values of its tensors."""


class RandomOperator(InvalidModel):
    """The model draws random numbers, which compiled code cannot."""


class UnsupportedOperator(InvalidModel):
    """TVM's importer does not know an operator of the model."""


class UnknownTarget(FelixlikeError, ValueError):
    """The target's name is not known, or the device it needs is not there."""


class NoGPU(UnknownTarget):
    """A GPU is wanted, and there is none, or no driver for it."""


class WrongArchitecture(UnknownTarget):
    """Code, or a target, is for GPUs of another architecture than this machine's."""


class GPUFailed(FelixlikeError, RuntimeError):
    """A kernel could not be started on a GPU, or broke off."""


class GPUOutOfMemory(GPUFailed, MemoryError):
    """A GPU has no memory left."""


class KernelOverLimits(GPUFailed):
    """A kernel asks for more registers, threads or shared memory than a GPU has."""


class InvalidDevice(FelixlikeError, ValueError):
    """A description of a device lacks a value, or has one that no device has."""


class InvalidDim(FelixlikeError, ValueError):
    """A dynamic dimension has no sizes, or sizes or weights that none can have; or there are too many of them."""


class NoUKernels(FelixlikeError):
    """No uKernel of an operator is left after a stage of the filter, however far its thresholds are relaxed."""


class UnsupportedSketch(FelixlikeError):
    """A sketch is not yet understood symbolically; it is tuned by sampling instead."""


class WrongSketch(UnsupportedSketch):
    """TVM lowers a sketch to a program that does not compute what the task asks for; no point of it is any use."""


class NoSmoothForm(FelixlikeError):
    """No smoothing rule covers a formula. The sketch is searched without its gradient."""


class InvalidGraph(FelixlikeError, ValueError):
    """A cached smooth program is damaged. It is discarded and made again."""


class InvalidWeights(FelixlikeError, ValueError):
    """A file of cost-model weights cannot be read, or was trained on other features."""


class InvalidPoint(FelixlikeError, ValueError):
    """A point does not fit its sketch: wrong length, or a constraint is broken."""


class InvalidSchedule(FelixlikeError):
    """TVM refused to replay or post-process a schedule."""


class OutputNotWritable(FelixlikeError, OSError):
    """A path cannot be written."""


class InvalidArtefact(FelixlikeError, ValueError):
    """A saved model is damaged, or was made by an incompatible version or for another machine."""


class StoreError(FelixlikeError, OSError):
    """A store of measurements cannot be opened or written."""


class SourceLeftOut(StoreError):
    """A store was to be merged into another, and nothing of it could be taken; the other one is sound."""


class UnconfirmedCommand(FelixlikeError):
    """A store's command would be run that this user has neither given on this machine nor confirmed."""


class CompilationFailed(FelixlikeError):
    """TVM could not compile a module that should compile."""


class MissingCompiler(FelixlikeError, RuntimeError):
    """Nothing on this machine compiles CUDA source, or a header that it needs is missing."""


class ForkedProcess(FelixlikeError, RuntimeError):
    """A compiled model is called in a process that was forked from one in which it ran already."""


class WorkerFailed(FelixlikeError):
    """A measuring process could not be started or kept alive."""


class TrackerFailed(WorkerFailed, ConnectionError):
    """A tracker cannot be reached, or no server is registered with it under the key."""


class WrongDevice(FelixlikeError):
    """The devices of a tracker's servers differ from the target."""


class ModelNotLoaded(FelixlikeError, RuntimeError):
    """A graph of PyTorch's calls a compiled model that is not loaded in this process."""


class FixedModel(FelixlikeError, RuntimeError):
    """A compiled model was to move to another device, or to become of another type."""


class ReferenceFailed(FelixlikeError):
    """The unscheduled function of a task, with which answers are compared, could not be run."""


class NoSpaceLeft(ReferenceFailed):
    """The inputs and answers with which a task's candidates are checked cannot be written."""


class VerificationFailed(FelixlikeError):
    """A tuned model does not compute what its original does.

    optimized: the tuned model all the same, to be looked at or saved; None once pickled."""

    optimized: Any = None


class WrongContext(FelixlikeError, RuntimeError):
    """A call was made inside something of PyTorch's where it cannot be done."""


class TCError(FelixlikeError, ValueError):
    """A tensor comprehension is wrong: its text, its names and types, its ranges, or what it is called with.

    Its kinds say which.  line, column: of the place in the text, from 1; 0 where the text is not the cause.
    underlined: the part of the text that is meant.  reason: what is wrong with it.  remedy: what to do."""

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
        """excerpt: the line of the text and a second one with marks under the part that is meant."""
        super().__init__(reason, where=where, remedy=remedy)
        self.line, self.column, self.underlined, self.excerpt = line, column, underlined, excerpt

    @property
    def reason(self) -> str:
        """What is wrong."""
        return self.what

    def __str__(self) -> str:
        return f"{super().__str__()}\n{showable(self.excerpt)}" if self.excerpt else super().__str__()

    def __reduce__(self) -> tuple[object, ...]:
        place = {name: getattr(self, name) for name in ("line", "column", "underlined", "excerpt")}
        return (_rebuild_placed, (type(self), self.what, self.where, self.remedy, place))


def _rebuild_placed(cls: type[TCError], what: str, where: str, remedy: str, place: dict[str, Any]) -> TCError:
    return cls(what, where=where, remedy=remedy, **place)


class TCSyntaxError(TCError):
    """The text is not one of the language."""


class TCSemanticError(TCError):
    """Names, types or numbers of dimensions do not fit, or a tensor is written or read where it must not be."""


class TCRangeError(TCError):
    """A range is empty or cannot be inferred, or an access leaves its tensor."""


class TCCallError(TCError, InputMismatch):
    """A tensor comprehension is called with other tensors than it takes."""


class FelixlikeWarning(UserWarning):
    """Root of all warnings of this package.

    optimized: the tuned model that a warning is about, for those who turn warnings into errors; None if about none."""

    def __init__(self, message: str, *, optimized: Any = None) -> None:
        super().__init__(message)
        self.optimized = optimized


class UnverifiedWarning(FelixlikeWarning):
    """A tuned model could not be compared with its original, or differs in what arithmetic does not decide."""


class TrainingModeWarning(FelixlikeWarning):
    """A model in training mode was optimized in eval mode, in which it computes something else."""


class InputUnchangedWarning(FelixlikeWarning):
    """A model changes an input in place, and the optimized model does not."""


class NotCompiledWarning(FelixlikeWarning):
    """A graph of torch.compile runs as PyTorch runs it."""


class NondeterministicModelWarning(FelixlikeWarning):
    """A model gives something else at every call, so nothing can be compared with it."""


class FallbackWarning(FelixlikeWarning):
    """A part of a run failed after something had been tuned: a schedule gave way to another one, or a log was lost."""


class InternalErrorWarning(FelixlikeWarning):
    """A mistake in this package's rules or formulas left a task with a part of its search, or without any."""


class SearchFailedWarning(FelixlikeWarning):
    """The search ended by an error; the model is the best that it had found."""


class StorageWarning(FelixlikeWarning):
    """The user's folder for caches or data cannot be used; results are kept in memory. Issued once in a process."""


class SuspiciousNameWarning(FelixlikeWarning):
    """A tensor comprehension sums over an index whose name is nearly that of another one: probably a slip."""


class NoGradientWarning(FelixlikeWarning):
    """An input of a compiled model needs a gradient, which its outputs do not carry."""


def first_line(error: BaseException, *, longest: int = 300) -> str:
    """The first line of another library's message, to be quoted in one of ours; its kind if it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= longest else text[: longest - 1] + "…"


def callers_level() -> int:
    """How far up the stack, seen from where warnings are issued, the code begins that is not this package's."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_CALLER:
        level, frame = level + 1, frame.f_back
    return max(1, level - 1)


_NOT_THE_CALLER = ("felixlike", "torch", "contextlib")
"""Modules that stand between a user's code and what it is warned of."""


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
"""Names before version 0.1.0."""


def __getattr__(name: str) -> type[FelixlikeWarning]:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _RENAMED[name]
    warnings.warn(f"felixlike.errors.{name} is now {new.__name__}", DeprecationWarning, stacklevel=2)
    return new
