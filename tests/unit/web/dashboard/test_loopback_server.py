"""Who is answered, and how: over a real socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groupwise.base.harmless import policy_hash
from groupwise.web.dashboard.library import Library
from groupwise.web.dashboard.loopback_server import PAGE, SCRIPT, STYLE, DashboardServer, PortTaken

PATHS = ("/", "/api/runs", "/api/catalogue", "/api/runs/0123456789ab/metrics", "/nothing")


@pytest.fixture
def client(tmp_path: Path, sample: Any, serve: Any) -> Iterator[Any]:
    sample.run(tmp_path / "runs/run", num_steps=1)
    (tmp_path / "secret").write_text("do not read")
    with serve(tmp_path / "runs") as client:
        yield client


def test_it_listens_on_loopback_alone(client: Any) -> None:
    assert client.server.server_address[0] == "127.0.0.1"
    assert client.server.url == f"http://127.0.0.1:{client.port}/"


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_is_locked_down(client: Any, path: str) -> None:
    reply = client.request(path)
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert reply.headers["cross-origin-resource-policy"] == "same-origin"
    assert reply.headers["cache-control"] == "no-store"
    assert not [name for name in reply.headers if name.startswith("access-control")]
    assert "python" not in reply.headers["server"].lower()


def test_the_page_names_its_script_and_style_by_hash(client: Any) -> None:
    reply = client.request("/")
    assert (reply.status, reply.body.decode()) == (200, PAGE)
    policy = reply.headers["content-security-policy"]
    assert f"script-src {policy_hash(SCRIPT)};" in policy
    assert f"style-src {policy_hash(STYLE)};" in policy
    assert "connect-src 'self'" in policy


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "",
        "0.0.0.0:{port}",
    ],
)
def test_a_foreign_host_is_refused(client: Any, path: str, host: str) -> None:
    reply = client.request(path, headers={"Host": host.format(port=client.port)})
    assert reply.status == 403
    assert "Host" in reply.json["error"]


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}"])
def test_our_own_names_are_answered(client: Any, host: str) -> None:
    assert client.request("/api/runs", headers={"Host": host.format(port=client.port)}).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"])
def test_reading_is_all_one_can_do(client: Any, method: str) -> None:
    reply = client.request("/api/runs", method=method)
    assert reply.status == 405
    assert reply.headers["allow"] == "GET, HEAD"


def test_head_has_no_body(client: Any) -> None:
    reply = client.request("/api/catalogue", method="HEAD")
    assert (reply.status, reply.body) == (200, b"")
    assert int(reply.headers["content-length"]) > 1000


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/api/runs", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("/api/runs", {"Sec-Fetch-Site": "none"}, 200),
        ("/api/runs", {"Sec-Fetch-Site": "same-site"}, 403),
        ("/api/runs", {"Sec-Fetch-Site": "cross-site"}, 403),
        (
            "/api/runs",
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
            403,
        ),
        ("/api/runs", {"Origin": "https://evil.example"}, 403),
        ("/api/runs", {"Origin": "null"}, 403),
        ("/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}, 403),
        ("/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
        ("/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
    ],
)
def test_other_sites_are_refused(client: Any, path: str, headers: dict[str, str], status: int) -> None:
    assert client.request(path, headers=headers).status == status


@pytest.mark.parametrize(
    "path",
    [
        "/../secret",
        "/secret",
        "//etc/passwd",
        "/api/runs/../../secret",
        "/api/runs/..%2f..%2fsecret/metrics",
        "/api/runs/%2e%2e/metrics",
        "/api/runs/{id}/../../secret",
        "/api/runs/{id}/metrics/",
        "/api/runs/{id}/rollouts",
        "/api/runs/{id}/%6detrics",
        "/api/runs//metrics",
        "/api/runs/{id}/metrics%00",
        "http://127.0.0.1/etc/passwd",
    ],
)
def test_no_path_leads_to_the_file_system(client: Any, path: str) -> None:
    reply = client.request(path.replace("{id}", client.run_id("run")))
    assert reply.status in (403, 404)
    assert b"do not read" not in reply.body
    assert reply.json["error"]


def test_what_is_no_http_gets_no_answer_from_us(client: Any) -> None:
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
        connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b"Bad Request" in answer
    assert client.request("/api/runs").status == 200


def test_a_taken_port_says_what_to_do(client: Any) -> None:
    with pytest.raises(PortTaken, match=rf"--port {client.port}: is already in use; choose another port, or 0"):
        DashboardServer(Library([]), client.port)
