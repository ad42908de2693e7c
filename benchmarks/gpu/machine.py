"""Describe the GPU of the results: name, driver, clocks, and the versions of the software."""

from __future__ import annotations

import datetime
import platform
import subprocess
from importlib import metadata
from typing import Any

_ASKED = {
    "name": "name",
    "driver": "driver_version",
    "multiprocessor clock, MHz": "clocks.sm",
    "its most, MHz": "clocks.max.sm",
    "memory clock, MHz": "clocks.mem",
    "power limit, W": "power.limit",
    "temperature, °C": "temperature.gpu",
    "memory in use, MiB": "memory.used",
}


def facts(*, rehearsal: bool) -> dict[str, Any]:
    """Return the facts for the page of a device."""
    import torch

    from felixlike import __version__
    from felixlike.codegen import cuda_toolchain, nvrtc

    properties: dict[str, Any] = {"date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")}
    properties |= {"name": "no GPU: a rehearsal with the simulated H100"} if rehearsal else _smi()
    compiler = f"NVRTC {nvrtc.version()}" if cuda_toolchain() == "nvrtc" else cuda_toolchain() or "none"
    properties |= {"CUDA source compiled by": compiler, "Python": platform.python_version()}
    properties |= {"torch": torch.__version__, "torch's CUDA": torch.version.cuda or "none"}
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    properties |= {"cuDNN": str(cudnn or "none")}
    properties |= {"apache-tvm": metadata.version("apache-tvm"), "felixlike": __version__}
    return properties


def _smi() -> dict[str, str]:
    command = ["nvidia-smi", f"--query-gpu={','.join(_ASKED.values())}", "--format=csv,noheader,nounits"]
    try:
        line = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return {"name": "unknown", "driver": f"nvidia-smi says nothing ({type(error).__name__})"}
    return dict(zip(_ASKED, (value.strip() for value in line.split(",")), strict=True))
