"""The page of `groupwise watch`: one HTML text with inline script and style; it contacts only its own server.

Contract: `PAGE` is the whole document and a constant: the content security policy names its script and style by hash.
It holds no data of runs: the script uses the interface in `groupwise.web.dashboard.routes` and shows texts only through
textContent.
"""

from __future__ import annotations

from groupwise.web.bundle import bundle_script, bundle_style, fill_page

SCRIPT = bundle_script("dashboard.js")
STYLE = bundle_style("base.css", "charts.css", "dashboard.css", "groups.css")
PAGE = fill_page("dashboard.html", style=STYLE, script=SCRIPT)
