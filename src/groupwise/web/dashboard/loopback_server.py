"""The HTTP server of `groupwise watch`: the page at /, the JSON interface below /api/, on loopback alone.

The page is a constant without data of runs: its script asks the interface, and shows texts only through textContent.
Any page open in a browser on this machine can send requests here, so the server follows these rules:
    loopback only     it listens on 127.0.0.1 and requires a Host header with a loopback name and its port (DNS
                      rebinding is refused)
    read only         GET and HEAD; anything else is 405
    one origin        no CORS header; requests marked by the browser as coming from another site are refused, except
                      for opening the page itself; answers cannot be embedded or framed
    content policy    the page runs only its own script and style, by hash; nothing is loaded from elsewhere

There is no encryption and no login: anybody who can log in to this machine can read what it serves.
"""

from __future__ import annotations

import errno
import sys
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from groupwise.web.bundle import bundle_script, bundle_style, content_policy, fill_page
from groupwise.web.dashboard.library import Library
from groupwise.web.dashboard.routes import Response, answer, encode

ADDRESS = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "[::1]")
IDLE_S = 30
SCRIPT = bundle_script("dashboard.js")
STYLE = bundle_style("base.css", "charts.css", "dashboard.css", "groups.css")
PAGE = fill_page("dashboard.html", style=STYLE, script=SCRIPT)
PAGE_POLICY = f"{content_policy(SCRIPT, STYLE)}; connect-src 'self'; img-src data:; frame-ancestors 'none'"
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
    """The port cannot be used. The message says what to do."""


class DashboardServer(ThreadingHTTPServer):
    daemon_threads = True
    # A full queue must not delay a page that sends many requests at once.
    request_queue_size = 128
    # A stopping server does not wait for browsers that keep their connection open.
    block_on_close = False

    def __init__(self, library: Library, port: int) -> None:
        """Start to listen; `serve_forever` answers. Port 0 chooses a free port."""
        self.library = library
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                why = "is already in use" if error.errno == errno.EADDRINUSE else "is not permitted"
                raise PortTaken(f"--port {port}: {why}; choose another port, or 0 for any free port") from None
            raise

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors, except for a browser that disconnects in the middle of an answer."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def refusal(headers: Message[str, str], port: int, is_page: bool) -> str:
    """Return why a request is refused, by its headers; "" if it is not."""
    host = (headers.get("Host") or "").lower()
    if host not in {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set()):
        return f"the Host header must be {ADDRESS}:{port} or localhost:{port}"
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
        path, _, query = self.path.partition("?")
        reason = refusal(self.headers, self.server.port, is_page=path == "/")
        if reason:
            self.close_connection = True
            self._send(Response(HTTPStatus.FORBIDDEN, encode({"error": reason, "parameter": None})))
        elif path == "/":
            self._send(Response(HTTPStatus.OK, PAGE.encode("utf-8")), "text/html; charset=utf-8", PAGE_POLICY)
        else:
            self._send(answer(self.server.library, path, query))

    do_HEAD = do_GET  # `_send` leaves out the body

    def log_message(self, format: str, *arguments: Any) -> None:
        """Do nothing: the page sends requests every second."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that the standard library refuses: unknown method, malformed HTTP."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self.close_connection = True
        self._send(Response(status, encode({"error": status.phrase, "parameter": None})))

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
