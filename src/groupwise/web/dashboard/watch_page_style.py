"""The style of the dashboard: a constant without placeholders, since the page's content policy names its hash.

Colours come from the report, so that a run looks the same in both.
"""

from __future__ import annotations

from groupwise.web.dashboard.page_style_groups import GROUPS_STYLE
from groupwise.web.report.page_style import PALETTE

_FRAME = """
:root {
  --good: light-dark(#007f5c, #35cf9f);
  --bad: light-dark(#b3261e, #ff8a80);
  --bad-soft: light-dark(#fbe6e4, #47201d);
  --soft: light-dark(#f3f3f0, #22262b);
  --shade: light-dark(rgb(20 24 30 / .07), rgb(0 0 0 / .4));
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; overflow-y: scroll; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: .9375rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 1.35rem; line-height: 1.25; letter-spacing: -.015em; margin: 0; font-weight: 650;
  overflow-wrap: anywhere; }
h2 { font-size: 1rem; letter-spacing: -.005em; margin: 0; font-weight: 640; }
h3 { font-size: .9rem; margin: 0; font-weight: 620; }
p { margin: 0; max-width: 48rem; }
a { color: var(--accent); }
.dim { color: var(--dim); font-size: .85rem; }
.number { font-variant-numeric: tabular-nums; }
[hidden] { display: none !important; }
.only-heard { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 4px; }
button, select, input { font: inherit; font-size: .85rem; color: var(--ink); background: var(--card);
  border: 1px solid var(--line); border-radius: 7px; min-height: 2rem; padding: .2rem .65rem; }
button { cursor: pointer; }
button:hover:not(:disabled), select:hover, input:hover { border-color: var(--accent); }
button:disabled { color: var(--dim); cursor: default; opacity: .6; }
button[aria-pressed="true"] { background: var(--ink); border-color: var(--ink); color: var(--page); }
input[type="checkbox"], input[type="range"] { min-height: 0; padding: 0; accent-color: var(--accent); }
input::placeholder { color: var(--dim); opacity: 1; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { font-size: .85em; overflow-wrap: anywhere; }

.top { position: sticky; top: 0; z-index: 5; display: flex; align-items: center; gap: .35rem 1.5rem; min-height: 3.1rem;
  padding: 0 1.25rem; background: var(--card); border-bottom: 1px solid var(--line); }
.brand { display: flex; align-items: center; gap: .55rem; font-weight: 650; letter-spacing: -.01em;
  white-space: nowrap; }
.brand svg { width: 1.15rem; height: 1.15rem; flex: none; }
.brand circle { fill: var(--accent); }
.tabs { display: flex; gap: .15rem; align-self: stretch; }
.tabs button { border: 0; border-radius: 0; background: none; padding: 0 .8rem; color: var(--dim); font-weight: 550;
  box-shadow: inset 0 -2px transparent; }
.tabs button[aria-selected="true"] { color: var(--ink); box-shadow: inset 0 -2px var(--accent); }
.top .space { flex: 1; }
.pulse { display: inline-flex; align-items: center; gap: .4rem; font-size: .8rem; color: var(--dim);
  white-space: nowrap; }
.dot { display: inline-block; width: 9px; height: 9px; border-radius: 50%; flex: none; background: var(--none); }
.dot.running, .dot.live { background: var(--good); }
.dot.finished { background: var(--accent); }
.dot.failed, .dot.gone { background: var(--bad); }
.dot.stopped, .dot.silent { background: var(--s4); }
.dot.running { animation: breathe 2s ease-in-out infinite; }
@keyframes breathe { 50% { box-shadow: 0 0 0 4px color-mix(in srgb, var(--good) 25%, transparent); } }
#banner { padding: .6rem 1.25rem; background: var(--bad-soft); color: var(--bad); font-weight: 550; font-size: .88rem;
  position: sticky; top: 3.1rem; z-index: 4; }

.shell { display: grid; grid-template-columns: 18.5rem minmax(0, 1fr); align-items: start; }
.side { position: sticky; top: 3.1rem; max-height: calc(100vh - 3.1rem); overflow-y: auto;
  padding: 1rem .75rem 2rem 1rem; border-right: 1px solid var(--line); min-height: calc(100vh - 3.1rem); }
.side > summary { list-style: none; display: flex; justify-content: space-between; align-items: baseline; gap: .5rem;
  padding: 0 .35rem .6rem; }
.side > summary::-webkit-details-marker { display: none; }
.run-row { position: relative; display: grid; grid-template-columns: auto minmax(0, 1fr); gap: .1rem .55rem;
  padding: .5rem .55rem; border-radius: 9px; border: 1px solid transparent; margin-bottom: .15rem; }
.run-row:hover { background: var(--soft); }
.run-row.chosen { background: var(--card); border-color: var(--line); box-shadow: 0 1px 3px var(--shade); }
.run-row > input { margin: .28rem 0 0; width: 1rem; height: 1rem; accent-color: var(--c, var(--accent));
  cursor: pointer; z-index: 1; }
.run-name { all: unset; cursor: pointer; font-weight: 600; font-size: .9rem; line-height: 1.35;
  overflow-wrap: anywhere; }
.run-name::after { content: ""; position: absolute; inset: 0; border-radius: 9px; }
.run-name:focus-visible::after { outline: 2px solid var(--accent); }
.run-facts { grid-column: 2; display: flex; flex-wrap: wrap; gap: .05rem .6rem; font-size: .79rem; color: var(--dim);
  font-variant-numeric: tabular-nums; align-items: center; }
.run-facts .mark { display: inline-flex; align-items: center; gap: .3rem; }
.run-facts b { color: var(--ink); font-weight: 600; }
.run-facts .sick { color: var(--bad); }
.progress { grid-column: 2; height: 3px; border-radius: 2px; background: var(--line); overflow: hidden;
  margin-top: .25rem; }
.progress div { height: 100%; background: var(--c, var(--accent)); width: 0; }

main { padding: 1.25rem 1.5rem 4rem; min-width: 0; max-width: 110rem; }
.head { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: baseline; margin-bottom: 1rem; }
.head .state { display: inline-flex; align-items: center; gap: .4rem; font-size: .85rem; font-weight: 550; }
.head .dim { flex-basis: 100%; max-width: none; overflow-wrap: anywhere; }
#warnings { white-space: pre-line; margin-bottom: 1rem; overflow-wrap: anywhere; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 11px; padding: .95rem 1.1rem;
  min-width: 0; }
.empty { padding: 2.5rem 1.25rem; text-align: center; color: var(--dim); border: 1px dashed var(--line);
  border-radius: 11px; }
.empty b { display: block; color: var(--ink); font-size: 1.02rem; margin-bottom: .3rem; }
.empty p { margin: 0 auto; }

.first { display: grid; grid-template-columns: minmax(0, 5fr) minmax(0, 4fr); gap: 1rem; margin-bottom: 1rem; }
.card > h2 { margin-bottom: .6rem; }
.tiles { display: flex; flex-wrap: wrap; gap: .7rem 1.8rem; margin-bottom: .9rem; }
.tile { min-width: 4.6rem; }
.tile b { display: block; font-size: 1.25rem; font-weight: 640; letter-spacing: -.02em; line-height: 1.25;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.tile span { font-size: .78rem; color: var(--dim); }
.split { display: flex; height: 1.15rem; border-radius: 5px; overflow: hidden; background: var(--line); gap: 1px; }
.split div { min-width: 0; background: var(--c); }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; margin-top: .5rem; font-size: .79rem; color: var(--dim);
  font-variant-numeric: tabular-nums; }
.legend span { display: inline-flex; align-items: center; gap: .35rem; }
.swatch { width: .65rem; height: .65rem; border-radius: 2px; background: var(--c); flex: none; }
.signs { margin: 0; padding: 0; list-style: none; display: grid; gap: .4rem; font-size: .88rem; }
.signs li { padding-left: .85rem; border-left: 2px solid var(--line); overflow-wrap: anywhere; }
.signs li:first-child { border-color: var(--accent); font-weight: 550; }
.signs + h3, .stage-name { margin: .7rem 0 .35rem; color: var(--dim); font-size: .79rem; font-weight: 550; }

.findings { display: grid; gap: .7rem; }
.finding { border-left: 3px solid var(--s4); padding: .1rem 0 .1rem .9rem; }
.finding.sick { border-color: var(--bad); }
.finding h3 { display: flex; flex-wrap: wrap; gap: .2rem .6rem; align-items: baseline; }
.badge { font-size: .72rem; font-weight: 640; padding: .05rem .5rem; border-radius: 999px; background: var(--none-soft);
  color: var(--none); white-space: nowrap; }
.badge.sick { background: var(--bad-soft); color: var(--bad); }
.finding p { font-size: .88rem; margin-top: .2rem; overflow-wrap: anywhere; }
.change { display: inline-flex; flex-wrap: wrap; gap: .4rem; align-items: center; margin-top: .35rem; }
.change code { background: var(--field); border: 1px solid var(--line); border-radius: 6px; padding: .15rem .5rem; }
.change button { min-height: 1.6rem; padding: 0 .55rem; font-size: .78rem; }

.tools { display: flex; flex-wrap: wrap; gap: .5rem .9rem; align-items: center; margin: 1.4rem 0 .9rem; }
.tools h2 { margin-right: auto; }
.tools label { display: inline-flex; align-items: center; gap: .45rem; font-size: .83rem; color: var(--dim);
  white-space: nowrap; }
.tools input[type="range"] { width: 7rem; }
.tools output { min-width: 2.2rem; color: var(--ink); font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 23rem), 1fr)); gap: 1rem; }
.chart { margin: 0; padding: .75rem .9rem .6rem; display: flex; flex-direction: column; }
.chart.wide { grid-column: span 2; }
.chart figcaption { display: flex; gap: .5rem; align-items: baseline; font-size: .88rem; font-weight: 600; }
.chart figcaption .unit { color: var(--dim); font-weight: 400; font-size: .79rem; }
.chart .why { font-size: .77rem; line-height: 1.4; color: var(--dim); margin: .05rem 0 .2rem; }
.chart figcaption button { min-height: 1.4rem; padding: 0 .45rem; border-color: transparent;
  color: var(--dim); background: none; }
.plot svg { display: block; width: 100%; height: auto; touch-action: pan-y; overflow: visible; }
.plot text { font-size: 11px; fill: var(--dim); font-variant-numeric: tabular-nums; }
.grid { stroke: var(--line); stroke-width: 1; }
.stage-line { stroke: var(--dim); stroke-width: 1; stroke-dasharray: 2 3; opacity: .7; }
.plot { position: relative; }
.cursor { position: absolute; top: 10px; bottom: 22px; left: 0; width: 1px; background: var(--dim);
  will-change: transform; pointer-events: none; }
.raw { fill: none; stroke: var(--c); stroke-width: 1; opacity: .3; }
.curve { fill: none; stroke: var(--c); stroke-width: 1.9; stroke-linejoin: round; stroke-linecap: round; }
.band { fill: var(--c); opacity: .15; stroke: none; }
.area { fill: var(--c); opacity: .85; stroke: none; }
.mark { fill: var(--c); }
.dash-1 { stroke-dasharray: 6 4; } .dash-2 { stroke-dasharray: 2 3; } .dash-3 { stroke-dasharray: 9 3 2 3; }
.readout { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 11.5rem), 1fr)); gap: .05rem .8rem;
  min-height: 1.45em; margin-top: .2rem; font-size: .78rem; color: var(--dim); font-variant-numeric: tabular-nums;
  max-width: none; }
.readout.long { grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
.readout b { color: var(--ink); font-weight: 600; }
.key { display: flex; align-items: center; gap: .3rem; min-width: 0; white-space: nowrap; }
.key span { overflow: hidden; text-overflow: ellipsis; }
.key span:empty { display: none; }
.step { margin-left: auto; color: var(--dim); font-weight: 400; font-size: .79rem; font-variant-numeric: tabular-nums; }
.key svg { width: 1rem; height: .6rem; flex: none; }
.key line { stroke: var(--c); stroke-width: 3; }

@media (max-width: 75rem) { .first { grid-template-columns: 1fr; } }
@media (max-width: 62rem) {
  .shell { display: block; }
  .side { position: static; max-height: none; min-height: 0; border-right: 0; border-bottom: 1px solid var(--line);
    padding: .8rem 1rem; }
  .side > summary { padding: 0 .2rem; cursor: pointer; }
  .side > summary::after { content: "show"; color: var(--accent); font-size: .85rem; }
  .side[open] > summary::after { content: "hide"; }
  .side[open] > summary { padding-bottom: .6rem; }
  main { padding: 1rem 1rem 3rem; }
  .chart.wide { grid-column: auto; }
}
@media (max-width: 40rem) {
  .top { flex-wrap: wrap; padding: .4rem .9rem 0; gap: 0 .75rem; position: static; }
  .tabs { order: 3; flex-basis: 100%; min-height: 2.4rem; }
  .tabs button { padding: 0 .7rem; }
  #banner { top: 0; }
  .tools h2 { flex-basis: 100%; }
  .tile b { font-size: 1.1rem; }
}
@media (prefers-reduced-motion: reduce) { * { animation: none !important; transition: none !important; } }
"""

STYLE = PALETTE + _FRAME + GROUPS_STYLE
