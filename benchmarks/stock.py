"""Run stock MetaSchedule on one subgraph: python -m benchmarks.stock "conv2d 3×3" 512 FILE.

`tvm.s_tir.meta_schedule.tune_tir` runs with its defaults, on the same PrimFunc with the same free layouts, in its own
process. It writes a line of JSON per candidate: seconds of a call (null for failures), and when its batch was done.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.results import kept
from benchmarks.subgraphs import OUTSIDE, SUBGRAPHS
from felixlike.frontend import make_task
from felixlike.hardware import kind_of, resolve_target


def stock(
    name: str, trials: int, seed: int, *, target: str = "cpu", limit: float | None = None
) -> tuple[list[float], list[float]]:
    """Return (seconds, elapsed) of every candidate that stock MetaSchedule measures of a subgraph, inf for failures.

    After `limit` seconds the process is stopped, and the candidates so far are returned.
    """
    with tempfile.TemporaryDirectory(prefix="felixlike-stock-") as folder:
        file = Path(folder) / "curve.jsonl"
        command = [sys.executable, "-m", "benchmarks.stock", name, str(trials), str(file), str(seed), target]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, check=True, timeout=limit, **quiet)  # type: ignore[call-overload]
        rows = kept(file)
    return [row["seconds"] or float("inf") for row in rows], [row["elapsed"] for row in rows]


def main() -> None:
    """Run the benchmark."""
    name, trials, file, seed = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    target = resolve_target(sys.argv[5])
    from felixlike import _tvm

    ms = _tvm.ms
    task = make_task((SUBGRAPHS | OUTSIDE)[name](), target, name=name)
    started = time.monotonic()

    @_tvm.derived_object
    class Note(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc,name-defined]
        def apply(self, *arguments: Any) -> None:  # the last argument has the runner's results
            elapsed = time.monotonic() - started
            with file.open("a") as lines:
                for result in arguments[-1]:
                    times = sorted(float(s) for s in result.run_secs or ())
                    row = {"seconds": times[len(times) // 2] if times else None, "elapsed": elapsed}
                    lines.write(json.dumps(row) + "\n")

    defaults = [ms.measure_callback.AddToDatabase(), ms.measure_callback.RemoveBuildArtifact()]
    update = ms.measure_callback.UpdateCostModel()
    with tempfile.TemporaryDirectory(prefix="felixlike-stock-") as folder:
        ms.tune_tir(
            task.module,
            task.target,
            folder,
            trials,
            measure_callbacks=[*defaults, update, Note()],
            seed=seed + 1,
            builder="local" if kind_of(target).on_host else ms.builder.LocalBuilder(initializer=_our_compiler),
        )


def _our_compiler() -> None:
    """Compile CUDA source as felixlike does in each of MetaSchedule's builders, so that both sides pay the same."""
    from felixlike import _tvm, codegen

    def compiled(code: str, *_: Any) -> bytes:
        return codegen.compile_source(code, str(_tvm.Target.current().attrs["arch"]))

    _tvm.tvm_ffi.register_global_func("tvm_callback_cuda_compile", compiled, override=True)


if __name__ == "__main__":
    main()
