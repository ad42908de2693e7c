"""Check whether a source change alters generated code: python -m benchmarks.digests FILE, at two commits.

The benchmark writes a JSON file with digests of the code of every operator of `support.operators`, some of them also
with constant weights, and of four networks, both per task and as a whole. Every sketch of both spaces is lowered at
the same few points. To list differences: python -m benchmarks.digests --compare BEFORE AFTER. The exit code is 1 if
there are any. The same commit gives the same digests in every process. Digests depend on the processor, so --mcpu
selects the one to compile for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support import models
from support.operators import OPERATORS

from benchmarks.exactness import CONSTANT_WEIGHTS
from felixlike import _tvm, codegen
from felixlike.errors import InvalidSchedule
from felixlike.frontend import Task, import_model, make_task
from felixlike.hardware import resolve_target
from felixlike.measure.child import trial_process
from felixlike.runtime.compile_model import _substitute
from felixlike.runtime.constant_packing import with_packed_constants
from felixlike.symbolic import sketches

NETWORKS = ("resnet18", "mobilenet_v2", "bert", "mlp")


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", help="where to write the digests")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help="two such files")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--points", type=int, default=2, help="points a sketch")
    parser.add_argument("--mcpu", help="LLVM's name of the processor to compile for; this machine's by default")
    arguments = parser.parse_args()
    if arguments.compare:
        return _compare(*(json.loads(path.read_text()) for path in arguments.compare))
    if arguments.file is None:
        parser.error("give a FILE, or two to --compare")
    target = resolve_target("cpu")
    if arguments.mcpu:
        target = _tvm.Target({"kind": "llvm", "mcpu": arguments.mcpu, "num-cores": 2})
    digests: dict[str, str] = {}
    for name, digest in _digests(target, arguments.only, arguments.points):
        digests[name] = digest
        print(name, digest[:60], flush=True)
    arguments.file.write_text(json.dumps(digests, indent=1) + "\n")
    return 0


def _compare(before: dict[str, str], after: dict[str, str]) -> int:
    """Print the differences and return 1 if there are any, else 0."""
    differing = [name for name in before.keys() & after.keys() if before[name] != after[name]]
    for name in sorted(differing):
        print(f"differs: {name}: {before[name][:60]} → {after[name][:60]}")
    for name in sorted(before.keys() ^ after.keys()):
        print(f"only {'before' if name in before else 'after'}: {name}")
    print(f"{len(before.keys() & after.keys()) - len(differing)} of {len(before.keys() | after.keys())} are the same")
    return int(before != after)


def _digests(target: Any, only: str, points: int) -> Iterator[tuple[str, str]]:
    """Yield (workload, space, sketch and point; digest) in a fixed order."""
    for name, make in OPERATORS.items():
        if only in name:
            yield from _task_digests(name, make_task(make(), target, name=name), points)
        if name in CONSTANT_WEIGHTS and only in f"{name}, constant weight":
            yield from _task_digests(
                f"{name}, constant weight", make_task(make(), target, name=name, constants=[1]), points
            )
    for name in NETWORKS:
        if only in name:
            yield from _network_digests(name, target, points)


def _task_digests(name: str, task: Task, points: int) -> Iterator[tuple[str, str]]:
    for space in ("own", "default"):
        for sketch in sketches(task, space=space):
            for point in sketch.sample(points, seed=3).tolist():
                yield f"{name} / {space} {sketch.index} / {point}", _code(sketch, point)


def _code(sketch: Any, point: list[int]) -> str:
    try:
        module = sketch.schedule(point).mod
    except InvalidSchedule as refusal:
        return f"refused: {refusal.what}"
    executable, packed = trial_process._compile(_tvm.ir.save_json(module), sketch.task.target)
    return f"{codegen.code_digest(executable)} {json.dumps(packed)}"


def _network_digests(name: str, target: Any, points: int) -> Iterator[tuple[str, str]]:
    """Yield the digests of each task and of the whole network with the first point of each task's first sketch."""
    model, inputs = getattr(models, name)()
    imported = import_model(model, inputs, target)
    chosen: dict[str, Any] = {}
    for task in imported.tasks:
        yield from _task_digests(f"{name}: {task.name}", task, points)
        for sketch in sketches(task, space="best")[:1]:
            try:
                chosen[task.key] = sketch.schedule(sketch.sample(1, seed=3)[0]).mod["main"]
            except InvalidSchedule:
                continue
    module = with_packed_constants(_substitute(imported, chosen))
    lowered, executable = codegen.compile_relax(module, target)
    text = hashlib.sha256(str(lowered["main"].script()).encode()).hexdigest()
    yield f"{name} / graph", text
    for number, library in enumerate(executable.mod.imports):
        if library.kind == "llvm":
            yield f"{name} / library {number}", codegen.code_digest(SimpleNamespace(mod=library))


if __name__ == "__main__":
    sys.exit(main())
