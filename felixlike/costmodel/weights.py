"""Weights on disk: plain tensors and a card, loaded without running any code.

In: a path, or nothing for the weights shipped with the package. Out: a `Network`, or what its card says.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from felixlike._util.torch_modes import alone, default_modes
from felixlike.costmodel.boosted_trees import Trees
from felixlike.costmodel.mlp import Network
from felixlike.costmodel.summary import ROW
from felixlike.errors import InvalidWeights
from felixlike.features import NAMES, VERSION

SHIPPED = Path(__file__).parent / "data"
"""Where shipped weights lie, one file a kind of target."""

FORMAT = 3
"""Raised when the meaning of stored weights changes."""


_TREES = "trees"
_SHIPPED = "leave weights out for those that are shipped"
_GIVE = f"give what felixlike train wrote, or {_SHIPPED}"
_ANEW = f"train them anew (felixlike train), or {_SHIPPED}"


@default_modes()
def save_weights(network: Network, file: Path | IO[bytes], card: Mapping[str, Any] | None = None) -> None:
    """Write the weights with the version and names of the features they are for.

    card: what they were trained on and how good they are; strings, numbers, lists and dictionaries only."""
    torch.save(
        {
            "format": FORMAT,
            "features": VERSION,
            "columns": list(NAMES),
            "members": network.members,
            "width": network.width,
            "state": network.state_dict(),
            "trees": _as_tensors(network.trees),
            "card": dict(card or {}),
        },
        file,
    )


@default_modes()
def load_weights(path: Path) -> Network:
    """The network of a file. Raises InvalidWeights for a missing, damaged or unfitting file."""
    stored = _read(path)
    try:
        network = Network(members=_count(stored["members"]), width=_count(stored["width"]))
        network.load_state_dict(stored["state"])
        network.trees = _as_trees(stored.get("trees"))
        finite = all(bool(tensor.isfinite().all()) for tensor in network.state_dict().values())
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidWeights("the weights are for another network", where=str(path), remedy=_ANEW) from error
    if not finite:
        raise InvalidWeights("some weights are no numbers", where=str(path), remedy=_ANEW)
    return network


@default_modes()
def read_card(path: Path) -> dict[str, Any]:
    """What a file of weights says of itself; empty where it says nothing. Raises InvalidWeights as `load_weights`."""
    card = _read(path).get("card")
    return dict(card) if isinstance(card, dict) else {}


def _read(path: Path) -> dict[str, Any]:
    """The contents of a file that is for today's features."""
    try:
        with alone(), warnings.catch_warnings():
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
    if stored.get("features") != VERSION:
        raise InvalidWeights(
            f"the weights are for features of version {stored.get('features')}, these are version {VERSION}",
            where=str(path),
            remedy=_ANEW,
        )
    if stored.get("columns") != list(NAMES):
        raise InvalidWeights("the weights are for other features", where=str(path), remedy=_ANEW)
    return stored


def _as_tensors(trees: Trees | None) -> dict[str, torch.Tensor]:
    """Trees as what torch loads without running code; nothing for none."""
    return {} if trees is None else {k: torch.from_numpy(np.asarray(v)) for k, v in trees.to_arrays(_TREES).items()}


def _as_trees(stored: Any) -> Trees | None:
    """The inverse. Raises ValueError, KeyError and the like for what are no trees of these features."""
    if not stored:
        return None
    trees = Trees.from_arrays({name: tensor.numpy() for name, tensor in stored.items()}, _TREES)
    trees.check(columns=ROW)
    return trees


def _count(value: Any) -> int:
    """A size that a file tells. Raises ValueError for what no network has: a huge one would fill the memory."""
    if not isinstance(value, int) or not 1 <= value <= 4096:
        raise ValueError(f"{value!r} is no size of a network")
    return value


def shipped(target: str) -> Path | None:
    """The shipped weights for a kind of target, or None where there are none."""
    path = SHIPPED / f"{target}.pt"
    return path if path.is_file() else None
