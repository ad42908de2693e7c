"""Compute how much of a computation is padding.

Input: extents and tiles. Output: K.pad of FTuner's eq. 2.
"""

from __future__ import annotations

import numpy as np

from felixlike.dynamic.ukernel import Floats, Ints, UKernels, Workload, ceil_div


def padding_threshold(kernels: UKernels, workloads: list[Workload]) -> Floats:
    """Return K.pad = wkl.base(K) / (wkl.pad(K) + wkl.base(K)): float64[n, workloads].

    This is the size in bytes of operands and output, divided by their size in whole tiles.
    """
    padded = [
        _bytes(w, *(ceil_div(_of(e), t) * t for e, t in zip((w.i, w.j, w.k), kernels.smem.T, strict=True)))
        for w in workloads
    ]
    base = [_bytes(w, _of(w.i), _of(w.j), _of(w.k)) for w in workloads]
    return np.asarray(
        np.stack([b / p for b, p in zip(base, padded, strict=True)], axis=1).reshape(len(kernels), len(workloads))
    )


def _of(extent: int) -> Ints:
    return np.asarray([extent], dtype=np.int64)


def _bytes(workload: Workload, i: Ints, j: Ints, k: Ints) -> Floats:
    elements = i * k + j * k + i * j
    return np.asarray(elements * float(workload.batch * workload.item_bytes))
