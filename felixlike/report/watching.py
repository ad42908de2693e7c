"""A live page of a store, for browsers on this machine.

In: the path of a store, which need not exist yet. Out: an HTTP server of the standard library on the loopback address.
The loopback address is one that every user of this machine can reach, so the page's path begins with a random token,
which only whoever started the server is told. The page is built when somebody asks and something is new, at most every
two seconds; nobody who asks, no work.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from felixlike.errors import FelixlikeError, InvalidOption, first_line
from felixlike.report.page import LIVE, Page, StorePage, page_body, page_text

LOOPBACK = "127.0.0.1"

_HOSTS = (LOOPBACK, "localhost")
"""What the page may be called; else a page from elsewhere could read it under a name of its own for this address."""

_TOKEN_BYTES = 16
"""Random bytes of the token. 128 bits cannot be guessed."""

_LEAST = 2.0
"""Seconds between two pages at least, and those that drawing schedules may take of one."""

_MOST = 30.0
"""Seconds after which a page is built anew in any case: what goes on is said with times."""


class _Pages:
    """The store's page as it is now, for any thread."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._page = StorePage(store, seconds=_LEAST / 2)
        self._built = Page(str(store), (), ())
        self._seen: Any = None
        self._at = -float("inf")
        self._least = 0.0

    def now(self) -> Page:
        """The page, built anew if that is worth it."""
        with self._lock:
            age = time.monotonic() - self._at
            if age < self._least:
                return self._built
            seen = self._state()
            if seen != self._seen or self._built.unfinished or age > _MOST:
                started = time.monotonic()
                self._built, self._seen = self._build(), seen
                self._at = time.monotonic()
                self._least = max(_LEAST, 3 * (self._at - started))  # so that a large store does not disturb its run
            return self._built

    def _build(self) -> Page:
        """A page in any case: of what is wrong if something is."""
        name = str(self._store)
        try:
            if not self._store.exists() or not self._store.stat().st_size:
                return Page(name, (), (), state=f"There is no store {name} yet. It is waited for.")
            return self._page.build()
        except (FelixlikeError, OSError) as error:
            return Page(name, (), (), state=f"The store cannot be read at the moment: {error}")
        except Exception as error:  # the run goes on, and so do we
            words = f"{type(error).__name__}: {first_line(error)}"
            return Page(name, (), (), state=f"The page could not be made by a mistake in felixlike: {words}")

    def _state(self) -> list[tuple[str, int, int]]:
        """What changes when a run goes on: the store, SQLite's log beside it, the runs' logs."""
        folder = Path(f"{self._store}.logs")
        files = [self._store, Path(f"{self._store}-wal")]
        found = []
        with contextlib.suppress(OSError):
            files += sorted(folder.iterdir())
        for file in files:
            try:
                about = file.stat()
            except OSError:
                continue
            found.append((file.name, about.st_mtime_ns, about.st_size))
        return found


class Watch:
    """The server.  port: 0 for any that is free.  url: where the page is; whoever knows it can read the page.

    Raises InvalidOption for a port in use."""

    def __init__(self, store: Path, port: int = 0) -> None:
        try:
            self._server = _Server((LOOPBACK, port), _Handler)
        except OSError as error:
            raise InvalidOption(
                f"port {port} cannot be used: {error.strerror or error}",
                where="watch",
                remedy="give another one with --port, or 0 for any that is free",
            ) from None
        self._server.pages = _Pages(store)
        self._server.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self.url = f"http://{LOOPBACK}:{self._server.server_address[1]}/{self._server.token}/"

    def serve(self) -> None:
        """Answer until `close`, or an exception (Ctrl-C)."""
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """End `serve`, from another thread."""
        self._server.shutdown()

    def close(self) -> None:
        """Give the port back."""
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    pages: _Pages
    token: str

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is nothing to speak of."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30.0

    def do_GET(self) -> None:
        """The page, or what is inside of it."""
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in _HOSTS:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"this page is for this machine alone\n", "text/plain")
            return
        asked = urlsplit(self.path)
        token, _, part = asked.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            words = b"open the address that `felixlike watch` has printed: it ends with a token\n"
            self._answer(HTTPStatus.FORBIDDEN, words, "text/plain")
            return
        if part not in ("", "body"):
            self._answer(HTTPStatus.NOT_FOUND, b"there is only one page\n", "text/plain")
            return
        page = self.server.pages.now()
        body = page_body(page)
        version = hashlib.sha256(body.encode()).hexdigest()[:16]
        if not part:
            nonce = secrets.token_urlsafe(16)
            self._answer(HTTPStatus.OK, page_text(page, LIVE(nonce, version)).encode(), nonce=nonce)
        elif parse_qs(asked.query).get("after") == [version]:
            self._answer(HTTPStatus.NO_CONTENT, b"", version=version)
        else:
            self._answer(HTTPStatus.OK, body.encode(), version=version)

    def _answer(
        self, status: HTTPStatus, content: bytes, kind: str = "text/html", *, nonce: str = "", version: str = ""
    ) -> None:
        self.send_response(status)
        scripts = f"script-src 'nonce-{nonce}'; " if nonce else ""
        policy = f"default-src 'none'; {scripts}style-src 'unsafe-inline'; img-src data:; connect-src 'self'"
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Security-Policy": f"{policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        if version:
            headers["X-Version"] = version
        if status is not HTTPStatus.NO_CONTENT:
            headers["Content-Length"] = str(len(content))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Nothing is said of requests."""
