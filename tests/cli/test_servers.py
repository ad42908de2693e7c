"""Tests for `felixlike doctor --tracker` with working servers, unsuitable servers and without servers."""

from __future__ import annotations

import re

import pytest
from support.loopback import Loopback

from felixlike import _tvm
from felixlike.cli import main
from felixlike.cli.servers import examine_servers
from felixlike.hardware import host_device
from felixlike.measure.rpc.tracker import Tracker


def test_working_servers_are_listed(loopback: Loopback, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--tracker", loopback.where, "--key", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"ok +tracker +{loopback.where}, \d servers", printed)
    assert re.search(r"ok +key cpu +2 servers, 2 free", printed)
    for host, port in Tracker(loopback.where).servers()["cpu"].addresses:
        line = next(line for line in printed.splitlines() if f"{host}:{port}" in line)
        assert re.match(rf"ok +server .*, TVM {re.escape(_tvm.version())}, a product .* in [\d.]+ µs", line)
        assert host_device().name in line


def test_servers_without_the_target_are_fatal(loopback: Loopback) -> None:
    tracker, key, *servers = examine_servers(loopback.where, "cpu", "sm_90")
    assert not tracker.problem
    assert not key.problem
    assert len(servers) == 2
    for server in servers:
        assert "GPU" in server.problem
        assert "docs/rpc.md" in server.remedy
        assert server.fatal


def test_a_key_without_servers_is_a_problem(loopback: Loopback, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--tracker", loopback.where, "--key", "gpu"]) == 1
    printed = capsys.readouterr().out
    assert re.search("PROBLEM *key gpu", printed)
    assert f"Start one: python -m tvm.exec.rpc_server --tracker {loopback.where} --key gpu." in printed


def test_a_missing_tracker_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    (finding,) = examine_servers("127.0.0.1:1", None, "cpu")
    assert (finding.name, finding.value) == ("tracker", "127.0.0.1:1")
    assert finding.problem
    assert "python -m tvm.exec.rpc_tracker" in finding.remedy
    for option in ("--key", "--target"):
        assert main(["doctor", option, "cpu"]) == 1
        assert re.search(f"{option}: .*--tracker", capsys.readouterr().err)
