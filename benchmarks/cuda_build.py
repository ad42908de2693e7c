"""Measure how long building a CUDA candidate takes: python -m benchmarks.cuda_build [--points 4].

Random valid points of a matrix product, a convolution, a softmax and an int8 product for sm_90 are each built on one
core: scheduled, lowered to source by TVM, and compiled by NVRTC, with TVM's headers and flags and with felixlike's
preamble. The benchmark needs NVRTC and the headers of libcu++ (nvidia-cuda-cccl) but no GPU. It writes
docs/results/cuda_build.json and .md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.results import write

OPERATORS = ("matmul", "conv2d_3x3", "softmax", "int8_matmul")
_TVMS = """\
#include <cuda/std/cstdint>
using cuda::std::uint8_t; using cuda::std::uint16_t; using cuda::std::uint32_t; using cuda::std::uint64_t;
using cuda::std::int8_t; using cuda::std::int16_t; using cuda::std::int32_t; using cuda::std::int64_t;
#define __asm__ asm
#define __volatile__ volatile
#include <cuda/std/limits>
#define INFINITY (::cuda::std::numeric_limits<float>::infinity())
"""
"""The preamble that TVM 0.27 adds to every source (tvm/support/nvcc.py)."""
_FLAGS = ("--use_fast_math", "--ptxas-options=--register-usage-level=10", "--device-int128", "-default-device")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=4, help="of each sketch")
    points = parser.parse_args().points
    from felixlike.codegen import nvrtc

    rows = [row for name in OPERATORS for row in _rows(name, points)]
    columns = ("operator", "candidates", "characters", "scheduled, lowered", "TVM's headers", "ours", "ratio")
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    lines += [_line(n, [row for row in rows if n in ("all", row["operator"])]) for n in (*OPERATORS, "all")]
    heading = f"Medians, seconds of a core. NVRTC {nvrtc.version()}, sm_90. A side's failures are left out."
    failed = {side: sum(row[side] is None for row in rows) for side in ("tvm", "ours")}
    text = "\n".join(
        [heading, "", *lines, "", f"Failed: {failed['tvm']} with TVM's headers, {failed['ours']} with ours."]
    )
    write("cuda_build", {"rows": rows}, text)


def _line(name: str, rows: list[dict[str, Any]]) -> str:
    def middle(side: str) -> float:
        return float(statistics.median(row[side] for row in rows if row[side] is not None))

    times = " | ".join(f"{middle(side):.2f}" for side in ("lower", "tvm", "ours"))
    both = [row["tvm"] / row["ours"] for row in rows if row["tvm"] and row["ours"]]
    return f"| {name} | {len(rows)} | {middle('characters'):.0f} | {times} | {statistics.median(both):.1f} |"


def _rows(name: str, points: int) -> list[dict[str, Any]]:
    from support.operators import OPERATORS as ALL

    from felixlike import codegen
    from felixlike.codegen import nvrtc
    from felixlike.errors import CompilationFailed
    from felixlike.symbolic import sketches

    folder = nvrtc.header_folder()
    headers = [f"-I{folder}", f"-I{Path(str(folder)) / 'cccl'}", "--gpu-architecture=sm_90", *_FLAGS]
    rows = []
    for sketch in sketches(ALL[name](), "sm_90", space="default"):
        for point in sketch.sample(points, seed=3).tolist():
            started = time.process_time()
            executable = codegen.compile_primfuncs(sketch.schedule(point).mod, sketch.task.target)
            source = codegen.cuda_source(executable)
            row: dict[str, Any] = {"operator": name, "characters": len(source), "lower": time.process_time() - started}
            tvm_source = _TVMS + source.replace("#include <cuda.h>", "")
            sides: dict[str, Callable[[], bytes]] = {
                "tvm": partial(nvrtc.compiled, tvm_source, headers),
                "ours": partial(codegen.compile_source, source, "sm_90"),
            }
            for side, compiled in sides.items():
                started = time.process_time()
                try:
                    compiled()
                    row[side] = time.process_time() - started
                except CompilationFailed:
                    row[side] = None
            rows.append(row)
            print(row, flush=True)
    return rows


if __name__ == "__main__":
    main()
