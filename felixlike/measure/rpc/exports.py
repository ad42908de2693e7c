"""Build what servers run, a candidate or a module known to be good, to a shared library in a file of its own."""

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
    """What a builder builds for servers.  compiler: links it; see `linker`."""

    def __init__(self, builder: Builder, compiler: str) -> None:
        self._builder = builder
        self._compiler = compiler

    def candidate(self, index: int, candidate: Schedulable, memory: int) -> tuple[Trial | Measurement, Path]:
        """A process that builds a candidate, or what came of it if it has no module; and its file, alone in a folder.
        memory: bytes for its buffers."""
        library = self._file(f"candidate{index}")
        return self._builder.begin(index, candidate, memory, export=self._export(library)), library

    def known(self, name: str, module: Any, memory: int, *, target: str | None = None) -> Path:
        """Build a module that is known to be good; its file.  target: None for the builder's.  Raises WorkerFailed."""
        library = self._file(name)
        trial = self._builder.build(0, module, memory, target=target, export=self._export(library))
        answer = trial.wait(self._builder.limits.reference_seconds)
        self._builder.processes.end(trial)
        if answer["status"] is not Status.OK:
            raise WorkerFailed(
                f"the library {name} could not be built: {answer['status']}, {answer['message']}",
                where="RpcPool",
                remedy=f"see whether {self._compiler} works",
            )
        return library

    @cached_property
    def assistant(self) -> Path:
        """The file of the library that goes ahead of every candidate."""
        return self.known("assistant", crash_guard.module(), 0, target="llvm")

    def _file(self, name: str) -> Path:
        folder = self._builder.processes.directory / name
        folder.mkdir(exist_ok=True)
        return folder / f"{name}.so"

    def _export(self, library: Path) -> dict[str, str]:
        return {"path": str(library), "compiler": self._compiler}


def linker() -> str:
    """A C compiler of this machine.  Raises WorkerFailed if there is none."""
    compiler = c_compiler()
    if compiler is None:
        raise WorkerFailed(
            "there is no C compiler, which links what servers run", where="RpcPool", remedy="install gcc"
        )
    return compiler
