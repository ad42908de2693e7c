"""Serve a live page of a store to browsers on this machine.

Input: the path of a store, which need not exist yet. Output: an HTTP server on the loopback address. Every user of the
machine can reach that address, so the page's path begins with a random token, which is known only to the user who
started the server. The page is built on request only, if the store has changed, and at most every two seconds.
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
"""Address of the server."""

_HOSTS = (LOOPBACK, "localhost")
"""Accepted values of the Host header. They protect against DNS rebinding: another site could otherwise read the page
under its own name.
"""

_TOKEN_BYTES = 16
"""Random bytes of the token. 128 bits cannot be guessed."""

LEAST_SECONDS = 2.0
"""Minimum seconds between two builds of the page. Drawing schedules takes at most half of that per build. Chosen by
hand.
"""

_MOST = 30.0
"""Seconds after which the page is rebuilt in any case, because it shows times. Chosen by hand."""


class _Pages:
    """Build and cache the store's page, for use by several threads."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._page = StorePage(store, seconds=LEAST_SECONDS / 2)
        self._built = Page(str(store), (), ())
        self._seen: Any = None
        self._at = -float("inf")
        self._least = 0.0

    def now(self) -> Page:
        """Return the page. Rebuild it if it is old enough and the store has changed."""
        with self._lock:
            age = time.monotonic() - self._at
            if age < self._least:
                return self._built
            state = self._state()
            if state != self._seen or self._built.unfinished or age > _MOST:
                started = time.monotonic()
                self._built, self._seen = self._build(), state
                self._at = time.monotonic()
                self._least = max(LEAST_SECONDS, 3 * (self._at - started))  # a large store must not slow down its run
            return self._built

    def _build(self) -> Page:
        """Build the page. On an error, build a page that describes the error."""
        name = str(self._store)
        try:
            if not self._store.exists() or not self._store.stat().st_size:
                return Page(name, (), (), state=f"Waiting for the store {name}, which does not exist yet.")
            return self._page.build()
        except (FelixlikeError, OSError) as error:
            return Page(name, (), (), state=f"The store cannot be read now: {error}")
        except Exception as error:  # the server continues, as the run does
            words = f"{type(error).__name__}: {first_line(error)}"
            return Page(name, (), (), state=f"The page could not be built because of a bug in felixlike: {words}")

    def _state(self) -> list[tuple[str, int, int]]:
        """Return names, times and sizes of the files that a run changes: the store, SQLite's log, the run logs."""
        folder = Path(f"{self._store}.logs")
        files = [self._store, Path(f"{self._store}-wal")]
        states = []
        with contextlib.suppress(OSError):
            files += sorted(folder.iterdir())
        for file in files:
            try:
                status = file.stat()
            except OSError:
                continue
            states.append((file.name, status.st_mtime_ns, status.st_size))
        return states


class Watch:
    """The server of a live page.

    Args:
        store: Path of the store.
        port: TCP port; 0 for any free port.

    Attributes:
        url: Address of the page. It contains the token that grants access.

    Raises:
        InvalidOption: The port is in use.
    """

    def __init__(self, store: Path, port: int = 0) -> None:
        try:
            self._server = _Server((LOOPBACK, port), _Handler)
        except OSError as error:
            raise InvalidOption(
                f"cannot listen on port {port}: {error.strerror or error}",
                where="watch",
                remedy="choose another port with --port, or 0 for any free port",
            ) from None
        self._server.pages = _Pages(store)
        self._server.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self.url = f"http://{LOOPBACK}:{self._server.server_address[1]}/{self._server.token}/"

    def serve(self) -> None:
        """Serve until `close` is called or an exception (Ctrl-C) is raised."""
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """End `serve`, from another thread."""
        self._server.shutdown()

    def close(self) -> None:
        """Close the server and release the port."""
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """An HTTP server with a page and a token."""

    pages: _Pages
    token: str

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that disconnect."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answer the requests of browsers."""

    server: _Server
    timeout = 30.0

    def do_GET(self) -> None:
        """Serve the page, or its body for a live update."""
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in _HOSTS:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"this page is available on this machine only\n", "text/plain")
            return
        request = urlsplit(self.path)
        token, _, part = request.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            words = b"open the address that `felixlike watch` printed; it contains the token\n"
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
        elif parse_qs(request.query).get("after") == [version]:
            self._answer(HTTPStatus.NO_CONTENT, b"", version=version)
        else:
            self._answer(HTTPStatus.OK, body.encode(), version=version)

    def _answer(
        self, status: HTTPStatus, content: bytes, kind: str = "text/html", *, nonce: str = "", version: str = ""
    ) -> None:
        """Send a response with security headers."""
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
        """Log nothing."""
