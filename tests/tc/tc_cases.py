"""Read the cases of tests/tc/cases: programs with their inputs and expected outputs."""

from __future__ import annotations

import re
import tomllib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, np.dtype[Any]]

_FOLDER = Path(__file__).parent / "cases"
_SPEC = re.compile(r"(\w+): (\w+)\[([\d, ]*)\](?: from (\S+) to (\S+))?")


@dataclass(frozen=True)
class Spec:
    """A tensor of a case.

    `low` and `high` bound its values. Without bounds floats are standard normal and integers are 0 to 9.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    low: float | None
    high: float | None

    def contents(self, random: np.random.Generator) -> Array:
        """Return random values of the tensor's shape and dtype."""
        if self.dtype.startswith("float"):
            if self.low is None or self.high is None:
                return np.asarray(random.standard_normal(self.shape), self.dtype)
            return np.asarray(random.uniform(self.low, self.high, self.shape), self.dtype)
        high = 2 if self.dtype == "bool" else 10 if self.high is None else int(self.high)
        return np.asarray(random.integers(int(self.low or 0), high, self.shape), self.dtype)


def spec(text: str) -> Spec:
    """Parse a text like "A: float32[2, 3] from 0 to 1"."""
    match = _SPEC.fullmatch(text)
    assert match, text
    name, dtype, sizes, low, high = match.groups()
    shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    return Spec(name, shape, dtype, None if low is None else float(low), None if high is None else float(high))


def cases(name: str) -> list[dict[str, Any]]:
    """Return the cases of a file."""
    with (_FOLDER / f"{name}.toml").open("rb") as file:
        result: list[dict[str, Any]] = tomllib.load(file)["case"]
    return result


def contents(case: dict[str, Any], *fields: str) -> dict[str, Array]:
    """Return random contents of the tensors listed in fields of a case. The seed is the case's name."""
    random = np.random.default_rng(zlib.crc32(case["name"].encode()))
    return {parsed.name: parsed.contents(random) for field in fields for parsed in map(spec, case.get(field, ()))}


def expected(case: dict[str, Any], inputs: dict[str, Array]) -> dict[str, Array]:
    """Compute the expected outputs of a case with NumPy."""
    out: dict[str, Array] = {}
    exec(case["expected"], {"np": np, "x": inputs, "out": out})
    return out


def tensor(array: Array) -> torch.Tensor:
    """Copy an array into a torch tensor."""
    return torch.from_numpy(array.copy())
