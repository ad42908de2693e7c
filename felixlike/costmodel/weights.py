"""Save and load weights: plain tensors and a model card, loaded without running any code.

Input: the path of a file, such as one of the shipped weights. Output: a `Network`, or its card.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from felixlike._util.torch_modes import alone, default_modes
from felixlike._util.wording import kind_of, shown
from felixlike.costmodel.boosted_trees import Trees
from felixlike.costmodel.mlp import Network
from felixlike.costmodel.summary import ROW
from felixlike.errors import InvalidWeights, first_line
from felixlike.features import NAMES, VERSION

SHIPPED = Path(__file__).parent / "data"
"""Folder of the shipped weights, one file per kind of target."""

FORMAT = 3
"""Version of the file format. Increase it when the meaning of stored weights changes."""


_TREES = "trees"
_SHIPPED = "omit weights to use the shipped ones"
_GIVE = f"pass a file written by felixlike train, or {_SHIPPED}"
_RETRAIN = f"retrain them with felixlike train, or {_SHIPPED}"


@default_modes()
def save_weights(network: Network, file: Path | IO[bytes], card: Mapping[str, Any] | None = None) -> None:
    """Save the weights with the version and names of their features.

    Args:
        network: The network.
        file: A path or an open binary file.
        card: Model card: training data and quality. Strings, numbers, lists and dictionaries only.
    """
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
    """Load a network.

    Raises:
        InvalidWeights: The file is missing or damaged, or its weights are for another network or other features.
    """
    stored = _read(path)
    try:
        network = Network(members=_count(stored["members"]), width=_count(stored["width"]))
        network.load_state_dict(stored["state"])
        network.trees = _as_trees(stored.get("trees"))
        finite = all(bool(tensor.isfinite().all()) for tensor in network.state_dict().values())
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        what = f"the weights do not match the network: {type(error).__name__}: {first_line(error)}"
        raise InvalidWeights(what, where=str(path), remedy=_RETRAIN) from error
    if not finite:
        raise InvalidWeights("some weights are NaN or infinite", where=str(path), remedy=_RETRAIN)
    return network


@default_modes()
def read_card(path: Path) -> dict[str, Any]:
    """Return the model card of a file; empty without one.

    Raises:
        InvalidWeights: As for `load_weights`.
    """
    card = _read(path).get("card")
    return dict(card) if isinstance(card, dict) else {}


def _read(path: Path) -> dict[str, Any]:
    """Read a file and check its format and features. Raise InvalidWeights."""
    try:
        with alone(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about foreign files before it raises
            stored: Any = torch.load(path, weights_only=True, map_location="cpu")
    except FileNotFoundError as error:
        raise InvalidWeights(
            "there is no such file", where=str(path), remedy=f"check the path, or {_SHIPPED}"
        ) from error
    except Exception as error:  # torch's reader may raise anything for a foreign file
        raise InvalidWeights(
            "the file does not contain weights, or is damaged", where=str(path), remedy=_GIVE
        ) from error
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        received = shown(stored.get("format")) if isinstance(stored, dict) else kind_of(stored)
        raise InvalidWeights(f"expected weights in format {FORMAT}, got {received}", where=str(path), remedy=_RETRAIN)
    if stored.get("features") != VERSION:
        raise InvalidWeights(
            f"expected weights for features of version {VERSION}, got version {stored.get('features')}",
            where=str(path),
            remedy=_RETRAIN,
        )
    if stored.get("columns") != list(NAMES):
        raise InvalidWeights("the weights were trained on other feature columns", where=str(path), remedy=_RETRAIN)
    return stored


def _as_tensors(trees: Trees | None) -> dict[str, torch.Tensor]:
    """Convert trees to tensors, which torch loads without running code; empty for None."""
    return {} if trees is None else {k: torch.from_numpy(np.asarray(v)) for k, v in trees.to_arrays(_TREES).items()}


def _as_trees(stored: Any) -> Trees | None:
    """Restore trees from tensors. Raise ValueError, KeyError or the like for invalid ones."""
    if not stored:
        return None
    trees = Trees.from_arrays({name: tensor.numpy() for name, tensor in stored.items()}, _TREES)
    trees.check(columns=ROW)
    return trees


def _count(value: Any) -> int:
    """Check a size read from a file. Raise ValueError unless it is 1 to 4096; a huge network would fill the memory."""
    if not isinstance(value, int) or not 1 <= value <= 4096:
        raise ValueError(f"expected a network size from 1 to 4096, got {shown(value)}")
    return value


def shipped(target: str) -> Path | None:
    """Return the path of the shipped weights for a kind of target; None without any."""
    path = SHIPPED / f"{target}.pt"
    return path if path.is_file() else None
