"""Find the parts of a model that compute something else in training mode than in eval mode.

Input: an nn.Module. Output: their names. A model is always optimized in eval mode.
"""

from typing import Any

_NORMS = ("_BatchNorm", "_InstanceNorm")
_SWITCH = "training"


def differing_parts(model: Any) -> tuple[str, ...]:
    """Return the names of a model's parts that are in training mode and would compute something else in eval mode.

    PyTorch's layers are judged by their settings, others by whether their forward reads `self.training`.
    """
    return tuple(
        f"{name or 'the model'} ({type(part).__name__})"
        for name, part in model.named_modules()
        if part.training and _differs(part)
    )


def _differs(part: Any) -> bool:
    """Return whether a part computes something else in eval mode."""
    kinds = {kind.__name__ for kind in type(part).__mro__}
    if "_DropoutNd" in kinds:
        return bool(part.p > 0)
    if kinds & set(_NORMS):
        return bool(part.track_running_stats)
    if "RReLU" in kinds:
        return bool(part.lower != part.upper)
    if "RNNBase" in kinds:
        return bool(part.dropout > 0 and part.num_layers > 1)
    if "MultiheadAttention" in kinds:
        return bool(part.dropout > 0)
    if type(part).__module__.startswith("torch.nn."):  # its parts are checked on their own
        return False
    code = getattr(type(part).forward, "__code__", None)
    return code is not None and _SWITCH in code.co_names
