"""Show runs in the browser, during training and after.

Examples:
  groupwise watch
  groupwise watch runs/a runs/b --open
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from groupwise.cli.arguments import Options, argument, json_option, takes
from groupwise.cli.printing import counted, print_json, say
from groupwise.config import ConfigError

if TYPE_CHECKING:
    from groupwise.web.dashboard.loopback_server import DashboardServer


@takes(
    argument("runs", "run directories, or folders with runs (default: runs)", type=Path, nargs="*", metavar="RUNS"),
    argument("--port", "local port; 0: any free one", default=8470, metavar="N", within="[0, 65535]"),
    argument("--follow-links", "also read what links in RUNS lead to outside of them", default=False),
    argument("--open", "open the browser", default=False, action=argparse.BooleanOptionalAction),
    json_option("print the address and the runs found as one line of JSON"),
)
def run(options: Options) -> None:
    """Serve until Ctrl-C, which is a normal end."""
    from groupwise.web.dashboard.library import Library
    from groupwise.web.dashboard.loopback_server import DashboardServer

    for path in options.runs:
        if not path.is_dir():
            raise ConfigError(f"no folder at {path}; name a run directory, or a folder with runs")
    library = Library(options.runs or [Path("runs")], options.follow_links)
    with DashboardServer(library, options.port) as server:
        _announce(server, options.json)
        if options.open:
            import webbrowser

            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            library.close()


def _announce(server: DashboardServer, as_json: bool) -> None:
    runs, warnings = server.library.look()
    if as_json:
        found = [{"id": run.id, "name": run.name, "path": str(run.path)} for run in runs]
        print_json({"url": server.url, "port": server.port, "runs": found, "warnings": list(warnings)})
        return
    for warning in warnings:
        say(warning)
    say(f"watching {counted(len(runs), 'run')} at {server.url} (Ctrl-C ends it)")
