"""The passes from an imported Relax module to one whose every call is a fused subgraph.

In: Relax with operators, parameters bound as constants. Out: Relax that only calls PrimFuncs, and views.
The list is fixed: what is tuned must be what is compiled, so deploy starts from this module and fuses nothing again.
"""

from collections.abc import Callable
from typing import Any

from felixlike import tvmlib
from felixlike.frontend.constants import with_marks
from felixlike.frontend.rewrites import (
    in_phases,
    with_absorbed_pads,
    with_channels_last,
    with_fast_convolutions,
    with_folded_batch_norms,
    with_group_norms_in_two_passes,
    with_infinite_padding,
    with_joint_projections,
    with_late_reshapes,
    with_room,
    with_safe_indices,
    with_shared_factors,
    with_total_order,
    with_transposed_factors,
    with_wide_norms,
)
from felixlike.frontend.simple_indices import with_simple_indices
from felixlike.hardware import target_device


def fuse(module: Any, target: Any) -> Any:
    """Legalise and fuse a Relax module for a target, and mark weights whose layout is free.  Raises what TVM raises."""
    t = tvmlib.relax.transform
    backend = tvmlib.relax.backend
    on_cpu = str(target.kind.name) == "llvm"
    passes = [
        # NaN is above all numbers wherever there is an order.
        _pass(with_total_order),
        # TVM's norms end at float32.
        _pass(with_wide_norms),
        # Sampling, sorting and scans have no legalisation of their own: TVM's kernels for them, as in its CPU pipeline.
        backend.DispatchSampling(),
        backend.DispatchSortScan(),
        _pass(with_safe_indices),
        # Zeros around a tensor become the padding of the convolution that reads it.
        _pass(with_absorbed_pads),
        # A batch norm after a convolution becomes that convolution's weight and bias: no task, no memory traffic.
        _pass(with_folded_batch_norms),
        # The batch norms left over become arithmetic, dropout becomes nothing.
        t.DecomposeOpsForInference(),
        # Copies of variables and unused tuples hide equal expressions and constants from the next two passes.
        t.CanonicalizeBindings(),
        t.EliminateCommonSubexpr(),
        # Transposed convolutions become the plain ones that their output is interleaved from.
        _pass(in_phases),
        # A matrix that multiplies a whole batch stays one.
        _pass(with_shared_factors),
        # Folded batch norms, weights by phase and transposed weights are computed now instead of on every call.
        t.FoldConstant(),
        # Convolutions of a chain read and write vectors of channels.
        *([_pass(with_channels_last)] if on_cpu else []),
        # Convolutions with small windows become products of transformed tiles.
        *([_pass(with_fast_convolutions)] if on_cpu else []),
        # Group norms become rows, or means of channels, that schedule rules know.
        *([_pass(with_group_norms_in_two_passes)] if on_cpu else []),
        # Queries, keys and values are one product; the weights of all three are known now.
        _pass(with_joint_projections),
        # What is done to the elements of a contraction joins it, although a reshape is between them.
        _pass(with_late_reshapes),
        # Transposed factors of products are read where they lie.
        t.CanonicalizeBindings(),
        _pass(with_transposed_factors),
        # Convolutions whose channels or columns fill no vectors compute some more.
        *([_pass(with_room, target_device(target).unit)] if on_cpu else []),
        # Operators become PrimFuncs. Some leave constants behind (masks, index tensors): fold again.
        t.LegalizeOps(),
        # The padding of a maximum is below all numbers.
        _pass(with_infinite_padding),
        t.FoldConstant(),
        # Patterns (elementwise, injective, reduction, out-fusable …) tell FuseOps what may join what.
        t.AnnotateTIROpPattern(),
        t.FuseOps(),
        t.FuseTIR(),
        _pass(with_simple_indices),
        # A reshape alone is a view of its input at run time; as a PrimFunc it would be a copy and a task.
        t.RewriteDataflowReshape(),
        # PrimFuncs that were fused into others are called by nothing now.
        t.DeadCodeElimination(),
    ]
    with target:
        fused = tvmlib.transform.Sequential(passes)(module)
    return with_marks(fused, target)


def _pass(rewrite: Callable[..., Any], *arguments: Any) -> Any:
    """A function from module, and more arguments, to module as TVM's pass."""
    return tvmlib.transform.module_pass(
        lambda module, _: rewrite(module, *arguments), opt_level=0, name=rewrite.__name__
    )
