"""Versions of Python and of packages outside the supported ranges are refused in a sentence."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from felixlike._util import supported
from felixlike.errors import VersionMismatch

HERE = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1", "torch": "2.13.0+cpu", "egglog": "13.2.0"}


def test_the_installed_versions_are_supported() -> None:
    supported.check()


def test_the_ranges_are_those_of_the_project_file() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    first, beyond = supported.PYTHON
    assert project["requires-python"] == f">={first},<{beyond}"
    required = project["dependencies"]
    for package in ("apache-tvm-ffi", "torch", "egglog"):
        assert supported.requirement(package) in required
    assert "apache-tvm==0.27.0.post1" in required


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.1", "2.15.0.dev20260101+cu132"])
def test_builds_and_patches_within_the_range_are_supported(version: str) -> None:
    supported.check({**HERE, "torch": version}, "3.14.0")


@pytest.mark.parametrize(
    ("versions", "python", "words"),
    [
        ({"apache-tvm-ffi": "0.1.15"}, "3.11.7", r"apache-tvm-ffi 0\.1\.14 .* 0\.1\.15 is installed.*apache-tvm-ffi>="),
        ({"apache-tvm": "0.20.0"}, "3.11.7", r"apache-tvm 0\.27\.0 .* 0\.20\.0 is installed"),
        ({"torch": "2.10.1"}, "3.11.7", r"torch 2\.11 or newer, but older than 2\.16, .* 2\.10\.1 is installed"),
        ({"torch": "2.16.0"}, "3.11.7", r"2\.16\.0 is installed.*torch>=2\.11,<2\.16"),
        ({"egglog": ""}, "3.11.7", "egglog .* it is not installed"),
        ({}, "3.15.0rc1", r"Python: Python 3\.11 or newer.* 3\.15\.0rc1 is installed"),
        ({}, "3.10.2", r"3\.10\.2 is installed"),
    ],
)
def test_other_versions_are_refused(versions: dict[str, str], python: str, words: str) -> None:
    with pytest.raises(VersionMismatch, match=words):
        supported.check({**HERE, **versions}, python)


def test_the_command_says_it_in_one_sentence_and_doctor_still_runs() -> None:
    code = "from felixlike._util import supported; supported.PACKAGES['torch'] = ('99', '100'); " + (
        "import sys; from felixlike.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run([*command, "tune", "x.onnx"], capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "torch 99 or newer" in ended.stderr
    assert "Traceback" not in ended.stderr
    doctor = subprocess.run([*command, "doctor"], capture_output=True, text=True, check=False)
    assert 'pip install "torch>=99,<100"' in " ".join(doctor.stdout.split())
