"""The cases of tests/tc/cases: programs with inputs, and what is to come of them."""

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
    """A tensor.  low, high: of its values; None: standard normal, integers from 0 to 9."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    low: float | None
    high: float | None

    def contents(self, random: np.random.Generator) -> Array:
        """Random values."""
        if self.dtype.startswith("float"):
            if self.low is None or self.high is None:
                return np.asarray(random.standard_normal(self.shape), self.dtype)
            return np.asarray(random.uniform(self.low, self.high, self.shape), self.dtype)
        high = 2 if self.dtype == "bool" else 10 if self.high is None else int(self.high)
        return np.asarray(random.integers(int(self.low or 0), high, self.shape), self.dtype)


def spec(text: str) -> Spec:
    """Of a text like "A: float32[2, 3] from 0 to 1"."""
    found = _SPEC.fullmatch(text)
    assert found, text
    name, dtype, sizes, low, high = found.groups()
    shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    return Spec(name, shape, dtype, None if low is None else float(low), None if high is None else float(high))


def cases(name: str) -> list[dict[str, Any]]:
    """The cases of a file."""
    with (_FOLDER / f"{name}.toml").open("rb") as file:
        found: list[dict[str, Any]] = tomllib.load(file)["case"]
    return found


def contents(case: dict[str, Any], *fields: str) -> dict[str, Array]:
    """Random contents of the tensors that are listed in fields of a case, always the same."""
    random = np.random.default_rng(zlib.crc32(case["name"].encode()))
    return {found.name: found.contents(random) for field in fields for found in map(spec, case.get(field, ()))}


def expected(case: dict[str, Any], given: dict[str, Array]) -> dict[str, Array]:
    """What numpy gives for the inputs of a case."""
    out: dict[str, Array] = {}
    exec(case["expected"], {"np": np, "x": given, "out": out})
    return out


def tensor(array: Array) -> torch.Tensor:
    """A copy as a torch tensor."""
    return torch.from_numpy(array.copy())
