"""The page of `groupwise watch`: one HTML text, script and style inline, no network but the server it came from.

Contract: `PAGE` is the whole document, a constant: the server names its one script and its one style by hash in the
content policy. Nothing of a run is in it: the script asks the interface in `groupwise.web.dashboard.routes` and shows
texts through textContent alone.
"""

from __future__ import annotations

from groupwise.web.bundle import bundle_script, bundle_style, fill_page

SCRIPT = bundle_script("dashboard.js")
STYLE = bundle_style("base.css", "charts.css", "dashboard.css", "groups.css")
PAGE = fill_page("dashboard.html", style=STYLE, script=SCRIPT)
