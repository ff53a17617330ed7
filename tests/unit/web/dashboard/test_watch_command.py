"""`groupwise watch` as a person starts and ends it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from groupwise import cli


def heed_interrupts() -> None:
    """A shell that runs the tests in the background has its children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_it_serves_until_it_is_interrupted(tmp_path: Path, sample: Any) -> None:
    sample.run(tmp_path / "runs/one", num_steps=1)
    command = [sys.executable, "-m", "groupwise", "watch", "--port", "0", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, **pipes, text=True, preexec_fn=heed_interrupts) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        told = json.loads(process.stdout.readline())
        assert [run["name"] for run in told["runs"]] == ["one"]
        with urllib.request.urlopen(f"{told['url']}api/runs", timeout=100) as answer:
            assert json.load(answer)["runs"][0]["id"] == told["runs"][0]["id"]
        with urllib.request.urlopen(told["url"], timeout=100) as answer:
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=100) == 0
        assert process.stderr.read() == ""


def test_a_taken_port_and_a_missing_folder(
    tmp_path: Path, sample: Any, serve: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    sample.run(tmp_path / "run", num_steps=1)
    with serve(tmp_path) as client:
        assert cli.main(["watch", str(tmp_path), "--port", str(client.port)]) == 2
    assert f"--port {client.port}: is already in use; choose another port, or 0" in capsys.readouterr().err
    assert cli.main(["watch", str(tmp_path / "nothing")]) == 2
    assert "no folder at" in capsys.readouterr().err
    assert cli.main(["watch", str(tmp_path), "--port", "65536"]) == 2
    assert "--port = 65536: must be from 0 to 65,535" in capsys.readouterr().err


def test_it_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from groupwise.web.dashboard.loopback_server import DashboardServer

    def interrupt(_: DashboardServer) -> None:
        raise KeyboardInterrupt

    opened: list[str] = []
    monkeypatch.setattr(DashboardServer, "serve_forever", interrupt)
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["watch", "--port", "0", "--open"]) == 0
    printed = capsys.readouterr().out
    assert "runs does not exist (yet)" in printed
    assert f"watching 0 runs at {opened[0]}" in printed
