"""Define the kernels of the slides on tensor comprehensions, and three operators that no library has.

`KERNELS` maps names to a `Kernel`: the program, the shapes of its inputs, and the same computation in PyTorch. Shapes
are those of "Tensor Comprehensions" (2018), table 1, with a smaller lookup table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A program with the shape and type of each of its inputs.

    `below` bounds integer inputs. `eager` computes the same, or the last output, in PyTorch.
    """

    source: str
    inputs: tuple[tuple[Shape, str], ...]
    eager: Callable[..., Any]
    below: int = 0
    ours: bool = False

    def tensors(self) -> list[torch.Tensor]:
        """Return random inputs."""
        random = torch.Generator().manual_seed(0)

        def filled(shape: Shape, dtype: str) -> torch.Tensor:
            if "int" not in dtype:
                return torch.rand(shape, generator=random) - 0.5
            low, high = (-128, 128) if dtype == "int8" else (0, self.below)
            return torch.randint(low, high, shape, generator=random).to(getattr(torch, dtype))

        return [filled(shape, dtype) for shape, dtype in self.inputs]


def _f(*shapes: Shape) -> tuple[tuple[Shape, str], ...]:
    return tuple((shape, "float32") for shape in shapes)


def _lookups(*shapes: tuple[Shape, Shape]) -> tuple[tuple[Shape, str], ...]:
    return tuple(pair for table, indices in shapes for pair in ((table, "float32"), (indices, "int32")))


def _dense(x: torch.Tensor, *layers: torch.Tensor) -> torch.Tensor:
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        x = functional.relu(functional.linear(x, weight, bias))
    return x


def _bags(*tables_and_indices: torch.Tensor) -> Any:
    return tuple(
        functional.embedding_bag(i, t, mode="sum")
        for t, i in zip(tables_and_indices[::2], tables_and_indices[1::2], strict=True)
    )


def _window(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Attend from each query to its own key and the 31 before it. Keys before the first are masked."""
    _, length, size = q.shape
    keys = functional.pad(k, (0, 0, 31, 0)).unfold(1, 32, 1)
    scores = torch.matmul(q.unsqueeze(2), keys).squeeze(2) * size**-0.5
    reached = torch.arange(length).unsqueeze(1) + torch.arange(32).unsqueeze(0) >= 31
    masked: torch.Tensor = scores.masked_fill(~reached, -1e9)
    return masked


def _bilinear(x: torch.Tensor, y: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x.transpose(1, 2), y) / x.shape[1] * torch.sigmoid(gate)


def _quantised(a: torch.Tensor, b: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (a.float() @ b.float().T - zero.float()) * scale


_CONV = """def conv(float(N,G,C,H,W) I, float(G,F,C,KH,KW) W1, float(G,F) B) -> (O) {
    O(n, g, o, h, w) +=! I(n, g, i, h + kh, w + kw) * W1(g, o, i, kh, kw)
    O(n, g, o, h, w) = O(n, g, o, h, w) + B(g, o)
}"""


def _grouped(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    groups = weight.shape[0]
    result = functional.conv2d(x.flatten(1, 2), weight.flatten(0, 1), bias.flatten(), groups=groups)
    return result.reshape(result.shape[0], groups, -1, *result.shape[2:])


_MLP1 = """def mlp1(float(B,M) I, float(N,M) W, float(N) b) -> (O) {
    O(i, n) +=! I(i, m) * W(n, m)
    O(i, n) = fmax(O(i, n) + b(n), 0.0)
}"""
_MLP3 = """def mlp3(float(B,N) I, float(O,N) W2, float(O) B2, float(P,O) W3, float(P) B3, float(Q,P) W4, float(Q) B4)
    -> (O2, O3, O4) {
    O2(b, o) = B2(o) where b in 0:B
    O2(b, o) += I(b, n) * W2(o, n)
    O2(b, o) = fmax(O2(b, o), 0.0)
    O3(b, p) = B3(p) where b in 0:B
    O3(b, p) += O2(b, o) * W3(p, o)
    O3(b, p) = fmax(O3(b, p), 0.0)
    O4(b, q) = B4(q) where b in 0:B
    O4(b, q) += O3(b, p) * W4(q, p)
    O4(b, q) = fmax(O4(b, q), 0.0)
}"""
_LUT = """def lut1(float(E,D) T, int32(B,L) I) -> (O) { O(b, d) +=! T(I(b, l), d) }"""
_LUT2 = """def lut2(float(E1,D) T1, int32(B,L1) I1, float(E2,D) T2, int32(B,L2) I2) -> (O1, O2) {
    O1(b, d) +=! T1(I1(b, l), d)
    O2(b, d) +=! T2(I2(b, l), d)
}"""
_WINDOW = """def window(float(H,T,D) Q, float(H,T,D) K) -> (P, S) {
    P(h, d, x) = (x >= 31) ? K(h, x - 31, d) : 0.0 where x in 0:T + 31
    S(h, t, w) +=! Q(h, t, d) * P(h, d, t + w) where t in 0:T, w in 0:32
    S(h, t, w) = (t + w >= 31) ? S(h, t, w) * rsqrt(float(D)) : -1e9
}"""
_BILINEAR = """def bilinear(float(B,P,M) X, float(B,P,N) Y, float(M,N) G) -> (O) {
    O(b, m, n) +=! X(b, p, m) * Y(b, p, n)
    O(b, m, n) = O(b, m, n) / P * s where s = 1.0 / (1.0 + exp(-G(m, n)))
}"""
_QUANTISED = """def quantised(int8(M,K) A, int8(N,K) B, int32(N) Z, float(N) S) -> (C, O) {
    C(m, n) +=! int32(A(m, k)) * int32(B(n, k))
    O(m, n) = float(C(m, n) - Z(n)) * S(n)
}"""

KERNELS: dict[str, Kernel] = {
    "tmm": Kernel(
        "def tmm(float(M,K) A, float(N,K) B) -> (C) { C(m, n) +=! A(m, k) * B(n, k) }",
        _f((128, 1024), (1024, 1024)),
        lambda a, b: a @ b.T,
    ),
    "tbmm": Kernel(
        "def tbmm(float(B,N,M) X, float(B,K,M) Y) -> (Z) { Z(b, n, k) +=! X(b, n, m) * Y(b, k, m) }",
        _f((500, 26, 72), (500, 26, 72)),
        lambda x, y: torch.bmm(x, y.transpose(1, 2)),
    ),
    "group convolution": Kernel(_CONV, _f((32, 32, 4, 56, 56), (32, 4, 4, 3, 3), (32, 4)), _grouped),
    "1LUT": Kernel(_LUT, _lookups(((100_000, 64), (128, 50))), _bags, below=100_000),
    "2LUT": Kernel(_LUT2, _lookups(((100_000, 64), (128, 50)), ((100_000, 64), (128, 50))), _bags, below=100_000),
    "MLP1": Kernel(_MLP1, _f((128, 2000), (128, 2000), (128,)), _dense),
    "C3": Kernel(
        "def c3(float(B,WX) I, float(WY,WX) W) -> (C3) { C3(b, wy) +=! I(b, wxx) * W(wy, wxx) }",
        _f((128, 1000), (1024, 1000)),
        lambda i, w: i @ w.T,
    ),
    "MLP3": Kernel(_MLP3, _f((128, 128), (64, 128), (64,), (32, 64), (32,), (2, 32), (2,)), _dense),
    "window scores": Kernel(_WINDOW, _f((8, 512, 64), (8, 512, 64)), _window, ours=True),
    "gated bilinear pooling": Kernel(_BILINEAR, _f((32, 49, 64), (32, 49, 96), (64, 96)), _bilinear, ours=True),
    "quantised product": Kernel(
        _QUANTISED,
        (((128, 256), "int8"), ((256, 256), "int8"), ((256,), "int32"), ((256,), "float32")),
        _quantised,
        below=128,
        ours=True,
    ),
}
"""Kernels by name. The last three are felixlike's own."""
