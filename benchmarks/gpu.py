"""Right and fast on a GPU?  python -m benchmarks.gpu [--points 2] [--seconds 120].

points: for every operator of `felixlike.testing.operators`, every sketch, a few random valid points: compiled, run, and
compared with float64. networks: tuned and compared with PyTorch eager (TF32 off and on), torch.compile and TVM's
default GPU schedules, interleaved. Writes docs/results/gpu_points and gpu_networks; fails without a GPU.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.results import geometric_mean, write
from felixlike.bench.timing import interleaved, timer

NETWORKS = ("resnet18", "bert", "mlp")


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=2, help="points a sketch; 0 leaves this part out")
    parser.add_argument("--only", default="", help="operators whose name contains this")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--seconds", type=float, default=120.0, help="time for tuning each network")
    parser.add_argument("--store", help="keep the measurements of networks here")
    arguments = parser.parse_args()
    from felixlike.hardware import device_name, resolve_target

    target = resolve_target("cuda")
    gpu = device_name(target)
    if arguments.points:
        _points(target, gpu, arguments.points, arguments.only)
    if arguments.networks:
        _networks(arguments.networks.split(","), gpu, arguments.seconds, arguments.store)


def _points(target: Any, gpu: str, points: int, only: str) -> None:
    from felixlike.measure import MeasurePool
    from felixlike.search import Candidate
    from felixlike.symbolic import sketches
    from felixlike.testing.operators import OPERATORS

    rows: list[dict[str, Any]] = []
    with MeasurePool(target) as pool:
        for name, make in OPERATORS.items():
            if only not in name:
                continue
            started = time.monotonic()
            found = sketches(make(), target)
            candidates = [
                Candidate(sketch, tuple(point), float("nan"), "random")
                for sketch in found
                for point in sketch.sample(points, seed=7).tolist()
            ]
            measured = pool.measure(found[0].task, candidates)
            outcomes = Counter(m.status.value for m in measured)
            row: dict[str, Any] = {
                "operator": name,
                "sketches": len(found),
                "understood": sum(s.understood for s in found),
                "points": len(candidates),
                "outcomes": dict(outcomes),
                "error": max((m.error for m in measured if m.error is not None), default=None),
                "fastest": min(m.seconds for m in measured),
                "seconds": time.monotonic() - started,
                "messages": sorted({f"{m.status}: {m.message}" for m in measured if m.message}),
            }
            rows.append(row)
            print(_point_line(row), *row["messages"][:3], sep="\n  ", flush=True)
    lines = ["| operator | sketches | points | right | others | largest error |", "| --- " * 6 + "|"]
    total = Counter[str]()
    for row in rows:
        total.update(row["outcomes"])
        lines.append(_point_line(row))
    lines += ["", "All: " + ", ".join(f"{count} {outcome}" for outcome, count in total.most_common()) + "."]
    if not only:
        write("gpu_points", {"rows": rows}, "\n".join(lines), command=f"gpu --points {points}", gpu=gpu)


def _point_line(row: dict[str, Any]) -> str:
    others = ", ".join(f"{n} {outcome}" for outcome, n in row["outcomes"].items() if outcome != "ok") or "–"
    error = f"{row['error']:.1e}" if row["error"] is not None else "–"
    right = row["outcomes"].get("ok", 0)
    return f"| {row['operator']} | {row['sketches']} | {row['points']} | {right} | {others} | {error} |"


def _networks(names: list[str], gpu: str, seconds: float, store: str | None) -> None:
    rows = [_network(name, seconds, store) for name in names]
    lines = [
        "Milliseconds a call, inputs on the GPU. eager: cuDNN and cuBLAS in float32; TF32: with tensor cores, at lower",
        "precision; default: TVM's own GPU schedules (dlight), the same graph, not tuned.",
        "",
        f"| network | {' | '.join(_SIDES)} | eager ÷ tuned | default ÷ tuned | max error | trials | tuning s |",
        "| --- " * (len(_SIDES) + 6) + "|",
    ]
    for row in rows:
        times = " | ".join(f"{row[side] * 1e3:.3f}" if side in row else "–" for side in _SIDES)
        lines.append(
            f"| {row['network']} | {times} | {row['eager'] / row['tuned']:.2f} | {row['default'] / row['tuned']:.2f} "
            f"| {row['error']:.1e} | {row['trials']} | {row['tuning_seconds']:.0f} |"
        )
    for other in ("default", "eager"):
        lines += [
            "",
            f"{other} ÷ tuned, geometric mean: **{geometric_mean([r[other] / r['tuned'] for r in rows]):.2f}**.",
        ]
    write("gpu_networks", {"rows": rows}, "\n".join(lines), command=f"gpu --seconds {seconds:g}", gpu=gpu)


_SIDES = ("eager", "eager TF32", "torch.compile", "default", "tuned")


def _network(name: str, seconds: float, store: str | None) -> dict[str, Any]:
    import torch

    import felixlike as fx
    from felixlike.deploy import compile_model
    from felixlike.frontend import import_model
    from felixlike.testing import models

    model, inputs = getattr(models, name)()
    started = time.monotonic()
    tuned = fx.optimize(model, inputs, seconds=seconds, target="cuda", store=store, progress="plain")
    print(tuned.report, f"{time.monotonic() - started:.0f} s", flush=True)
    plain = compile_model(import_model(model, inputs, "cuda"))
    model, inputs = model.cuda(), tuple(tensor.cuda() for tensor in inputs)
    sides: dict[str, Callable[[], object]] = {
        "eager": _eager(model, inputs, tf32=False),
        "eager TF32": _eager(model, inputs, tf32=True),
        "default": lambda: plain(*inputs),
        "tuned": lambda: tuned(*inputs),
    }
    compiled = _eager(torch.compile(model), inputs, tf32=False)
    try:
        compiled()
        sides["torch.compile"] = compiled
    except Exception as error:
        print(f"torch.compile does not work here: {type(error).__name__}: {str(error)[:200]}", flush=True)
    times = interleaved({side: timer(_synchronised(run)) for side, run in sides.items()})
    row: dict[str, Any] = {"network": name, "error": tuned.report.error, "trials": tuned.report.trials}
    row |= {"tuning_seconds": tuned.report.seconds, "total_seconds": tuned.report.total_seconds}
    row |= {side: t.seconds for side, t in times.items()}
    row["quartiles"] = {side: [t.low, t.high] for side, t in times.items()}
    print({side: f"{t.seconds * 1e3:.3f} ms" for side, t in times.items()}, flush=True)
    return row


def _eager(model: Any, inputs: tuple[Any, ...], *, tf32: bool) -> Callable[[], object]:
    import torch

    def run() -> object:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
        with torch.inference_mode():
            return model(*inputs)

    return run


def _synchronised(run: Callable[[], object]) -> Callable[[], object]:
    """A call that ends when the GPU has ended."""
    import torch

    def call() -> object:
        result = run()
        torch.cuda.synchronize()
        return result

    return call


if __name__ == "__main__":
    main()
