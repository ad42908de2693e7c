"""Run the passes from an imported Relax module to one whose every call is a fused subgraph.

Input: Relax with operators, parameters bound as constants. Output: Relax that calls only PrimFuncs and views. The
list is fixed for each kind of target. The functions that are tuned must be those that are compiled, so compilation
starts from this module and fuses nothing again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from felixlike import _tvm
from felixlike._util.torch_modes import alone
from felixlike.frontend.constants import with_marks
from felixlike.frontend.rewrites import (
    in_phases,
    with_absorbed_pads,
    with_bfloat16_factors,
    with_channels_last,
    with_computed_constants,
    with_even_channels,
    with_fast_convolutions,
    with_flat_convolutions,
    with_folded_batch_norms,
    with_fused_attention,
    with_gates_apart,
    with_group_norms_in_two_passes,
    with_grouped_heads,
    with_infinite_padding,
    with_joined_small_kernels,
    with_joint_projections,
    with_late_reshapes,
    with_limited_recomputation,
    with_moved_constants,
    with_narrow_tensors,
    with_own_conversions,
    with_pools_by_dimension,
    with_room,
    with_row_scatters,
    with_safe_indices,
    with_searched_boundaries,
    with_shared_factors,
    with_stacks_apart,
    with_total_order,
    with_transposed_factors,
    with_wide_constants,
    with_wide_norms,
    with_zero_factors,
    without_equal_expressions,
)
from felixlike.frontend.rewrites.constant_kernels import prepare_folding
from felixlike.frontend.rewrites.layers import layers_of
from felixlike.frontend.rewrites.simplify_indices import with_simple_indices
from felixlike.hardware import kind_of, precision_of, precision_of_halves, target_device


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Describe one pass of the pipeline.

    Attributes:
        name: Name of our function or of TVM's pass.
        make: Returns TVM's pass for a target.
        kinds: Kinds of targets that the pass is for. Empty for all.
        static: Whether the pass needs fixed sizes. It is skipped for modules with dynamic sizes.
    """

    name: str
    make: Callable[[Any], Any]
    kinds: tuple[str, ...] = ()
    static: bool = False


def function_pass(
    rewrite: Callable[..., Any], *kinds: str, of: Callable[[Any], list[Any]] | None = None, static: bool = False
) -> Rewrite:
    """Return the pass of one of our functions from module to module.

    of: returns the function's further arguments for a target.
    """

    def make(target: Any) -> Any:
        arguments = of(target) if of else []
        return _tvm.transform.module_pass(
            lambda module, _: rewrite(module, *arguments), opt_level=0, name=rewrite.__name__
        )

    return Rewrite(rewrite.__name__, make, kinds, static)


def relax_pass(name: str, place: str = "transform") -> Rewrite:
    """Return a pass of Relax.  place: the module that defines it."""
    return Rewrite(name, lambda _: getattr(getattr(_tvm.relax, place), name)())


_CPU = ("llvm",)


def _products(target: Any) -> list[Any]:
    """Return the precisions of a CPU's products: of float32 tensors, and of tensors that are bfloat16."""
    return [precision_of(target), precision_of_halves(target)]


REWRITES = [
    # Operators between checks of values, such as those of one_hot, are fused like others.
    relax_pass("ConvertToDataflow"),
    # Sorting and argmax treat NaN as larger than all numbers.
    function_pass(with_total_order, of=lambda target: [kind_of(target).on_host]),
    # Buckets are found by bisection, or by counting boundaries.
    function_pass(with_searched_boundaries, of=lambda target: [kind_of(target).on_host]),
    # TVM has no norms in float64.
    function_pass(with_wide_norms),
    # Sampling, sorting and scans have no legalisation of their own: TVM's kernels for them, as in its CPU pipeline.
    relax_pass("DispatchSampling", "backend"),
    relax_pass("DispatchSortScan", "backend"),
    function_pass(with_safe_indices),
    # Scatters of whole rows have their own kernel.
    function_pass(with_row_scatters, *_CPU, static=True),
    # The rewrites below recognize constants, not conversions of them.
    function_pass(with_wide_constants),
    # Zero padding becomes the padding of the convolution that reads it.
    function_pass(with_absorbed_pads),
    # A batch norm after a convolution becomes that convolution's weight and bias: no task, no memory traffic.
    function_pass(with_folded_batch_norms),
    # The batch norms left over become arithmetic, dropout becomes nothing.
    relax_pass("DecomposeOpsForInference"),
    # Copies of variables and unused tuples hide equal expressions and constants from the next two passes.
    relax_pass("CanonicalizeBindings"),
    function_pass(without_equal_expressions),
    # A matrix that multiplies a whole batch stays one.
    function_pass(with_shared_factors),
    # Compute folded batch norms and transposed weights now instead of in every call, most of them without a compiler.
    function_pass(with_moved_constants),
    function_pass(with_computed_constants),
    # Some of these constants are the number 0.
    function_pass(with_zero_factors),
    # Convolutions of a chain read and write vectors of channels.
    function_pass(with_channels_last, *_CPU, of=_products, static=True),
    # Convolutions with small windows become products of transformed tiles.
    function_pass(
        with_fast_convolutions,
        *_CPU,
        of=lambda target: [*_products(target), target_device(target)],
        static=True,
    ),
    # Convolutions in pairs have even channels.
    function_pass(with_even_channels, *_CPU, of=_products, static=True),
    # Group norms become reductions of rows, or of channels, that schedule rules support.
    function_pass(with_group_norms_in_two_passes, static=True),
    # Queries, keys and values become one product. The weights of all three are constants by now.
    function_pass(with_joint_projections),
    # Elementwise operators join a contraction even if a reshape is between them.
    function_pass(with_late_reshapes),
    # Scores, softmax and the product with the values become one kernel.
    relax_pass("CanonicalizeBindings"),
    function_pass(with_fused_attention, *_CPU, of=lambda target: [target_device(target)], static=True),
    # Few queries are multiplied with the keys and values of their group at once, which are not repeated for each.
    function_pass(with_grouped_heads),
    # Tensors that products round are written in bfloat16.
    function_pass(with_narrow_tensors, *_CPU, of=_products, static=True),
    function_pass(with_own_conversions, *_CPU),
    # Products of tensors in bfloat16 read them as they are.
    function_pass(with_bfloat16_factors, *_CPU, of=lambda target: [target_device(target)]),
    # Transposed convolutions become the plain ones that their output is interleaved from.
    function_pass(in_phases),
    # Convolutions of narrow images become products, whose rows fill matrices.
    function_pass(with_flat_convolutions, *_CPU, of=lambda target: [target_device(target)], static=True),
    # Products read transposed factors in place.
    function_pass(with_transposed_factors, static=True),
    # Convolutions whose channels or columns do not fill vectors are padded.
    function_pass(with_room, *_CPU, of=lambda target: [target_device(target).unit], static=True),
    # Adaptive average pooling runs along one dimension after the other.
    function_pass(with_pools_by_dimension, *_CPU, static=True),
    # Operators become PrimFuncs. Some leave constants behind (masks, index tensors, weights by phase): fold again.
    relax_pass("LegalizeOps"),
    # Max pooling pads with -inf.
    function_pass(with_infinite_padding),
    function_pass(with_computed_constants),
    # Patterns (elementwise, injective, reduction, out-fusable …) tell FuseOps which functions may be fused.
    relax_pass("AnnotateTIROpPattern"),
    # The stack of all steps is not fused with the computation of the last step.
    function_pass(with_stacks_apart),
    # A gate that is broadcast to a larger tensor is computed before it.
    function_pass(with_gates_apart),
    # Values that each step of a chain reads twice are written to memory every few steps.
    function_pass(with_limited_recomputation),
    relax_pass("FuseOps"),
    # Consecutive kernels that take no longer than their launch become one kernel with several outputs.
    function_pass(with_joined_small_kernels, *_CPU, static=True),
    relax_pass("FuseTIR"),
    function_pass(with_simple_indices),
    # A reshape alone is a view of its input at run time; as a PrimFunc it would be a copy and a task.
    relax_pass("RewriteDataflowReshape"),
    # Remove the PrimFuncs that were fused into others.
    relax_pass("DeadCodeElimination"),
]
"""All passes, in the order in which they run."""


def rewrites_of(kind: str) -> tuple[Rewrite, ...]:
    """Return the passes for a kind of target, by its name, in order."""
    return tuple(rewrite for rewrite in REWRITES if not rewrite.kinds or kind in rewrite.kinds)


def fuse(module: Any, target: Any, *, wide_tensors: bool = False) -> tuple[Any, dict[str, tuple[str, ...]]]:
    """Legalise and fuse a Relax module for a target, and annotate weights whose layout is free.

    `wide_tensors` says whether tensors between kernels stay float32 in any precision.  Returns the fused module, and
    the layers of each of its functions (`layers.layers_of`).  Raises what TVM raises.
    """
    rewrites = rewrites_of(kind_of(target).name)
    kept = [r for r in rewrites if not wide_tensors or r.name != with_narrow_tensors.__name__]
    module, layers = _fused(module, target, kept)
    rounds = kind_of(target).on_host and precision_of(target).is_reduced
    return with_marks(module, rounds=rounds), layers


def fuse_dynamic(module: Any, target: Any) -> tuple[Any, dict[str, tuple[str, ...]]]:
    """Legalise and fuse a module with symbolic sizes, without annotations.  Returns and raises like `fuse`."""
    return _fused(module, target, [r for r in rewrites_of(kind_of(target).name) if not r.static])


def _fused(module: Any, target: Any, rewrites: Sequence[Rewrite]) -> tuple[Any, dict[str, tuple[str, ...]]]:
    """Run rewrites on a module. Return it with the layers of each of its functions."""
    fusing, inlining = (next(i for i, r in enumerate(rewrites) if r.name == name) for name in ("FuseOps", "FuseTIR"))
    legal = _run(module, target, rewrites[:fusing])
    grouped = _run(legal, target, rewrites[fusing:inlining])
    return _run(grouped, target, rewrites[inlining:]), layers_of(module, legal, grouped)


def _run(module: Any, target: Any, rewrites: Sequence[Rewrite]) -> Any:
    """Run passes on a module in the scope of a target.

    One thread at a time: TVM's operator library keeps the tag of the operator it builds in a global variable, and
    raises an error if another thread has set it.
    """
    prepare_folding()
    with alone(), target:
        return _tvm.transform.Sequential([rewrite.make(target) for rewrite in rewrites])(module)
