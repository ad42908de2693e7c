"""Compare single operators with PyTorch's kernels: python -m benchmarks.operators [--only NAME ...] [--threads 1 2].

Each operator is a model of its own, compiled with predicted schedules (`trials=0`), and is timed in turns with eager
PyTorch, each side in its own process. The benchmark prints the smallest latencies of both sides, their ratio, and the
largest difference from float64, relative to the largest result. It writes no file.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from support.models import Apply
from torch import Tensor
from torch.nn import functional

import felixlike as fx
from felixlike.bench.sides import EAGER, TUNED, inference
from felixlike.hardware import placement
from felixlike.measure.sides.processes import Sides

_Input = tuple[int, ...] | Callable[[], Tensor]
"""The shape of normally distributed numbers, or a function that makes a tensor."""

OPERATORS: dict[str, tuple[Callable[..., Tensor], tuple[_Input, ...]]] = {
    "topk": (lambda x: torch.topk(x, 10)[0], ((64, 4096),)),
    "sort": (lambda x: torch.sort(x)[0], ((64, 4096),)),
    "sum of a million": (torch.sum, ((1000, 1000),)),
    "mean of columns": (lambda x: x.mean(0), ((1024, 1024),)),
    "max of rows": (lambda x: x.amax(-1), ((1024, 1024),)),
    "argmax": (lambda x: x.argmax(-1), ((1024, 1024),)),
    "erf GELU": (functional.gelu, ((128, 3072),)),
    "erf GELU of a million": (functional.gelu, ((1024, 1024),)),
    "tanh GELU": (partial(functional.gelu, approximate="tanh"), ((128, 3072),)),
    "SiLU": (functional.silu, ((128, 3072),)),
    "exp": (torch.exp, ((128, 3072),)),
    "log2": (torch.log2, (partial(torch.linspace, 0.01, 1000.0, 1024 * 1024),)),
    "bilinear ×8": (partial(functional.interpolate, scale_factor=8, mode="bilinear"), ((1, 16, 32, 32),)),
    "max pooling 3×3": (partial(functional.max_pool2d, kernel_size=3, stride=2, padding=1), ((1, 64, 112, 112),)),
    "max pooling 3×3, stride 1": (
        partial(functional.max_pool2d, kernel_size=3, stride=1, padding=1),
        ((1, 64, 56, 56),),
    ),
    "average pooling 3×3": (partial(functional.avg_pool2d, kernel_size=3, stride=2, padding=1), ((1, 64, 112, 112),)),
    "softmax": (partial(functional.softmax, dim=-1), ((1536, 128),)),
    "softmax, long": (partial(functional.softmax, dim=-1), ((256, 4096),)),
    "layer norm": (lambda x: functional.layer_norm(x, x.shape[-1:]), ((128, 768),)),
    "A·B": (torch.matmul, ((512, 512), (512, 512))),
    "A·Bᵀ, odd": (lambda a, b: a @ b.T, ((333, 517), (251, 517))),
    "transpose": (lambda x: x.transpose(0, 1).contiguous(), ((1024, 1024),)),
    "argsort": (partial(torch.argsort, dim=-1), ((64, 1024),)),
    "median": (lambda x: x.median(-1)[0], ((64, 1000),)),
    "bicubic ×2": (partial(functional.interpolate, scale_factor=2, mode="bicubic"), ((1, 16, 64, 64),)),
    "trilinear ×2": (partial(functional.interpolate, scale_factor=2, mode="trilinear"), ((1, 16, 8, 16, 16),)),
    "bilinear, smoothed": (
        partial(functional.interpolate, size=56, mode="bilinear", antialias=True),
        ((1, 16, 112, 112),),
    ),
    "cumulative sum": (partial(torch.cumsum, dim=-1), ((256, 1024),)),
    "adaptive average pooling": (partial(functional.adaptive_avg_pool2d, output_size=7), ((1, 512, 14, 14),)),
    "adaptive average pooling, uneven": (partial(functional.adaptive_avg_pool2d, output_size=6), ((1, 64, 20, 20),)),
    "embedding bag": (
        functional.embedding_bag,
        (partial(torch.randint, 10_000, (2048,)), (10_000, 64), partial(torch.arange, 0, 2048, 16)),
    ),
    "one hot": (partial(functional.one_hot, num_classes=100), (partial(torch.randint, 100, (4096,)),)),
    "one hot, 256 rows": (partial(functional.one_hot, num_classes=100), (partial(torch.randint, 100, (256,)),)),
    "grid sample": (partial(functional.grid_sample, align_corners=False), ((1, 32, 64, 64), (1, 64, 64, 2))),
    "grid sample, 3 channels": (
        partial(functional.grid_sample, align_corners=False),
        ((1, 3, 224, 224), (1, 224, 224, 2)),
    ),
    "any NaN": (lambda x: x.isnan().any(), ((1024, 1024),)),
    "fold": (partial(functional.fold, output_size=32, kernel_size=3, padding=1), ((1, 144, 1024),)),
    "fmod": (torch.fmod, ((1024, 1024), (1024, 1024))),
    "bucketize": (torch.bucketize, ((65_536,), partial(torch.linspace, -3, 3, 1000))),
    "short-time Fourier transform": (
        lambda x, w: torch.view_as_real(torch.stft(x, 400, 160, window=w, return_complex=True)),
        ((1, 16_000), partial(torch.hann_window, 400)),
    ),
    "quantile": (partial(torch.quantile, q=0.5, dim=-1), ((256, 1024),)),
    "histogram": (partial(torch.histc, bins=100, min=-3, max=3), ((65_536,),)),
}
"""Functions with their inputs."""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=OPERATORS, default=list(OPERATORS), help="names of operators")
    parser.add_argument("--threads", nargs="*", type=int, default=sorted({1, placement.threads()}))
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for each side")
    arguments = parser.parse_args()
    print(
        "| operator | threads | PyTorch (µs) | ours (µs) | ratio | error |\n| --- | ---: | ---: | ---: | ---: | ---: |"
    )
    with tempfile.TemporaryDirectory(prefix="felixlike-operators-") as folder, Sides() as sides:
        path = Path(folder) / "operator.flx"
        for name in arguments.only:
            model, inputs = _model(name)
            try:
                optimized = fx.optimize(model, example_inputs=inputs, trials=0, progress=False)
            except fx.errors.UnsupportedOperator as refusal:
                print(f"| {name} | refused: {refusal} |", flush=True)
                continue
            optimized.save(path)
            error = _error(optimized(*inputs), model(*map(_wide, inputs)))
            for threads in arguments.threads:
                makes = {EAGER: partial(_eager, name, threads), TUNED: partial(_ours, path, name, threads)}
                times = sides.compare(makes, seconds_a_side=arguments.seconds, slot=0.05)
                eager, ours = (times[side].least * 1e6 for side in (EAGER, TUNED))
                print(
                    f"| {name} | {threads} | {eager:.1f} | {ours:.1f} | {eager / ours:.2f} | {error:.1e} |", flush=True
                )


def _model(name: str) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    """Return an operator as a module, and its inputs."""
    function, inputs = OPERATORS[name]
    torch.manual_seed(0)
    return Apply(function).eval(), tuple(made() if callable(made) else torch.randn(made) for made in inputs)


def _wide(value: Tensor) -> Tensor:
    """Return floats as float64, and other numbers as they are."""
    return value.double() if value.is_floating_point() else value


def _error(result: Any, reference: Any) -> float:
    """Return the largest difference from the reference divided by the reference's largest absolute value."""
    reference = reference.double()
    return float((result.double() - reference).abs().max() / reference.abs().max().clamp(min=1e-9))


def _eager(name: str, threads: int) -> Callable[[], object]:
    """Create the call of an operator in eager PyTorch."""
    torch.set_num_threads(threads)
    return inference(*_model(name))


def _ours(path: Path, name: str, threads: int) -> Callable[[], object]:
    """Create the call of a saved operator."""
    return inference(fx.load(path, threads=threads), _model(name)[1])


if __name__ == "__main__":
    main()
