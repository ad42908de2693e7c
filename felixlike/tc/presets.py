"""Mapping options that Tensor Comprehensions predefines for kinds of operators.

Input: a target. Output: `Options` with the numbers of the original's CUDA backend (`cuda_mapping_options.cc`). On CPUs
its only preset has tiles and unrolling alone, so blocks, threads, memory and fusion are left out there.
"""

from __future__ import annotations

from typing import Any

from felixlike.hardware import kind_of, resolve_target
from felixlike.tc.options import Options


def make_naive_mapping_options(target: Any = "cpu") -> Options:
    """Return options for any operator: tiles of 32 × 32 × 32, 32 × 8 threads.

    Args:
        target: "cpu", "cuda" or a TVM target.

    Raises:
        UnknownTarget: The target is unknown.

    Example:
        kernel.tune(a, b, starting_options=fx.tc.make_naive_mapping_options())
    """
    return _mapped(target, Options().tile(32, 32, 32).unroll(1), threads=(32, 8), blocks=(256, 256))


def make_single_thread_mapping_options(target: Any = "cpu") -> Options:
    """Return options for one thread. See `make_naive_mapping_options`."""
    return _mapped(target, Options().tile(1).unroll(1), threads=(1,), blocks=(1,))


def make_pointwise_mapping_options(target: Any = "cpu") -> Options:
    """Return options for elementwise operators. See `make_naive_mapping_options`."""
    return _mapped(target, Options().tile(32, 32, 32).unroll(128), threads=(32, 4, 4), blocks=(100, 100, 100))


def make_mlp_mapping_options(target: Any = "cpu") -> Options:
    """Return options for dense layers, which the original fuses by "Max". See `make_naive_mapping_options`."""
    return _mapped(target, Options().tile(1).unroll(1), threads=(128,), blocks=(128,), fusion="Max")


def make_convolution_mapping_options(target: Any = "cpu") -> Options:
    """Return options for convolutions. See `make_naive_mapping_options`."""
    return _mapped(target, Options().tile(4, 8, 8, 8).unroll(1), threads=(4, 16, 4), blocks=(256, 256, 256))


def make_group_convolution_mapping_options(target: Any = "cpu") -> Options:
    """Return options for grouped convolutions. See `make_naive_mapping_options`."""
    return _mapped(target, Options().tile(1, 1).unroll(1), threads=(4, 16, 4), blocks=(256, 256))


def _mapped(
    target: Any, options: Options, *, threads: tuple[int, ...], blocks: tuple[int, ...], fusion: str | None = None
) -> Options:
    """Add what only GPUs have. The original's presets use neither shared nor private memory."""
    if kind_of(resolve_target(target)).on_host:
        return options
    options = options.map_to_threads(*threads).map_to_blocks(*blocks)
    options = options.use_shared_memory(False).use_private_memory(False)
    return options.fuse(fusion) if fusion else options
