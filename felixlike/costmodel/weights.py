"""Weights on disk: plain tensors, loaded without running any code.

In: a path, or nothing for the weights shipped with the package. Out: a state for `Network`.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from felixlike.costmodel.mlp import Network
from felixlike.errors import FelixlikeError
from felixlike.features import NAMES
from felixlike.modes import own_modes

SHIPPED = Path(__file__).parent / "data"
"""Where shipped weights lie, one file a kind of target."""

FORMAT = 2
"""Raised when the meaning of stored weights changes."""


_SHIPPED = "leave weights out for those that are shipped"
_GIVE = f"give what costmodel.save_weights wrote, or {_SHIPPED}"
_ANEW = f"train them anew, or {_SHIPPED}"


class InvalidWeights(FelixlikeError, ValueError):
    """A file of weights cannot be read, or was made for other features."""


@own_modes()
def save_weights(network: Network, path: Path) -> None:
    """Write the weights with the names of the features they are for."""
    torch.save({"format": FORMAT, "columns": list(NAMES), "state": network.state_dict()}, path)


@own_modes()
def load_weights(network: Network, path: Path) -> None:
    """Load weights into a network. Raises InvalidWeights for a missing, damaged or unfitting file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of foreign files before it refuses them
            stored: Any = torch.load(path, weights_only=True, map_location="cpu")
    except FileNotFoundError as error:
        raise InvalidWeights(
            "there is no such file", where=str(path), remedy=f"check the path, or {_SHIPPED}"
        ) from error
    except Exception as error:  # torch's reader raises whatever it trips over in a foreign file
        raise InvalidWeights("the file is no file of weights, or damaged", where=str(path), remedy=_GIVE) from error
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise InvalidWeights("the file is of another format", where=str(path), remedy=_ANEW)
    columns = stored.get("columns")
    if not isinstance(columns, list) or not set(columns) <= set(NAMES):
        raise InvalidWeights("the weights are for other features", where=str(path), remedy=_ANEW)
    try:
        network.load_state_dict(_widened(stored["state"], columns))
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
        raise InvalidWeights("the weights are for another network", where=str(path), remedy=_ANEW) from error


def _widened(state: dict[str, torch.Tensor], columns: list[str]) -> dict[str, torch.Tensor]:
    """The state for all of today's columns; those it was not trained with have no influence."""
    rows = [NAMES.index(name) for name in columns]
    mean, scale = torch.zeros(len(NAMES)), torch.zeros(len(NAMES))
    mean[rows], scale[rows] = state["mean"], state["scale"]
    encode = state["encode.weight"]
    weight = encode.new_zeros(encode.shape[0], len(NAMES), encode.shape[2])
    weight[:, rows] = encode
    return {**state, "mean": mean, "scale": scale, "encode.weight": weight}


def shipped(target: str) -> Path | None:
    """The shipped weights for a kind of target, or None where there are none."""
    path = SHIPPED / f"{target}.pt"
    return path if path.is_file() else None
