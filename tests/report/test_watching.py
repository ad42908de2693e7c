"""The live page: access, updates, and messages while there is no store to show."""

from __future__ import annotations

import http.client
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote, urlsplit

import pytest
from pages import Read
from support.stores import TASK, fill, record, timed

from felixlike import records
from felixlike.cli import main
from felixlike.errors import InvalidOption
from felixlike.report import watching
from felixlike.report.page import StorePage
from felixlike.report.watching import Watch


class Browser:
    """A client of a server that runs in a thread."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self._address = urlsplit(watch.url)

    @property
    def port(self) -> int:
        assert self._address.port is not None
        return self._address.port

    def status_of(self, path: str, **headers: str) -> int:
        """Request an absolute path and return the HTTP status."""
        return self._answer(path, headers)[0]

    def get(self, path: str, **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
        """Request a path relative to the address and return status, text and headers."""
        return self._answer(self._address.path.rstrip("/") + path, headers)

    def _answer(self, path: str, headers: dict[str, str]) -> tuple[int, str, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text, response.headers


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


@pytest.fixture
def browser(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    monkeypatch.setattr(watching, "_LEAST", 0.0)
    watch = Watch(store)
    monkeypatch.setattr(watch._server.pages, "_least", 0.0)
    thread = threading.Thread(target=watch.serve)
    thread.start()
    yield Browser(watch)
    watch.stop()
    thread.join()
    watch.close()


def test_the_page_waits_for_a_store_and_then_shows_it(store: Path, browser: Browser) -> None:
    status, text, headers = browser.get("/")
    assert status == 200
    page = Read(text)
    assert not page.wrong
    assert f"There is no store {store} yet. It is waited for." in page.text
    assert page.count("script") == 1
    nonce = next(at["nonce"] for tag, at in page.tags if tag == "script")
    assert f"script-src 'nonce-{nonce}'" in headers["Content-Security-Policy"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    version = next(at["data-version"] for tag, at in page.tags if at.get("id") == "page")
    assert browser.get(f"/body?after={version}")[:2] == (204, "")
    store.touch()
    assert "It is waited for" in browser.get("/body")[1]
    fill(store, 4)
    status, text, headers = browser.get(f"/body?after={version}")
    assert status == 200
    body = Read(text)
    assert not body.wrong
    assert not body.count("script")
    assert "relu16" in body.text
    assert headers["X-Version"] != version


def test_new_measurements_change_the_version(store: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, 4)
    _, _, headers = browser.get("/body")
    assert browser.get(f"/body?after={headers['X-Version']}")[0] == 204
    with records.open(store) as opened:  # the store is open for writing, as during a run
        opened.append(TASK, record(timed(1e-6), point=(7,)))
        browser.watch._server.pages._least = 0.0
        _, text, later = browser.get(f"/body?after={headers['X-Version']}")
    assert "1 µs" in text
    assert later["X-Version"] != headers["X-Version"]


def test_an_unreadable_store_is_reported_on_the_page(store: Path, browser: Browser) -> None:
    store.write_text("<b>no store</b> " * 9)
    status, text, _ = browser.get("/")
    assert status == 200
    assert "The store cannot be read at the moment" in Read(text).text


def test_an_internal_error_is_reported_on_the_page(
    store: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: StorePage) -> NoReturn:
        raise KeyError("<key>")

    fill(store, 1)
    monkeypatch.setattr(StorePage, "build", failing)
    status, text, _ = browser.get("/")
    assert status == 200
    assert "by a mistake in felixlike: KeyError: '<key>'" in Read(text).text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example"])
def test_only_requests_to_this_machine_are_answered(browser: Browser, host: str) -> None:
    status, text, _ = browser.get("/", Host=host)
    assert (status, "main" in text) == (421, False)
    assert browser.get("/", Host="localhost:1234")[0] == 200
    assert browser.watch.url.startswith("http://127.0.0.1:")


def test_only_requests_with_the_token_are_answered(browser: Browser, store: Path) -> None:
    """Any user of the machine can connect to the port."""
    token = urlsplit(browser.watch.url).path.strip("/")
    assert len(token) >= 22
    for path in ("/", "/body", f"/{token[:-1]}/", f"/{token}x/body", f"/?token={token}", "/ä/", ""):
        assert browser.status_of(quote(path, safe="/?=")) in (400, 403)
    assert browser.status_of(f"/{token}/") == 200
    other = Watch(store)
    other.close()
    assert urlsplit(other.url).path != urlsplit(browser.watch.url).path


def test_other_paths_are_not_found(browser: Browser) -> None:
    assert browser.get("/etc/passwd")[0] == 404
    assert browser.get("/../runs.sqlite")[0] == 404


def test_a_port_in_use_is_an_error(browser: Browser, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = str(browser.port)
    with pytest.raises(InvalidOption, match=rf"watch: port {port} cannot be used: .*give another one with --port"):
        Watch(store, int(port))
    assert main(["watch", str(store), "--port", port]) == 1
    assert f"port {port} cannot be used" in capsys.readouterr().err


def test_wrong_arguments_of_the_command_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no store " * 1000)
    for arguments, words in (
        ([str(text)], "damaged or not a store"),
        ([str(tmp_path)], "got a directory"),
        ([str(tmp_path / "nowhere" / "s.sqlite")], "there is no directory"),
        ([":memory:"], "in memory of another process"),
        ([str(tmp_path / "s.sqlite"), "--port", "70000"], "expected port to be an integer from 0 to 65535, got 70000"),
    ):
        assert main(["watch", *arguments]) == 1
        assert words in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(signal, "SIGINT") or os.name != "posix", reason="signals as POSIX has them")
def test_the_command_serves_until_it_is_interrupted(store: Path) -> None:
    command = [sys.executable, "-m", "felixlike", "watch", str(store), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert select.select([process.stdout], [], [], 120)[0]
        line = process.stdout.readline()
        assert f"shows {store} as soon as there is one. Ctrl-C ends it." in line
        address = urlsplit(line.split()[0])
        connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=60)
        connection.request("GET", address.path)
        assert "It is waited for" in connection.getresponse().read().decode()
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
