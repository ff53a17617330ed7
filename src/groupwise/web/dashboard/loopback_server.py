"""The HTTP server of `groupwise watch`: the page at /, the JSON interface below /api/, on loopback alone.

What it keeps to, since any page that a browser on this machine has open may send requests here:
    loopback only     it listens on 127.0.0.1, and answers only where the Host header is a loopback name with its port
                      (a foreign name that was made to point here is refused)
    reading only      GET and HEAD; anything else is 405
    one origin        no CORS header; a request that a browser marks as coming from another site is refused, but for
                      opening the page itself; answers are not for others to embed or frame
    content policy    the page runs its own script and style, each by hash; nothing is loaded from anywhere else

It does not encrypt and knows no users: whoever can log in to this machine can read what it serves.
"""

from __future__ import annotations

import errno
import re
import sys
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from groupwise.base.harmless import policy_hash
from groupwise.web.dashboard.library import Library
from groupwise.web.dashboard.routes import Response, answer, encode

ADDRESS = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "[::1]")
IDLE_S = 30
_INLINE = re.compile(r"<(script|style)\b[^>]*>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_STRICT_POLICY = "default-src 'none'; frame-ancestors 'none'"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class PortTaken(ValueError):
    """Another program listens there. The message says what to do."""


class DashboardServer(ThreadingHTTPServer):
    daemon_threads = True
    # A page that asks for many things at once is not kept waiting by a full queue.
    request_queue_size = 128
    # A server that ends does not wait for browsers that keep their connection open.
    block_on_close = False

    def __init__(self, library: Library, page: str, port: int) -> None:
        """Listens at once; `serve_forever` answers. Port 0: one that is free."""
        self.library = library
        self.page = page.encode("utf-8")
        self.page_policy = content_policy(page)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                why = "is taken" if error.errno == errno.EADDRINUSE else "is not ours to use"
                raise PortTaken(f"--port {port}: {why}; choose another, or 0 for one that is free") from None
            raise

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no news; anything else is told."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def content_policy(page: str) -> str:
    """Names each inline script and style of the page by its hash."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for match in _INLINE.finditer(page):
        hashes[match[1].lower()].append(policy_hash(match[2]))
    sources = {name: " ".join(found) or "'none'" for name, found in hashes.items()}
    return (
        f"default-src 'none'; script-src {sources['script']}; style-src {sources['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def refusal(headers: Message[str, str], port: int, is_page: bool) -> str:
    """Why a request is not answered, by its headers; "" where it is."""
    host = (headers.get("Host") or "").lower()
    if host not in {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set()):
        return f"the Host header has to be {ADDRESS}:{port} or localhost:{port}"
    site = (headers.get("Sec-Fetch-Site") or "").lower()
    purpose = (headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest"))
    is_navigation = is_page and purpose == ("navigate", "document")
    if site not in ("", "same-origin", "none") and not is_navigation:
        return "requests from other sites are not answered"
    origin = headers.get("Origin")
    if origin is not None and origin.lower() not in {f"http://{name}:{port}" for name in NAMES}:
        return "requests from other sites are not answered"
    return ""


class _Handler(BaseHTTPRequestHandler):
    server: DashboardServer
    protocol_version = "HTTP/1.1"
    server_version = "groupwise"
    sys_version = ""
    timeout = IDLE_S
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not logged: the page asks every second."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Also what the standard library refuses: a method that we lack, a request that is no HTTP."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self.close_connection = True
        self._send(Response(status, encode({"error": status.phrase, "parameter": None})))

    def _answer(self) -> None:
        path, _, query = self.path.partition("?")
        reason = refusal(self.headers, self.server.port, is_page=path == "/")
        if reason:
            self.close_connection = True
            self._send(Response(HTTPStatus.FORBIDDEN, encode({"error": reason, "parameter": None})))
        elif path == "/":
            page = Response(HTTPStatus.OK, self.server.page)
            self._send(page, "text/html; charset=utf-8", self.server.page_policy)
        else:
            self._send(answer(self.server.library, path, query))

    def _send(self, result: Response, kind: str = "application/json", policy: str = _STRICT_POLICY) -> None:
        self.send_response(result.status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(result.body)))
        self.send_header("Content-Security-Policy", policy)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if result.status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(result.body)
