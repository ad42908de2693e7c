"""Check Python and the packages against the versions that the tests pass with; pyproject.toml has the same ranges."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib import metadata

from felixlike.errors import VersionMismatch

PYTHON = ("3.11", "3.15")
"""The first version of Python that is supported, and the first one after it that is not."""

PACKAGES = {
    "apache-tvm": ("0.27.0", "0.27.1"),
    "apache-tvm-ffi": ("0.1.14", "0.1.15"),
    "torch": ("2.11", "2.16"),
    "egglog": ("13.2", "15"),
}
"""The first version of each package that is supported, and the first one after it that is not.

apache-tvm-ffi 0.1.15 makes MetaSchedule's default rules segfault, too late for an exception."""


def python_problem(version: str) -> str:
    """Return why a version of Python is not supported; an empty string if it is."""
    return _problem("Python", PYTHON, version)


def package_problem(package: str, version: str) -> str:
    """Return why a version of a package is not supported; an empty string if it is."""
    return _problem(package, PACKAGES[package], version)


def requirement(package: str) -> str:
    """Return what pip installs: 'torch>=2.11,<2.16'."""
    first, beyond = PACKAGES[package]
    return f"{package}>={first},<{beyond}"


def check(installed: Mapping[str, str] | None = None, python: str | None = None) -> None:
    """Raise VersionMismatch unless Python and all packages have supported versions.

    Args:
        installed: Versions by package; None for those that are installed.
        python: Version of Python; None for the one that runs.
    """
    python = "{}.{}.{}".format(*sys.version_info) if python is None else python
    if problem := python_problem(python):
        raise VersionMismatch(problem, where="Python", remedy="use another version of Python")
    for package in PACKAGES:
        version = installed_version(package) if installed is None else installed.get(package, "")
        if problem := package_problem(package, version):
            raise VersionMismatch(
                problem,
                where="installed packages",
                remedy=f'install another version: pip install "{requirement(package)}"',
            )


def installed_version(package: str) -> str:
    """Return the version of a package that is installed; an empty string if it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _problem(name: str, supported: tuple[str, str], version: str) -> str:
    """Return why a version is not in a range; an empty string if it is."""
    first, beyond = map(_numbers, supported)
    if first <= _numbers(version) < beyond:
        return ""
    actual = f"{version} is" if version else "it is not"
    return f"{name} {supported[0]} or newer, but older than {supported[1]}, is required, and {actual} installed"


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release of a version: (2, 13, 0) for "2.13.0+cpu"."""
    return tuple(map(int, re.findall(r"\d+", re.match(r"[\d.]*", version)[0])))  # type: ignore[index]
