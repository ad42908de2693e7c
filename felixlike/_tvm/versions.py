"""The versions that this package was written for, and those of what is installed."""

from __future__ import annotations

from importlib import metadata

from felixlike.errors import VersionMismatch

TVM_VERSION = "0.27"


FFI_VERSION = "0.1.14"


def check_versions(installed: dict[str, str] | None = None) -> None:
    """Raise VersionMismatch unless TVM and its FFI are the versions this package was written for.

    installed: package name → version; None reads what is installed. Called before TVM is imported, since
    apache-tvm-ffi 0.1.15 makes MetaSchedule's default rules segfault: too late for an exception."""
    for package, wanted in (("apache-tvm", TVM_VERSION), ("apache-tvm-ffi", FFI_VERSION)):
        try:
            found = metadata.version(package) if installed is None else installed[package]
        except (metadata.PackageNotFoundError, KeyError):
            found = "none"
        if found != wanted and not found.startswith(wanted + "."):
            raise VersionMismatch(
                f"{package} is {found}, but {wanted}.* is needed",
                where="installed packages",
                remedy='install what the constraints file names: pip install "apache-tvm==0.27.0.post1" '
                '"apache-tvm-ffi>=0.1.14,<0.1.15"',
            )
