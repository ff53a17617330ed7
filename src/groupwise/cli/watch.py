"""The command that shows runs in a browser while they train."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from groupwise.web.dashboard.loopback_server import DashboardServer

DEFAULT_FOLDER = Path("runs")
DEFAULT_PORT = 8470


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    watch = commands.add_parser("watch", help="runs in a browser, while they train and after")
    watch.add_argument(
        "runs",
        type=Path,
        nargs="*",
        metavar="RUNS",
        help=f"run directories, and folders that hold some, at most 4 deep; default {DEFAULT_FOLDER}",
    )
    watch.add_argument(
        "--port", type=int, default=DEFAULT_PORT, metavar="N", help=f"default {DEFAULT_PORT}; 0 for one that is free"
    )
    watch.add_argument("--open", action=argparse.BooleanOptionalAction, default=False, help="open it in a browser")
    watch.add_argument("--json", action="store_true", help="the address and the runs found as one line of JSON")
    watch.set_defaults(command=_watch)


def _watch(options: argparse.Namespace) -> int:
    """Serves until Ctrl-C, which is how it ends well."""
    from groupwise.config import ConfigError
    from groupwise.web.dashboard.library import Library
    from groupwise.web.dashboard.loopback_server import DashboardServer
    from groupwise.web.dashboard.watch_page import PAGE

    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port {options.port}: take one from 1 to 65535, or 0 for one that is free")
    for path in options.runs:
        if not path.is_dir():
            raise ConfigError(f"no folder at {path}; name a run directory, or a folder that holds some")
    library = Library(options.runs or [DEFAULT_FOLDER])
    with DashboardServer(library, PAGE, options.port) as server:
        _say(server, options.json)
        if options.open:
            import webbrowser

            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            library.close()
    return 0


def _say(server: DashboardServer, as_json: bool) -> None:
    import json

    from groupwise.runs import printable

    runs, warnings = server.library.look()
    if as_json:
        found = [{"id": run.id, "name": run.name, "path": str(run.path)} for run in runs]
        print(
            json.dumps({"url": server.url, "port": server.port, "runs": found, "warnings": list(warnings)}), flush=True
        )
        return
    for warning in warnings:
        print(printable(warning))
    number = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    print(f"watching {number} at {server.url} (Ctrl-C ends it)", flush=True)
