"""Write the new values of tensors that a model changes in place.

Inputs: a virtual machine's entry that returns the new values after the outputs, and what the model changes. Output: an
entry that takes the user's tensors, changes them and the model's own buffers, and returns the outputs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from felixlike.errors import SharedInputs
from felixlike.frontend import Mutations


class Writing:
    """An entry that writes the new values of changed tensors at each call.

    Args:
        main: The virtual machine's entry.
        mutations: What the model changes.
        leaves: Returns the tensors of the entry's result in order.
        where: The model's name, for messages.
    """

    def __init__(
        self, main: Callable[..., Any], mutations: Mutations, leaves: Callable[[Any], list[Any]], where: str
    ) -> None:
        self._main, self._mutations, self._leaves, self._where = main, mutations, leaves, where

    def __call__(self, *tensors: Any) -> list[Any]:
        """Run the model and return its outputs in order."""
        import torch

        every = (*tensors, *self._mutations.state)
        places = self._mutations.places
        refuse_overlap(every, self._mutations, self._where)
        values = self._leaves(self._main(*every))
        targets = [every[place] for place in places]
        outputs, new = values[: -len(places)], values[-len(places) :]
        # The module may return an input as it is, or the same tensor twice.
        changed = {target.data_ptr(): target for target in targets}
        outputs = [value.clone() if value.data_ptr() in changed else value for value in outputs]
        new = [
            value.clone() if changed.get(value.data_ptr(), target) is not target else value
            for value, target in zip(new, targets, strict=True)
        ]
        with torch.no_grad():
            for value, target in zip(new, targets, strict=True):
                if value.data_ptr() != target.data_ptr():
                    target.copy_(value)
        return outputs


def refuse_overlap(tensors: Sequence[Any], mutations: Mutations, where: str) -> None:
    """Raise SharedInputs if a tensor that the model changes shares memory with another one."""
    if overlapping(tensors, mutations.places):
        raise SharedInputs(
            f"inputs share memory, and the model changes {', '.join(mutations.names[:3])} in place",
            where=where,
            remedy="pass tensors with memory of their own: x.clone()",
        )


def overlapping(tensors: Sequence[Any], changed: Sequence[int]) -> bool:
    """Return whether the memory of a changed tensor overlaps that of another tensor.

    Args:
        tensors: Dense tensors.
        changed: Indices of the changed ones.
    """
    spans = []
    for place, tensor in enumerate(tensors):
        if tensor.numel():
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            start = tensor.data_ptr()
            spans.append((start, start + (last + 1) * tensor.element_size(), place in changed))
    spans.sort()
    end_of_any = end_of_changed = 0
    for start, end, is_changed in spans:
        if start < (end_of_any if is_changed else end_of_changed):
            return True
        end_of_any = max(end_of_any, end)
        if is_changed:
            end_of_changed = max(end_of_changed, end)
    return False
