"""Tests for window operators, padding modes and decomposed operators: they match PyTorch or are refused by name."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from support.models import Apply
from torch import Tensor, nn
from torch.nn import functional

from felixlike.errors import UnsupportedOperator
from felixlike.frontend import import_model
from felixlike.frontend.importers.converters import CONVERTERS
from felixlike.frontend.importers.decompositions import _erfinv, table
from felixlike.runtime import compile_model

_SIGNAL, _IMAGE, _CLIP = (2, 4, 11), (1, 4, 7, 9), (1, 2, 5, 6, 7)


def _random(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def _assert_agrees(model: Any, *inputs: Tensor, tasks: int | None = None) -> None:
    model = model if isinstance(model, nn.Module) else Apply(model)
    imported = import_model(model, inputs)
    if tasks is not None:
        assert len(imported.tasks) <= tasks, imported.tasks
    for got, want in zip(_parts(compile_model(imported)(*inputs)), _parts(model(*inputs)), strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-6, equal_nan=True)


def _parts(outputs: Any) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


@pytest.mark.parametrize("more", [{}, {"padding": 1, "stride": 2}, {"dilation": (1, 2), "padding": (0, 3)}])
def test_im2col_is_one_task(more: dict[str, Any]) -> None:
    _assert_agrees(lambda x: functional.unfold(x, (3, 2), **more), *_random(_IMAGE), tasks=1)


def test_im2col_of_an_image_without_a_batch() -> None:
    _assert_agrees(lambda x: functional.unfold(x, 3), *_random(_IMAGE[1:]))


@pytest.mark.parametrize(
    ("size", "window", "options"),
    [
        ((7, 9), 3, {"padding": 1}),
        ((8, 9), (2, 3), {"stride": (2, 3)}),
        ((9, 9), 2, {"stride": 2}),  # the last row is in no window
        ((9, 10), (5, 4), {"stride": (2, 3), "padding": (2, 1)}),
        ((9, 10), (3, 2), {"dilation": (2, 3), "padding": 1}),
        ((9, 10), (3, 2), {"dilation": (2, 3), "stride": (2, 1)}),
        ((9, 10), 1, {"stride": 3, "padding": 1}),
        ((10, 9), (9, 8), {"padding": 1}),  # too many windows for one expression
    ],
)
def test_sums_of_windows(size: tuple[int, int], window: Any, options: dict[str, Any]) -> None:
    windows = functional.unfold(torch.zeros(2, 3, *size), window, **options)
    columns = torch.randn(windows.shape, generator=torch.Generator().manual_seed(0))
    for x in (columns, columns[0]):
        _assert_agrees(lambda x: functional.fold(x + 1, size, window, **options) * 2, x)


@pytest.mark.parametrize(("dim", "size", "step"), [(-1, 3, 2), (0, 2, 1), (1, 4, 1)])
def test_windows_of_one_dimension(dim: int, size: int, step: int) -> None:
    _assert_agrees(lambda x: x.unfold(dim, size, step), *_random(_SIGNAL), tasks=1)


@pytest.mark.parametrize("mode", ["reflect", "constant"])
def test_windows_of_padded_signals(mode: str) -> None:
    def model(preview: Tensor) -> Tensor:
        padded = functional.pad(preview * 2, (2, 3), mode=mode)
        return padded.unfold(-1, 4, 2) * preview.unfold(-1, 4, 2)[..., :1, :]

    _assert_agrees(model, *_random(_SIGNAL))


@pytest.mark.parametrize(
    "model",
    [
        lambda x: (x * 2).as_strided((2, 5, 6), (44, 4, 2), 3),  # windows that overlap
        lambda x: (x * 2).permute(2, 0, 1).as_strided((3, 11), (22, 2)),
        lambda x: (x * 2).transpose(1, 2).as_strided((8, 11), (11, 1)),
        lambda x: functional.pad(x, (1, 2)).as_strided((2, 4, 6, 4), (56, 14, 2, 1)),
        lambda x: (x + 1)[1].as_strided((4, 10), (11, 1)),
        lambda x: x.sum().as_strided((3,), (0,)),
    ],
)
def test_the_memory_of_a_tensor_is_read_with_other_strides(model: Any) -> None:
    _assert_agrees(lambda x: model(x) + 1, *_random(_SIGNAL))


@pytest.mark.parametrize("size", [1, (3, 4), (7, 3), (6, 9)])
def test_adaptive_maxima_of_images(size: Any) -> None:
    _assert_agrees(nn.AdaptiveMaxPool2d(size), *_random(_IMAGE))


def test_adaptive_maxima_of_signals_and_clips() -> None:
    _assert_agrees(nn.AdaptiveMaxPool1d(5), *_random(_SIGNAL))
    _assert_agrees(nn.AdaptiveMaxPool3d((2, 3, 7)), *_random(_CLIP))


def test_adaptive_maxima_keep_nan_and_minus_infinity() -> None:
    x = torch.tensor([[[[1.0, math.nan, 2.0], [-math.inf, -math.inf, 4.0], [-math.inf, -math.inf, -1.0]]]])
    _assert_agrees(nn.AdaptiveMaxPool2d((2, 2)), x)
    _assert_agrees(nn.AdaptiveMaxPool2d((3, 1)), x)


def test_indices_of_adaptive_maxima_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedOperator, match=r"aten\.adaptive_max_pool2d\b.*no other operators"):
        import_model(nn.AdaptiveMaxPool2d(3, return_indices=True), _random(_IMAGE)[0])


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize(("shape", "pad"), [(_SIGNAL, (2, 3)), (_IMAGE, (1, 2, 3, 0)), (_CLIP, (1, 1, 2, 0, 1, 3))])
def test_padding_modes(mode: str, shape: tuple[int, ...], pad: tuple[int, ...]) -> None:
    _assert_agrees(
        lambda x: functional.pad(x, pad, mode=mode), *_random(shape), tasks=1 if mode == "circular" else None
    )


def test_circular_padding_by_the_whole_size_and_by_negative_sizes() -> None:
    _assert_agrees(lambda x: functional.pad(x, (11, 11), mode="circular"), *_random(_SIGNAL))
    _assert_agrees(lambda x: functional.pad(x, (-2, 3), mode="circular"), *_random(_SIGNAL))
    _assert_agrees(lambda x: functional.pad(x, (4, -3), mode="circular") + 1, *_random(_SIGNAL))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_convolutions_with_padding_modes(mode: Any) -> None:
    _assert_agrees(nn.Conv2d(4, 3, 3, padding=1, padding_mode=mode), *_random(_IMAGE))


@pytest.mark.parametrize(("shifts", "dims"), [(2, -1), ((1, -3), (1, 2)), (5, None), (-25, 0), (0, 1)])
def test_roll(shifts: Any, dims: Any) -> None:
    _assert_agrees(lambda x: torch.roll(x, shifts, dims) + 1, *_random(_IMAGE))


@pytest.mark.parametrize("count", [1, 3, 4, 7, 255, 256, 257, 300])
def test_bucketize(count: int) -> None:
    x, boundaries = torch.arange(-20.0, 320.0, 0.5), torch.arange(float(count))
    x[:3] = torch.tensor([math.nan, math.inf, -math.inf])
    kinds = list(itertools.product((False, True), repeat=2))
    _assert_agrees(
        lambda x, b: [torch.bucketize(x, b, right=right, out_int32=int32) for right, int32 in kinds], x, boundaries
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.int64])
def test_buckets_of_other_dtypes_and_of_equal_boundaries(dtype: torch.dtype) -> None:
    x, boundaries = torch.arange(-5, 9000).reshape(5, -1).to(dtype), torch.tensor([0, 3, 3, 3, 7, 8000, 8000]).to(dtype)
    _assert_agrees(lambda x, b: [torch.bucketize(x, b, right=right) for right in (False, True)], x, boundaries)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int64, torch.float32, torch.float64])
def test_any_and_all(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 0, 0], [0, 1, 0], [-1, 0, -1], [2, 2, 2]]).to(dtype)

    def model(x: Tensor) -> list[Tensor]:
        y = x + x[:1]
        along: list[tuple[Any, bool]] = [(0, False), (1, True), ((0, 1), False), (-1, False)]
        return [
            *(reduced(y, dims, keepdim=keep) for reduced in (torch.any, torch.all) for dims, keep in along),
            *(torch.any(y), torch.all(y), y[2, 0].any(), y[0].any()),
        ]

    got, want = compile_model(import_model(Apply(model), (x,)))(x), model(x)
    assert [(y.dtype, y.shape) for y in got] == [(y.dtype, y.shape) for y in want]
    assert all(map(torch.equal, got, want))


@pytest.mark.parametrize("size", [7, 100, 70_000])
def test_nan_among_many_elements(size: int) -> None:
    x = torch.zeros(size)
    _assert_agrees(lambda x: (x * 2).isnan().any(), x)
    x[size // 2] = math.nan
    _assert_agrees(lambda x: (x * 2).isnan().any(), x)
    _assert_agrees(lambda x: (x * 2).any(), x)


def test_values_that_differ_from_themselves_are_nan() -> None:
    x = torch.tensor([[1.0, math.nan, math.inf], [-math.inf, math.nan, 0.0]])
    comparisons = (torch.ne, torch.eq, torch.ge, torch.le, torch.lt, torch.gt)
    _assert_agrees(lambda x: [compared(y := x * 2, y).sum(0) for compared in comparisons], x)
    _assert_agrees(lambda x: torch.where((y := x + 1).clone() != y.detach(), 0, y), x)
    _assert_agrees(lambda x: torch.nanmean(x * 2, 1), x)


def test_operators_around_checks_are_fused() -> None:
    rows, columns = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 0, 1, 1, 2, 3])

    def model(x: Tensor, i: Tensor) -> Tensor:
        return torch.tanh(x * 2 + functional.one_hot(i, 4)).softmax(1) + 1

    _assert_agrees(model, rows, columns, tasks=6)
    with pytest.raises(Exception, match="one_hot: Class values must be smaller than num_classes"):
        compile_model(import_model(Apply(model), (rows, columns)))(rows, columns + 4)


@pytest.mark.parametrize("values", [[3.0, math.nan, 1.0, 2.0], [4.0, 3.0, 1.0, 2.0], [7, -1, 7, 5, 0]])
def test_median_of_everything(values: list[float]) -> None:
    _assert_agrees(lambda x: x.median(), torch.tensor(values)[None])


@pytest.mark.parametrize("function", [lambda x: x.median(-1).values, lambda x: x.sort(-1).values[:, 1] + 1])
def test_small_kernels_after_checks(function: Any) -> None:
    x, i = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2])
    _assert_agrees(lambda x, i: torch.cat([functional.one_hot(i, 4).float().sum(1), function(x)]), x, i)


def test_erfinv() -> None:
    ends = torch.tensor([0.0, 1.0, -1.0, 2.0, -1.5, math.nan, 1e-7, -0.9999, 0.999999, 0.7, -0.7])
    _assert_agrees(torch.erfinv, torch.cat([torch.linspace(-0.99, 0.99, 53), ends]), tasks=2)
    y = torch.linspace(-1, 1, 1001, dtype=torch.float64)
    torch.testing.assert_close(_erfinv(y), torch.erfinv(y))


@pytest.mark.parametrize(("shape", "dim"), [((2, 4, 11), -1), ((9, 3), 0), ((8,), 0), ((1,), 0)])
def test_logcumsumexp(shape: tuple[int, ...], dim: int) -> None:
    _assert_agrees(lambda x: torch.logcumsumexp(x * 50, dim), *_random(shape))


def test_logcumsumexp_of_infinities() -> None:
    x = torch.tensor([-math.inf, -math.inf, 1.0, 200.0, -math.inf, math.inf, 3.0])
    _assert_agrees(lambda x: torch.logcumsumexp(x, 0) + 0, x)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, math.inf])
def test_cdist(p: float) -> None:
    a, b = _random((2, 5, 8), (2, 7, 8))
    _assert_agrees(lambda a, b: torch.cdist(a.round(), b.round(), p=p), a, b)


def test_cdist_of_many_rows_uses_a_product() -> None:
    _assert_agrees(torch.cdist, *_random((30, 8), (40, 8)))


_I, _J = torch.tensor([0, 1, 3]), torch.tensor([2, 2, -1])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, _I, _J],
        lambda x: x[:, _I[:, None], _J],
        lambda x: x[_I * 0, :, _J],
        lambda x: x[:, :, _I, _J],
        lambda x: x[:, _I, _J[:, None, None]],
        lambda x: x[:, _I],
        lambda x: x[0, _I, _J, _J],
    ],
)
def test_indices_are_paired_as_pytorch_does(function: Any) -> None:
    _assert_agrees(function, *_random(_IMAGE))


def test_negative_indices_that_are_inputs() -> None:
    _assert_agrees(lambda x, i, j: x[:, :, i, j], *_random(_IMAGE), _I, _J)


def test_trilinear_interpolation() -> None:
    _assert_agrees(lambda x: functional.interpolate(x, scale_factor=2.0, mode="trilinear"), *_random(_CLIP))


@pytest.mark.parametrize(
    "how",
    [
        {"scale_factor": 8.0},
        {"size": (40, 7)},
        {"size": (5, 31), "align_corners": True},
        {"size": (1, 1), "align_corners": True},
        {"scale_factor": 1.3},
        {"scale_factor": (0.5, 2.0)},
        {"scale_factor": 1.0},
        {"scale_factor": 2**0.5},
    ],
)
def test_bilinear_interpolation(how: dict[str, Any]) -> None:
    _assert_agrees(lambda x: functional.interpolate(x, mode="bilinear", **how) + 1, *_random(_IMAGE))


_RESIZED: list[dict[str, Any]] = [
    {"scale_factor": 2},
    {"size": (5, 20)},
    {"size": (23, 9), "align_corners": True},
    {"scale_factor": (1.7, 0.6)},
    {"size": (1, 1), "align_corners": True},
]


@pytest.mark.parametrize("how", _RESIZED)
def test_cubic_interpolation(how: dict[str, Any]) -> None:
    _assert_agrees(lambda x: functional.interpolate(x, mode="bicubic", **how) + 1, *_random(_IMAGE))


@pytest.mark.parametrize("how", _RESIZED)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_smoothing_interpolation(mode: str, how: dict[str, Any]) -> None:
    _assert_agrees(lambda x: functional.interpolate(x, mode=mode, antialias=True, **how) + 1, *_random(_IMAGE))


def test_smoothing_interpolation_of_infinities() -> None:
    (image,) = _random(_IMAGE)
    image[0, 0, 4, 4], image[0, 1, 5, 5] = math.inf, math.nan
    _assert_agrees(lambda x: functional.interpolate(x, size=(4, 4), mode="bilinear", antialias=True), image)


@pytest.mark.parametrize("how", [{"scale_factor": 2.3}, {"size": 7, "align_corners": True}])
def test_interpolation_of_signals(how: dict[str, Any]) -> None:
    _assert_agrees(lambda x: functional.interpolate(x, mode="linear", **how), *_random(_SIGNAL))


@pytest.mark.parametrize("how", [{"scale_factor": (2, 1.5, 0.5)}, {"size": (7, 3, 14), "align_corners": True}])
def test_interpolation_of_clips(how: dict[str, Any]) -> None:
    _assert_agrees(lambda x: functional.interpolate(x, mode="trilinear", **how), *_random(_CLIP))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_cubic_interpolation_of_other_dtypes(dtype: torch.dtype) -> None:
    (image,) = _random(_IMAGE)
    model = Apply(lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic"))
    got = compile_model(import_model(model, (image.to(dtype),)))(image.to(dtype))
    torch.testing.assert_close(got, model(image.to(dtype)), rtol=2e-3, atol=2e-3)


def test_bilinear_interpolation_of_infinities() -> None:
    image = torch.zeros(1, 1, 4, 4)
    image[0, 0, 1, 1], image[0, 0, 3, 0] = math.inf, math.nan
    _assert_agrees(lambda x: functional.interpolate(x, scale_factor=4.0, mode="bilinear"), image)


@pytest.mark.parametrize(
    ("mode", "padding", "aligned", "channels"),
    [
        *((*rest, 3) for rest in itertools.product(("bilinear", "nearest"), ("zeros", "border"), (False, True))),
        *(("bilinear", "zeros", False, channels) for channels in (1, 8, 21)),
        *(("nearest", "border", True, channels) for channels in (1, 8, 21)),
    ],
)
def test_grid_sample(mode: str, padding: str, aligned: bool, channels: int) -> None:
    x, places = _random((2, channels, 7, 9), (2, 3, 5, 2))
    ends = torch.tensor([[-1.0, -1], [1, 1], [-1, 1], [0, 0], [1e30, -3e9]])
    _assert_agrees(
        lambda x, g: functional.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=aligned),
        x,
        torch.cat([places * 0.8, ends.expand(2, 1, 5, 2)], 1),
    )


@pytest.mark.parametrize(("mode", "padding"), [("bicubic", "reflection"), ("bilinear", "reflection")])
def test_grid_samples_of_tvm(mode: str, padding: str) -> None:
    x, places = _random(_IMAGE, (1, 3, 5, 2))
    _assert_agrees(
        lambda x, g: functional.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=True),
        x,
        places.clamp(-1.5, 1.5),
    )


@pytest.mark.parametrize("channels", [3, 9])
@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_samples_of_nan_and_infinities(mode: str, padding: str, channels: int) -> None:
    x, places = _random((1, channels, 4, 5), (1, 2, 4, 2))
    x[0, :, 0, 0], x[0, 2, 2, 2] = math.inf, math.nan
    places[0, 0, 0], places[0, 0, 1, 0], places[0, 1, 2, 1] = math.nan, math.nan, -1.0
    places[0, 1, 3] = -1.2
    _assert_agrees(
        lambda x, g: functional.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=False), x, places
    )


@pytest.mark.parametrize("exponent", [0, 1, 2, 3.0, 5, 8, 9, -1, 0.5, 2.5])
def test_powers(exponent: float, capfd: pytest.CaptureFixture[str]) -> None:
    x = _random(_SIGNAL)[0]
    _assert_agrees(lambda x: x.pow(exponent) + 1, x if exponent == int(exponent) else x.abs())
    if 0 <= exponent <= 8:
        assert "pow(x, y)" not in capfd.readouterr().err


def test_powers_of_integers() -> None:
    _assert_agrees(lambda x: x**3, torch.arange(-5, 9))


@pytest.mark.parametrize("value", [-math.inf, math.inf, 2.0])
def test_full_tensors_of_infinities(value: float) -> None:
    _assert_agrees(lambda x: torch.full((11, 11), value).triu(1)[:4] + x, *_random(_SIGNAL))
    _assert_agrees(lambda x: x.new_full((11,), value).maximum(x) + torch.full_like(x, value), *_random(_SIGNAL))


def test_shapes_that_differ_from_pytorch_s_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM's importer returned wrong shapes for some indices and for grid_sample."""
    monkeypatch.setitem(CONVERTERS, "cat.default", lambda node, importer: importer.env[node.args[0][0]])
    with pytest.raises(UnsupportedOperator, match=r"cat\.default .*\[4, 3\].*\[2, 3\]"):
        import_model(Apply(lambda x: torch.cat([x, x])), torch.ones(2, 3))


@pytest.mark.parametrize(("bins", "low", "high"), [(8, 0, 7), (13, -1, 1)])
def test_histograms(bins: int, low: float, high: float) -> None:
    x = torch.cat([torch.linspace(-1.3, 1.3, 97), torch.arange(-1.0, 9.0), torch.tensor([math.nan, math.inf])])
    _assert_agrees(lambda x: torch.histc(x, bins, low, high), x)


def test_histograms_on_gpus_compare_each_element_with_all_bins() -> None:
    x = torch.tensor([-1.0, -0.2, 0.0, 0.9, 1.0, 1.1, math.nan])
    for on_cpu in (False, True):
        counts = table(on_cpu=on_cpu)[torch.ops.aten.histc.default](x, 5, -1, 1)
        torch.testing.assert_close(counts, torch.histc(x, 5, -1, 1))


def test_histograms_without_ends_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedOperator, match=r"aten\.histc"):
        import_model(Apply(lambda x: torch.histc(x, 4)), torch.randn(9))


@pytest.mark.parametrize("ends", [[2, 2, 7], [0, 7, 7], [1, 2, 5]])
def test_products_of_groups_of_rows(ends: list[int]) -> None:
    from transformers.integrations import moe  # noqa: F401  (registers the operator)

    _assert_agrees(
        lambda x, w, ends: torch.ops.transformers.grouped_mm_fallback(x, w.transpose(-2, -1), ends),
        *_random((7, 6), (3, 5, 6)),
        torch.tensor(ends, dtype=torch.int32),
    )


def test_grouped_products_of_other_ranks_are_refused_by_name() -> None:
    x, w = (tensor.bfloat16() for tensor in _random((3, 4, 16), (3, 16, 8)))
    with pytest.raises(UnsupportedOperator, match=r"aten\._grouped_mm"):
        import_model(Apply(lambda x, w: functional.grouped_mm(x, w)), (x, w))
