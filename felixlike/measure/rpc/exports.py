"""Build shared libraries for servers: candidates, and modules that are known to build."""

from functools import cached_property
from pathlib import Path
from typing import Any

from felixlike.errors import WorkerFailed
from felixlike.hardware import c_compiler
from felixlike.measure import crash_guard
from felixlike.measure.candidate import Schedulable
from felixlike.measure.local.builder import Builder
from felixlike.measure.local.trial import Trial
from felixlike.measure.measurement import Measurement, Status


class Exports:
    """Factory of shared libraries for servers; `compiler` is the C compiler that links them (see `linker`)."""

    def __init__(self, builder: Builder, compiler: str) -> None:
        self._builder = builder
        self._compiler = compiler

    def candidate(self, index: int, candidate: Schedulable, memory: int) -> tuple[Trial | Measurement, Path]:
        """Start to build a candidate.

        Args:
            index: Index of the candidate.
            candidate: The candidate.
            memory: Size of its buffers, bytes.

        Returns:
            The process that builds it, or the Measurement of a candidate without a module; and the path of the library,
            in a folder of its own.
        """
        library = self._file(f"candidate{index}")
        return self._builder.begin(index, candidate, memory, export=self._export(library)), library

    def known(self, name: str, module: Any, memory: int, *, target: str | None = None) -> Path:
        """Build a module that is known to build and return the library's path; raise WorkerFailed if it fails.

        `target` is None for the builder's target. `memory` is the size of the module's buffers, bytes."""
        library = self._file(name)
        trial = self._builder.build(0, module, memory, target=target, export=self._export(library))
        answer = trial.wait(self._builder.limits.reference_seconds)
        self._builder.processes.end(trial)
        if answer["status"] is not Status.OK:
            raise WorkerFailed(
                f"the library {name} could not be built: {answer['status']}, {answer['message']}",
                where="RpcPool",
                remedy=f"check that {self._compiler} works",
            )
        return library

    @cached_property
    def assistant(self) -> Path:
        """The path of the library of `crash_guard`, which is uploaded before every candidate."""
        return self.known("assistant", crash_guard.module(), 0, target="llvm")

    def _file(self, name: str) -> Path:
        """Create a folder and return the path of a library in it."""
        folder = self._builder.processes.directory / name
        folder.mkdir(exist_ok=True)
        return folder / f"{name}.so"

    def _export(self, library: Path) -> dict[str, str]:
        """Return the `export` part of a build request."""
        return {"path": str(library), "compiler": self._compiler}


def linker() -> str:
    """Return the path of a C compiler on this machine; raise WorkerFailed if there is none."""
    compiler = c_compiler()
    if compiler is None:
        raise WorkerFailed(
            "no C compiler was found to link the code for the servers", where="RpcPool", remedy="install gcc"
        )
    return compiler
