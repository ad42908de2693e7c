"""Check the installed versions of TVM against those that this package was written for."""

from __future__ import annotations

from importlib import metadata

from felixlike.errors import VersionMismatch

TVM_VERSION = "0.27"
"""The required version of apache-tvm."""


FFI_VERSION = "0.1.14"
"""The required version of apache-tvm-ffi."""


def check_versions(installed: dict[str, str] | None = None) -> None:
    """Raise VersionMismatch unless TVM and its FFI have the versions that this package was written for.

    It runs before TVM is imported: apache-tvm-ffi 0.1.15 makes MetaSchedule's default rules segfault, too late for an
    exception. `installed` maps package names to versions. None reads the installed ones.
    """
    for package, required in (("apache-tvm", TVM_VERSION), ("apache-tvm-ffi", FFI_VERSION)):
        try:
            actual = metadata.version(package) if installed is None else installed[package]
        except (metadata.PackageNotFoundError, KeyError):
            actual = ""
        if actual != required and not actual.startswith(required + "."):
            raise VersionMismatch(
                f"{package} {required}.* is required, but {f'{actual} is' if actual else 'it is not'} installed",
                where="installed packages",
                remedy='install the supported versions: pip install "apache-tvm==0.27.0.post1" '
                '"apache-tvm-ffi>=0.1.14,<0.1.15"',
            )
