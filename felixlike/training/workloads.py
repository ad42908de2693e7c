"""Build single-layer training workloads from lines such as "conv2d channels=32 size=40 kernel=3 after=relu".

The input is lines, the output modules with example inputs. The shipped weights were trained on measurements of the list
`DEFAULT`. Its sizes occur in networks, but none is a workload, or a layer of a network, that a benchmark reports on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources

import torch
from torch import Tensor, nn

from felixlike._util.wording import choose_from
from felixlike.errors import InvalidOption

Made = tuple[nn.Module, tuple[Tensor, ...]]
"""A module and its inputs."""

DEFAULT = "workloads.txt"
"""File name of the shipped list, beside this file."""


@dataclass(frozen=True, slots=True)
class Line:
    """Workload of one line.

    Attributes:
        text: The line's words.
        operator: Key of `OPERATORS`.
        sizes: All sizes of the operator by name, including defaults.
        after: Name of the fused operation (see `_AFTER`); empty for none.
    """

    text: str
    operator: str
    sizes: dict[str, int]
    after: str

    def make(self) -> Made:
        """Return the module in eval mode and its inputs. Weights and inputs are random with a fixed seed."""
        state = torch.random.get_rng_state()
        try:
            torch.manual_seed(0)
            layer, inputs = OPERATORS[self.operator].build(**self.sizes)
            if self.after == "residual":
                with torch.no_grad():
                    inputs = (*inputs, torch.randn_like(layer(*inputs)))
            return _After(layer, self.after).eval(), inputs
        finally:
            torch.random.set_rng_state(state)


def shipped_lines() -> list[Line]:
    """Return the lines of the shipped list."""
    return parse_lines(resources.files(__package__).joinpath(DEFAULT).read_text(), where=DEFAULT)


def parse_lines(text: str, *, where: str) -> list[Line]:
    """Parse the workloads of a text, one a line; # begins a comment.

    Args:
        text: The text.
        where: Its source, for error messages.

    Raises:
        InvalidOption: A line is malformed; the error names the line.
    """
    lines: list[Line] = []
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.partition("#")[0].split():
            lines.append(_line(words, f"{where}, line {number}"))
    return lines


def _line(words: list[str], where: str) -> Line:
    """Parse the words of a line."""
    operator, *options = words
    known = OPERATORS.get(operator)
    if known is None:
        raise InvalidOption(f"unknown operator {operator!r}", where=where, remedy=choose_from(operator, OPERATORS))
    sizes, after = dict(known.sizes), ""
    for option in options:
        name, sign, value = option.partition("=")
        if name == "after" and value in _AFTER:
            after = value
        elif name in known.sizes and sign and re.fullmatch(r"0*[1-9]\d{0,17}", value, re.ASCII):
            sizes[name] = int(value)
        else:
            raise InvalidOption(
                f"invalid option {option!r} of {operator}",
                where=where,
                remedy=f"use SIZE=NUMBER, where SIZE is one of {', '.join(known.sizes)}, "
                f"or after=OPERATION, where OPERATION is one of {', '.join(_AFTER)}",
            )
    return Line(" ".join(words), operator, sizes, after)


_AFTER: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
    "residual": torch.relu,
}
"""Operations that may follow a layer: an activation, or relu(layer(x) + a tensor) for "residual"."""


class _After(nn.Module):
    """Layer with a following operation of `_AFTER`."""

    def __init__(self, layer: nn.Module, after: str) -> None:
        super().__init__()
        self.layer = layer
        self.after = after

    def forward(self, *inputs: Tensor) -> Tensor:
        """Apply the layer and the following operation; "residual" adds the last input."""
        result: Tensor = self.layer(*inputs[: len(inputs) - (self.after == "residual")])
        if self.after == "residual":
            result = result + inputs[-1]
        return _AFTER[self.after](result) if self.after else result


class _Last(nn.Module):
    """Convolution with channels-last input and output."""

    def __init__(self, convolution: nn.Module) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: Tensor) -> Tensor:
        """Apply the convolution to a channels-last tensor."""
        result: Tensor = self.convolution(x.permute(0, 3, 1, 2))
        return result.permute(0, 2, 3, 1)


class _Function(nn.Module):
    """Function as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        """Call the function."""
        return self.function(*inputs)


def _dense(rows: int, inputs: int, outputs: int, bias: int) -> Made:
    """Return a linear layer; `bias` is 1 for a bias, else another number."""
    return nn.Linear(inputs, outputs, bias=bias == 1), (torch.randn(rows, inputs),)


def _matmul(batch: int, rows: int, inner: int, columns: int, transposed: int) -> Made:
    """Return a batched matrix product; `transposed` is 2 if the second matrix is transposed, else 1."""
    second = torch.randn(batch, columns, inner).mT if transposed == 2 else torch.randn(batch, inner, columns)
    function = (lambda a, b: a @ b.mT) if transposed == 2 else (lambda a, b: a @ b)
    return _Function(function), (torch.randn(batch, rows, inner), second.mT if transposed == 2 else second)


def _convolution(make: Callable[..., nn.Module], dimensions: int) -> Callable[..., Made]:
    """Return the builder of a convolution; its `last` is 2 for channels last (2-D only), else 1."""

    def build(
        batch: int, channels: int, outputs: int, size: int, kernel: int, stride: int, groups: int, **more: int
    ) -> Made:
        depth, dilation, last = more.get("depth", size), more.get("dilation", 1), more.get("last", 1)
        padding = dilation * (kernel // 2)
        layer = make(channels, outputs, kernel, stride, padding, groups=groups, dilation=dilation)
        sizes = [depth, *[size] * (dimensions - 1)] if dimensions == 3 else [size] * dimensions
        x = torch.randn(batch, channels, *sizes)
        if last == 2:
            return _Last(layer), (x.permute(0, 2, 3, 1).contiguous(),)
        return layer, (x,)

    return build


def _transposed(make: Callable[..., nn.Module], dimensions: int) -> Callable[..., Made]:
    """Return the builder of a transposed convolution."""

    def build(batch: int, channels: int, outputs: int, size: int, kernel: int, stride: int) -> Made:
        layer = make(channels, outputs, kernel, stride, (kernel - stride) // 2)
        return layer, (torch.randn(batch, channels, *[size] * dimensions),)

    return build


def _over_rows(make: Callable[[int], nn.Module]) -> Callable[..., Made]:
    """Return the builder of a layer over the rows of a matrix."""
    return lambda rows, columns: (make(columns), (torch.randn(rows, columns),))


def _images(make: Callable[[int], nn.Module]) -> Callable[..., Made]:
    """Return the builder of a layer over square images."""
    return lambda batch, channels, size: (make(channels), (torch.randn(batch, channels, size, size),))


def _of_rows(function: Callable[..., Tensor], count: int = 1) -> Callable[..., Made]:
    """Return the builder of a function of `count` matrices."""
    return lambda rows, columns: (_Function(function), tuple(torch.randn(rows, columns) for _ in range(count)))


@dataclass(frozen=True, slots=True)
class Operator:
    """Operator of a workload.

    Attributes:
        build: Returns the layer and its inputs for sizes by name.
        sizes: Default sizes by name.
    """

    build: Callable[..., Made]
    sizes: dict[str, int]


_WINDOW = {"batch": 1, "channels": 32, "outputs": 32, "size": 28, "kernel": 3, "stride": 1, "groups": 1, "dilation": 1}
_WIDENED = {"batch": 1, "channels": 32, "outputs": 32, "size": 14, "kernel": 4, "stride": 2}
_TABLE = {"rows": 128, "columns": 256}
_IMAGE = {"batch": 1, "channels": 32, "size": 28}

OPERATORS: dict[str, Operator] = {
    "dense": Operator(_dense, {"rows": 64, "inputs": 256, "outputs": 256, "bias": 1}),
    "matmul": Operator(_matmul, {"batch": 8, "rows": 64, "inner": 64, "columns": 64, "transposed": 1}),
    "conv1d": Operator(_convolution(nn.Conv1d, 1), _WINDOW),
    "conv2d": Operator(_convolution(nn.Conv2d, 2), {**_WINDOW, "last": 1}),
    "conv3d": Operator(_convolution(nn.Conv3d, 3), {**_WINDOW, "depth": 8}),
    "deconv1d": Operator(_transposed(nn.ConvTranspose1d, 1), _WIDENED),
    "deconv2d": Operator(_transposed(nn.ConvTranspose2d, 2), _WIDENED),
    "deconv3d": Operator(_transposed(nn.ConvTranspose3d, 3), _WIDENED),
    "softmax": Operator(_over_rows(lambda _: nn.Softmax(-1)), _TABLE),
    "log_softmax": Operator(_over_rows(lambda _: nn.LogSoftmax(-1)), _TABLE),
    "layer_norm": Operator(_over_rows(nn.LayerNorm), _TABLE),
    "rms_norm": Operator(_over_rows(nn.RMSNorm), _TABLE),
    "group_norm": Operator(_images(lambda channels: nn.GroupNorm(8, channels)), _IMAGE),
    "max_pool": Operator(_images(lambda _: nn.MaxPool2d(3, 2, 1)), _IMAGE),
    "avg_pool": Operator(_images(lambda _: nn.AvgPool2d(2, 2)), _IMAGE),
    "global_pool": Operator(_images(lambda _: nn.AdaptiveAvgPool2d(1)), _IMAGE),
    "sum": Operator(_of_rows(lambda x: x.sum(-1)), _TABLE),
    "transpose": Operator(_of_rows(lambda x: x.t().contiguous()), _TABLE),
    "multiply_add": Operator(_of_rows(lambda x, y: torch.tanh(x * y + x), 2), _TABLE),
}
"""Operators by name; their builders explain `last`, `transposed` and `bias`."""
