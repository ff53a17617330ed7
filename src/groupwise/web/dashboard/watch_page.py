"""The page of `groupwise watch`: one HTML text, script and style inline, no network but the server it came from.

Contract: `PAGE` is the whole document, a constant: the server names its one script and its one style by hash in the
content policy. Nothing of a run is in it: the script asks the interface in `groupwise.web.dashboard.routes` and shows
texts through textContent alone. The parts of the script share one scope, in the order in which they stand here.
"""

from __future__ import annotations

from groupwise.web.dashboard.page_group import GROUP
from groupwise.web.dashboard.page_groups import GROUPS
from groupwise.web.dashboard.page_overview import OVERVIEW
from groupwise.web.dashboard.page_recipe import RECIPE
from groupwise.web.dashboard.page_runs import RUNS
from groupwise.web.dashboard.page_state import STATE
from groupwise.web.dashboard.page_tokens import TOKENS
from groupwise.web.dashboard.watch_page_charts import CHARTS
from groupwise.web.dashboard.watch_page_style import STYLE
from groupwise.web.report.page_charts import AXES
from groupwise.web.report.page_script import ELEMENTS

_PARTS = STATE + CHARTS + RUNS + OVERVIEW + GROUPS + GROUP + TOKENS + RECIPE
# A scope of their own for our parts: what the report adds to its names cannot clash with them.
_OPENING = '\n"use strict";\n(() => {\n  const NAMESPACE = "http://www.w3.org/2000/svg";\n'
SCRIPT = f"{_OPENING}{ELEMENTS}{AXES}  {{\n{_PARTS}  }}\n}})();\n"

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 20 20' fill='%230068a8'%3E"
    "%3Ccircle cx='5' cy='5' r='4'/%3E%3Ccircle cx='15' cy='5' r='4' opacity='.55'/%3E"
    "%3Ccircle cx='5' cy='15' r='4' opacity='.55'/%3E%3Ccircle cx='15' cy='15' r='4'/%3E%3C/svg%3E"
)
_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
    f'<link rel="icon" href="{_ICON}">\n<title>groupwise watch</title>\n<style>{STYLE}</style>\n</head>\n'
)
_TOP = """<body>
<header class="top">
<div class="brand"><svg viewBox="0 0 20 20" aria-hidden="true"><circle cx="5" cy="5" r="4"/><circle cx="15" cy="5" r="4"
opacity=".55"/><circle cx="5" cy="15" r="4" opacity=".55"/><circle cx="15" cy="15" r="4"/></svg>groupwise watch</div>
<div class="tabs" role="tablist" aria-label="Views">
<button type="button" role="tab" id="tab-overview" data-view="overview" aria-controls="overview">Overview</button>
<button type="button" role="tab" id="tab-groups" data-view="groups" aria-controls="groups">Groups</button>
<button type="button" role="tab" id="tab-recipe" data-view="recipe" aria-controls="recipe">Recipe</button>
</div>
<span class="space"></span>
<span class="pulse" role="status"><i class="dot" id="pulse-dot"></i><span id="pulse-text">connecting</span></span>
<button type="button" id="theme" aria-label="Switch between light and dark">Dark</button>
</header>
<div id="banner" role="alert" hidden></div>
<div class="shell">
<details class="side" id="runs" open><summary><h2>Runs</h2><span class="dim" id="run-count"></span></summary>
<div id="run-list"></div></details>
<main>
<noscript>This page needs JavaScript.</noscript>
<div class="head" id="head" hidden><h1 id="run-title"></h1>
<span class="state"><i class="dot" id="run-dot"></i><span id="run-state"></span></span>
<p class="dim" id="run-facts"></p></div>
<p class="dim" id="warnings" role="status" hidden></p>
<div id="nothing" hidden></div>
"""
_OVERVIEW = """<section id="overview" role="tabpanel" aria-labelledby="tab-overview" hidden>
<div class="first">
<div class="card"><h2>Now</h2><div class="tiles" id="tiles"></div><div class="split" id="phases" role="img"></div>
<div class="legend" id="phase-legend"></div><p class="dim" id="now-sentence"></p></div>
<div class="card"><h2 id="signs-title">Is it training?</h2><div id="signs"></div></div>
</div>
<div class="card"><h2>Findings <span class="dim" id="findings-step"></span></h2>
<div class="findings" id="findings"></div></div>
<div class="tools"><h2>Curves</h2>
<label>smoothing <input type="range" id="smooth" min="0" max="0.98" step="0.02" value="0"><output id="smooth-value"
for="smooth">off</output></label>
<button type="button" id="log" aria-pressed="false">Log axis</button>
<label>add <input id="metric" list="metric-names" placeholder="metric" size="18" aria-label="Add a metric by name"
autocomplete="off"></label><datalist id="metric-names"></datalist></div>
<div class="charts" id="charts"></div>
</section>
"""
_GROUPS = """<section id="groups" role="tabpanel" aria-labelledby="tab-groups" hidden>
<form id="filters" role="search" aria-label="Filter groups">
<div class="kinds" role="group" aria-label="Kind of rollouts"><button type="button" data-kind="train">Training</button
><button type="button" data-kind="eval">Held-out</button></div>
<label class="search">search <input type="search" name="q" placeholder="text of a problem, an answer or a completion"
autocomplete="off" spellcheck="false"></label>
<label>verdict <select name="verdict"><option value="">any</option><option value="correct">correct</option>
<option value="wrong">wrong</option><option value="unparsed">no answer</option><option value="error">not scored</option>
<option value="timed_out">timed out</option></select></label>
<label>finish <select name="finish"><option value="">any</option><option value="stop">by itself</option>
<option value="length">cut off</option><option value="aborted">aborted</option></select></label>
<label>signal <select name="signal"><option value="">any</option><option value="yes">yes</option>
<option value="no">no</option></select></label>
<label>stage <select name="stage" id="filter-stage"><option value="">any</option></select></label>
<label>steps <span class="range"><input type="number" name="first_step" min="0" placeholder="from"
aria-label="First step"><input type="number" name="last_step" min="0" placeholder="to"
aria-label="Last step"></span></label>
<label>mean reward <span class="range"><input type="number" name="min_reward" step="any" placeholder="from"
aria-label="Least mean reward"><input type="number" name="max_reward" step="any" placeholder="to"
aria-label="Largest mean reward"></span></label>
<label>sort <select name="sort"><option value="newest">newest</option><option value="oldest">oldest</option>
<option value="spread">widest spread</option><option value="highest">highest reward</option>
<option value="lowest">lowest reward</option></select></label>
<button type="button" id="problem-filter" title="Show all problems" hidden></button>
<button type="button" id="clear-filters" hidden>Clear</button>
</form>
<p id="filter-problem" role="alert" hidden></p>
<div class="list-head"><span class="dim number" id="group-count" role="status"></span>
<span id="pages" hidden><button type="button" id="newer">← Previous</button>
<button type="button" id="older">Next →</button></span></div>
<div class="group-list" id="group-list"></div>
</section>
"""
_RECIPE = """<section id="recipe" role="tabpanel" aria-labelledby="tab-recipe" hidden>
<div class="tools"><h2>Recipe</h2><label>compare with <select id="against"></select></label></div>
<div id="recipe-body"></div>
</section>
</main>
</div>
"""
_DIALOG = """<dialog id="group" aria-labelledby="group-title">
<div class="dialog-head"><h2 id="group-title"></h2><span class="dim number" id="group-place"></span>
<button type="button" id="previous" aria-label="Previous group">←</button>
<button type="button" id="next" aria-label="Next group">→</button>
<button type="button" id="close" aria-label="Close">✕</button></div>
<div class="token-tools" id="token-tools"><div class="colour-tool" id="colour-tool"><label>colour tokens by
<select id="colour"><option value="ratio">probability ratio</option><option value="kl">KL</option>
<option value="entropy">entropy</option><option value="probability">probability</option></select></label>
<span class="scale" id="scale" role="img"></span></div>
<label>order <select id="order"><option value="sampled">as sampled</option><option value="best">best first</option>
<option value="worst">worst first</option><option value="longest">longest first</option></select></label>
<span class="hint"><kbd>←</kbd> <kbd>→</kbd> other groups, <kbd>Esc</kbd> closes</span></div>
<div id="group-body"></div>
<div id="tip" role="tooltip" hidden></div>
</dialog>
"""

PAGE = f"{_HEAD}{_TOP}{_OVERVIEW}{_GROUPS}{_RECIPE}{_DIALOG}<script>{SCRIPT}</script>\n</body>\n</html>\n"
