"""Compute a transposed convolution as s^d plain convolutions, one per phase of the output, in one PrimFunc.

    Y[y] = Σ X[i] · W[j],  s·i + j = y + p        (one dimension; s: stride, p: padding, k: taps)

With y = s·z + f, only every s-th tap meets the input: j = (f + p) mod s + s·b. So there are s phases f, each a
convolution with t = ⌈k / s⌉ taps, and Y interleaves them. Taps are numbered backwards, a = t − 1 − b, so that the
window moves forwards. Taps beyond k are zero:

    V[f, …, a] = W[…, (f + p) mod s + s·(t − 1 − a)]                     computed once if W is a constant
    C[f, …, z] = Σ_a X[z + (f + p) div s − (t − 1) + a] · V[f, …, a]
    Y[…, y]    = C[y mod s, …, y div s]

TVM inserts s − 1 zeros between the elements of X and convolves with all k taps, which is s^d times the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike.frontend.rewrites.rewriting import Bindings, Rewriter, operator, rewritten, shape

CHANNELS_FIRST = {
    "nn.conv1d_transpose": ("NCW", "IOW"),
    "nn.conv2d_transpose": ("NCHW", "IOHW"),
    "nn.conv3d_transpose": ("NCDHW", "IODHW"),
}
"""PyTorch's layouts of data and weights, by operator."""

TRANSPOSED_LAYOUTS = {
    "nn.conv1d_transpose": ("NWC", "IOW"),
    "nn.conv2d_transpose": ("NHWC", "IOHW"),
    "nn.conv3d_transpose": ("NDHWC", "IODHW"),
}
"""Layouts of data and weights of channels-last transposed convolutions, by operator."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """Describe one spatial dimension.

    Attributes:
        size: Extent of the input.
        output: Extent of the output.
        taps: Extent of the weights.
        stride: Stride of the transposed convolution.
        padding: Its padding before the first element.
    """

    size: int
    output: int
    taps: int
    stride: int
    padding: int

    @property
    def phases(self) -> int:
        """Number of phases, 1 for stride 1."""
        return self.stride

    @property
    def window(self) -> int:
        """Taps of each phase."""
        return -(-self.taps // self.stride)

    @property
    def places(self) -> int:
        """Number of output elements that each phase computes."""
        return -(-self.output // self.stride)

    @property
    def before(self) -> int:
        """Number of zeros before the input's first element that a window may reach.

        Negative if windows begin after it.
        """
        return self.window - 1 - self.padding // self.stride

    @property
    def padded(self) -> int:
        """Number of elements that the windows of all phases reach."""
        last = (self.stride - 1 + self.padding) // self.stride - self.padding // self.stride
        return self.places - 1 + last + self.window

    def start(self, phase: Any) -> Any:
        """Return where the first window of a phase begins in the padded input. Affine in the phase where possible."""
        if self.padding % self.stride == 0:
            return 0
        if self.stride == 2:
            return phase
        return (phase + self.padding) // self.stride - self.padding // self.stride

    def tap(self, phase: Any, step: Any) -> Any:
        """Return the tap of the weights that a phase uses at a step of its window. It may be beyond the last tap."""
        return (phase + self.padding) % self.stride + self.stride * (self.window - 1 - step)


def in_phases(module: Any) -> Any:
    """Compute transposed convolutions by phases, with channels first or last.

    Those with dilated weights or in other layouts stay unchanged.

    Args:
        module: Relax IRModule with operators.

    Returns:
        The rewritten module.
    """
    return rewritten(module, _phased)


def _phased(expression: Any, _: Bindings, rewriter: Rewriter) -> Any:
    """Replace a transposed convolution by PrimFuncs for its weights by phase and its output."""
    last = _channels_last(expression)
    if last is None:
        return None
    name = operator(expression).removeprefix("nn.").removesuffix("_transpose")
    dimensions, groups = _dimensions(expression, 1 if last else 2), int(expression.attrs.groups)
    data, weights = (rewriter.new(argument) for argument in expression.args)
    weights = rewriter.builder.call_te(
        lambda w: phase_weights(w, dimensions, groups), weights, primfunc_name_hint=f"{name}_phase_weights"
    )
    return rewriter.builder.call_te(
        lambda x, v: phased(x, v, dimensions, str(expression.ty.dtype), channels_last=last),
        data,
        rewriter.builder.emit(weights),
        primfunc_name_hint=f"{name}_transpose",
    )


def is_transposed_last(call: Any) -> bool:
    """Return whether an expression is a transposed convolution of one group with its channels last."""
    return _channels_last(call) is True and int(call.attrs.groups) == 1


def _channels_last(call: Any) -> bool | None:
    """Return whether a transposed convolution has its channels last, None for what is not rewritten."""
    name = operator(call)
    if name not in TRANSPOSED_LAYOUTS:
        return None
    attrs = call.attrs
    if attrs.out_layout != attrs.data_layout or any(int(d) > 1 for d in attrs.dilation):
        return None
    layouts = attrs.data_layout, attrs.kernel_layout
    return {CHANNELS_FIRST[name]: False, TRANSPOSED_LAYOUTS[name]: True}.get(layouts)


def _dimensions(call: Any, first: int) -> tuple[Dimension, ...]:
    """Return the spatial dimensions of a transposed convolution. `first` is that of the first one in the data."""
    data, weights, output = shape(call.args[0]), shape(call.args[1])[2:], shape(call)
    strides, padding = call.attrs.strides, call.attrs.padding
    return tuple(
        Dimension(data[first + i], output[first + i], taps, int(strides[i]), int(padding[i]))
        for i, taps in enumerate(weights)
    )


def phase_weights(weights: Any, dimensions: Sequence[Dimension], groups: int) -> Any:
    """Compute V[phases, group, output channel, input channel, windows] of W[input channel, output channel, taps].

    Channels are counted within a group. The dimensions of phases and groups exist only where there is more than one.
    """
    inputs, outputs = int(weights.shape[0]) // groups, int(weights.shape[1])
    several = [d for d in dimensions if d.phases > 1]
    shape = [*(d.phases for d in several), *([groups] if groups > 1 else []), outputs, inputs]

    def value(*indices: Any) -> Any:
        phases, rest = _phases(indices, dimensions)
        group, rest = (rest[0], rest[1:]) if groups > 1 else (0, rest)
        k, c, *steps = rest
        taps = [d.tap(f, a) for d, f, a in zip(dimensions, phases, steps, strict=True)]
        inside = [t < d.taps for d, t in zip(dimensions, taps, strict=True) if d.taps % d.stride]
        zero = _tvm.tirx.const(0, weights.dtype)
        weight = weights(group * inputs + c, k, *taps)
        return _tvm.te.if_then_else(_tvm.te.all(*inside), weight, zero) if inside else weight

    return _tvm.te.compute([*shape, *(d.window for d in dimensions)], value, name="phase_weights")


def phased(data: Any, weights: Any, dimensions: Sequence[Dimension], dtype: str, *, channels_last: bool = False) -> Any:
    """Compute Y[batch, channel, places] of X[batch, channel, places] and the weights of `phase_weights`.

    With `channels_last`, the channels of X and Y are behind the places.
    """
    count = sum(d.phases > 1 for d in dimensions)
    groups = int(weights.shape[count]) if len(weights.shape) > count + 2 + len(dimensions) else 1
    outputs, inputs = (int(n) for n in weights.shape[-len(dimensions) - 2 : -len(dimensions)])
    grouped = groups > 1
    padded = _padded(data, dimensions, groups, channels_last)
    channel = _tvm.te.reduce_axis((0, inputs), name="c")
    steps = [_tvm.te.reduce_axis((0, d.window), name=f"a{i}") for i, d in enumerate(dimensions)]
    several = [d.phases for d in dimensions if d.phases > 1]

    def product(n: Any, *indices: Any) -> Any:
        group, rest = (indices[:1], indices[1:]) if grouped else ((), indices)
        phases, remaining = _phases(rest, dimensions)
        k, places = _channel_and_places(remaining, channels_last)
        at = [z + d.start(f) + a for d, f, z, a in zip(dimensions, phases, places, steps, strict=True)]
        read = padded(n, *group, *_in_layout(channel, at, channels_last)).astype(dtype)
        written = weights(*rest[:count], *group, k, channel, *steps).astype(dtype)
        return _tvm.te.sum(read * written, axis=[channel, *steps])

    each = _in_layout(outputs, [d.places for d in dimensions], channels_last)
    convolved = _tvm.te.compute(
        [data.shape[0], *([groups] if grouped else []), *several, *each], product, name="phases"
    )
    if not several and not grouped:
        return convolved

    def interleaved(n: Any, *indices: Any) -> Any:
        k, places = _channel_and_places(indices, channels_last)
        group = [k // outputs] if grouped else []
        phases = [y % d.stride for d, y in zip(dimensions, places, strict=True) if d.phases > 1]
        within = [y // d.stride for d, y in zip(dimensions, places, strict=True)]
        return convolved(n, *group, *phases, *_in_layout(k % outputs if grouped else k, within, channels_last))

    whole = _in_layout(groups * outputs, [d.output for d in dimensions], channels_last)
    return _tvm.te.compute([data.shape[0], *whole], interleaved, name="interleaved")


def _padded(data: Any, dimensions: Sequence[Dimension], groups: int, channels_last: bool) -> Any:
    """Pad X with the zeros that windows reach, and add a dimension for groups if there are several."""
    inputs = int(data.shape[-1 if channels_last else 1]) // groups
    if groups == 1 and all(d.before == 0 and d.padded == d.size for d in dimensions):
        return data

    def value(n: Any, *indices: Any) -> Any:
        group, rest = (indices[0], indices[1:]) if groups > 1 else (0, indices)
        channel, places = _channel_and_places(rest, channels_last)
        channel = group * inputs + channel if groups > 1 else channel
        at = [z - d.before for d, z in zip(dimensions, places, strict=True)]
        inside = [i >= 0 for d, i in zip(dimensions, at, strict=True) if d.before > 0]
        inside += [i < d.size for d, i in zip(dimensions, at, strict=True) if d.padded - d.before > d.size]
        read = data(n, *_in_layout(channel, at, channels_last))
        return _tvm.te.if_then_else(_tvm.te.all(*inside), read, _tvm.tirx.const(0, data.dtype)) if inside else read

    each = _in_layout(inputs, [d.padded for d in dimensions], channels_last)
    return _tvm.te.compute([data.shape[0], *([groups] if groups > 1 else []), *each], value, name="padded")


def _in_layout(channel: Any, places: Sequence[Any], channels_last: bool) -> list[Any]:
    """Return a channel and places in the order of the data's dimensions."""
    return [*places, channel] if channels_last else [channel, *places]


def _channel_and_places(indices: Sequence[Any], channels_last: bool) -> tuple[Any, Sequence[Any]]:
    """Split indices in the order of the data's dimensions into the channel and the places."""
    return (indices[-1], indices[:-1]) if channels_last else (indices[0], indices[1:])


def _phases(indices: Sequence[Any], dimensions: Sequence[Dimension]) -> tuple[list[Any], Sequence[Any]]:
    """Split indices into the phase of every dimension (0 without several phases) and the remaining indices."""
    remaining = iter(indices)
    phases = [next(remaining) if d.phases > 1 else 0 for d in dimensions]
    return phases, tuple(remaining)
