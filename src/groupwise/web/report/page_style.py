"""The style of a report: a constant without placeholders, since the page's content policy names its hash."""

from __future__ import annotations

# The series s are Okabe and Ito's colour-blind-safe palette, darkened on light and lightened on dark to keep contrast.
# The series q is for ordered values: from yellow to violet, and in steps of lightness for who sees no colours.
PALETTE = """
:root {
  color-scheme: light dark;
  --page: light-dark(#fcfcfb, #131518);
  --card: light-dark(#ffffff, #1a1d21);
  --field: light-dark(#f5f5f3, #101214);
  --ink: light-dark(#1b1e23, #e8eaed);
  --dim: light-dark(#5c626b, #a2a9b3);
  --line: light-dark(#e4e4e0, #2e333a);
  --accent: light-dark(#00609c, #6db7ee);
  --correct: light-dark(#00609c, #6db7ee);
  --correct-soft: light-dark(#e0eef8, #16324a);
  --wrong: light-dark(#a64100, #ffab73);
  --wrong-soft: light-dark(#fbe9dd, #46260f);
  --wrong-fill: light-dark(#e0935c, #b5622a);
  --none: light-dark(#565c65, #b4bac3);
  --none-soft: light-dark(#ececea, #2b2f35);
  --s0: light-dark(#0068a8, #5fb2ee);
  --s1: light-dark(#c25400, #ff9a57);
  --s2: light-dark(#007f5c, #35cf9f);
  --s3: light-dark(#ad4f85, #f0a0cb);
  --s4: light-dark(#8a6800, #e8c64a);
  --s5: light-dark(#6b4bb0, #b7a0f5);
  --s6: light-dark(#5f656e, #aab1bb);
  --s7: light-dark(#227f9a, #7fd6ea);
  --q0: light-dark(#a87900, #f3e25a);
  --q1: light-dark(#bd6900, #fcc54a);
  --q2: light-dark(#cc5220, #fda34c);
  --q3: light-dark(#cb3a50, #f98560);
  --q4: light-dark(#b62f74, #ee6f82);
  --q5: light-dark(#982a8c, #dd6aa5);
  --q6: light-dark(#74279a, #c66cc6);
  --q7: light-dark(#501f95, #a974e0);
  --q8: light-dark(#2c1a7a, #8a7df0);
}
"""

STYLE = (
    PALETTE
    + """\
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 72rem; padding: 3rem 1.5rem 4rem; background: var(--page); color: var(--ink);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: clamp(1.6rem, 4vw, 2.3rem); line-height: 1.2; letter-spacing: -.015em; margin: .1rem 0 .3rem;
  overflow-wrap: anywhere; font-weight: 650; }
h2 { font-size: 1.3rem; letter-spacing: -.01em; margin: 0 0 1rem; font-weight: 620; }
h3 { font-size: 1.02rem; margin: 1.5rem 0 .4rem; font-weight: 620; }
h4 { font-size: .85rem; margin: 0 0 .35rem; color: var(--dim); font-weight: 550; }
p { margin: 0 0 .75rem; max-width: 46rem; }
.dim, .caption, .facts { color: var(--dim); }
.dim, .facts { font-size: .9rem; }
.eyebrow { font-size: .82rem; font-weight: 600; color: var(--accent); margin: 0 0 .2rem; overflow-wrap: anywhere; }
section { margin-top: 3.5rem; scroll-margin-top: 1rem; }
#summary > h2 { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
#summary { margin-top: 2rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; align-items: center; margin-top: 1.2rem;
  padding: .7rem 0; border-block: 1px solid var(--line); font-size: .9rem; }
nav button { margin-left: auto; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 3px; }
button { font: inherit; font-size: .875rem; color: var(--ink); background: var(--card); border: 1px solid var(--line);
  border-radius: 999px; padding: .25rem .8rem; cursor: pointer; min-height: 2rem; }
button:hover { border-color: var(--accent); }
button[aria-pressed="true"] { background: var(--ink); border-color: var(--ink); color: var(--page); }

.verdict-card { border-left: 4px solid var(--none); padding: .1rem 0 .1rem 1.25rem; margin-bottom: 1.5rem; }
.verdict-card.better { border-color: var(--correct); }
.verdict-card.worse { border-color: var(--wrong); }
.headline { font-size: clamp(1.25rem, 3vw, 1.6rem); font-weight: 620; margin: 0 0 .25rem; letter-spacing: -.01em; }
.lead { font-size: 1.05rem; }
.notes { margin: .5rem 0 0; padding-left: 1.1rem; color: var(--dim); font-size: .9rem; max-width: 46rem; }
.notes + p, .notes + .verdict-card { margin-top: 1.25rem; }
#health .headline { font-size: 1.1rem; }

.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: 2rem 2.5rem;
  margin: 1.25rem 0; }
.chart { margin: 0; min-width: 0; break-inside: avoid; display: grid; grid-row: span 2; grid-template-rows: subgrid;
  grid-template-columns: minmax(0, 1fr); row-gap: .4rem; }
.chart figcaption { font-size: .95rem; line-height: 1.4; }
.chart .caption { display: block; font-size: .82rem; }
.plot { position: relative; }
.plot svg { display: block; width: 100%; height: auto; touch-action: pan-y; overflow: visible; }
.plot text { font-size: 11px; fill: var(--dim); font-variant-numeric: tabular-nums; }
.grid { stroke: var(--line); stroke-width: 1; }
.stage-line { stroke: var(--dim); stroke-width: 1; stroke-dasharray: 2 3; opacity: .7; }
.cursor { stroke: var(--dim); stroke-width: 1; }
.raw { fill: none; stroke-width: 1; opacity: .32; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.band { opacity: .14; stroke: none; }
.area { stroke: none; opacity: .8; }
.dash-1 { stroke-dasharray: 6 4; } .dash-2 { stroke-dasharray: 2 3; } .dash-3 { stroke-dasharray: 9 3 2 3; }
.readout { display: flex; flex-wrap: wrap; align-content: start; gap: .1rem .9rem; min-height: 1.5em;
  margin: .25rem 0 0; font-size: .82rem; color: var(--dim); font-variant-numeric: tabular-nums; }
.readout b { color: var(--ink); font-weight: 600; }
.key { display: inline-flex; align-items: center; gap: .35rem; overflow-wrap: anywhere; }
.key svg { width: 1.1rem; height: .6rem; flex: none; }
.stroke-0 { stroke: var(--s0); } .stroke-1 { stroke: var(--s1); } .stroke-2 { stroke: var(--s2); }
.stroke-3 { stroke: var(--s3); } .stroke-4 { stroke: var(--s4); } .stroke-5 { stroke: var(--s5); }
.stroke-6 { stroke: var(--s6); } .stroke-7 { stroke: var(--s7); }
.stroke-q0 { stroke: var(--q0); } .stroke-q1 { stroke: var(--q1); } .stroke-q2 { stroke: var(--q2); }
.stroke-q3 { stroke: var(--q3); } .stroke-q4 { stroke: var(--q4); } .stroke-q5 { stroke: var(--q5); }
.stroke-q6 { stroke: var(--q6); } .stroke-q7 { stroke: var(--q7); } .stroke-q8 { stroke: var(--q8); }
.fill-0, .series-0 { fill: var(--s0); } .fill-1, .series-1 { fill: var(--s1); } .fill-2, .series-2 { fill: var(--s2); }
.fill-3, .series-3 { fill: var(--s3); } .fill-4, .series-4 { fill: var(--s4); } .fill-5, .series-5 { fill: var(--s5); }
.fill-6, .series-6 { fill: var(--s6); } .fill-7, .series-7 { fill: var(--s7); }
.fill-q0 { fill: var(--q0); } .fill-q1 { fill: var(--q1); } .fill-q2 { fill: var(--q2); }
.fill-q3 { fill: var(--q3); } .fill-q4 { fill: var(--q4); } .fill-q5 { fill: var(--q5); }
.fill-q6 { fill: var(--q6); } .fill-q7 { fill: var(--q7); } .fill-q8 { fill: var(--q8); }
rect.correct { fill: var(--correct); } rect.wrong { fill: var(--wrong-fill); }
rect.none { fill: var(--none); opacity: .45; } rect.error { fill: var(--none); }

.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; min-width: min(100%, 40rem); }
th, td { text-align: left; vertical-align: top; padding: .5rem 1.75rem .5rem 0; border-bottom: 1px solid var(--line);
  font-weight: 400; }
thead th { color: var(--dim); font-size: .82rem; vertical-align: bottom; }
tbody th { font-weight: 550; }
td small, th small { display: block; white-space: nowrap; color: var(--dim); font-weight: 400; font-size: .8rem; }
td:nth-child(2):not(:last-child) { max-width: 22rem; }
.told td:last-child { min-width: 16rem; overflow-wrap: anywhere; }

.bar { margin: 0 0 1.1rem; }
.bar-label { margin: 0 0 .25rem; font-size: .9rem; font-weight: 550; overflow-wrap: anywhere; }
.bar-strip { display: block; width: 100%; height: .75rem; border-radius: 4px; overflow: hidden; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; margin: .3rem 0 0; font-size: .82rem; color: var(--dim);
  max-width: none; }
.legend span { display: inline-flex; align-items: center; gap: .35rem; }
.swatch { width: .7rem; height: .7rem; flex: none; }

.findings { margin: 0 0 1.25rem; padding-left: 1.1rem; max-width: 50rem; }
.findings li { margin: .35rem 0; overflow-wrap: anywhere; }
.dots { margin: 1.5rem 0; max-width: 56rem; }
.dots h4 { margin: 1rem 0 .1rem; overflow-wrap: anywhere; }
.dot-row { display: grid; grid-template-columns: 8rem 1fr 10.5rem; gap: 1rem; align-items: center; font-size: .85rem;
  line-height: 1.35; }
.dot-label { text-align: right; overflow-wrap: anywhere; }
.dot-value { color: var(--dim); font-variant-numeric: tabular-nums; }
.dot-value b { color: var(--ink); font-weight: 600; }
.dot-strip { display: block; width: 100%; height: 1.3rem; overflow: visible; }
.dot-strip text { font-size: 11px; fill: var(--dim); }
.whisker { stroke-width: 2; } .dot-seed { opacity: .45; }

.pill-tools { display: flex; flex-wrap: wrap; gap: .4rem; margin: 1.25rem 0 .75rem; }
.pills { overflow-x: auto; font-size: .9rem; }
.row { display: grid; grid-template-columns: minmax(14rem, 1fr) repeat(var(--models, 2), minmax(8.5rem, 11rem));
  gap: .25rem 1rem; align-items: center; padding: .45rem 0; border-bottom: 1px solid var(--line); }
.row.head { color: var(--dim); font-size: .82rem; align-items: end; }
.head div { overflow-wrap: anywhere; }
.question-text { overflow: hidden; display: -webkit-box; -webkit-line-clamp: 2; -webkit-box-orient: vertical;
  overflow-wrap: anywhere; line-height: 1.4; }
.gold { color: var(--dim); font-size: .8rem; overflow-wrap: anywhere; }
.cell { display: flex; flex-wrap: wrap; gap: .3rem; min-width: 0; }
.model { display: none; }
.pill { display: inline-flex; align-items: center; gap: .35rem; max-width: 100%; min-height: 1.75rem;
  padding: .1rem .7rem; border-radius: 999px; border: 1px solid transparent;
  font-size: .84rem; font-weight: 500; line-height: 1.3; }
.pill span:last-child { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.pill.correct { background: var(--correct-soft); color: var(--correct); }
.pill.wrong { background: var(--wrong-soft); color: var(--wrong); }
.pill.none, .pill.error { background: var(--none-soft); color: var(--none); }
.pill:hover { border-color: currentColor; }
.more { margin-top: 1rem; }

.example { border-top: 1px solid var(--line); padding: 1.25rem 0 .5rem; }
.example h3 { margin-top: 0; }
.completions { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 1rem; }
.question { margin-bottom: .75rem; max-width: 46rem; }
.completion h4 { display: flex; gap: .6rem; align-items: center; }
.completion { min-width: 0; }
.completion .pill { min-height: 0; padding: 0 .6rem; }
.facts { margin: .35rem 0 0; overflow-wrap: anywhere; }
pre { margin: 0; padding: .75rem .9rem; background: var(--field); border: 1px solid var(--line); border-radius: 6px;
  font: .84rem/1.55 ui-monospace, "SF Mono", Menlo, Consolas, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  max-height: 24rem; overflow: auto; }
pre:empty::before { content: "(nothing that can be seen)"; color: var(--dim); font-style: italic; }
details { margin: .5rem 0 1.5rem; }
summary { cursor: pointer; font-size: .9rem; color: var(--accent); margin-bottom: .5rem; }
dl { margin: 0 0 1rem; display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr));
  gap: .75rem 1.5rem; font-size: .9rem; }
dt { color: var(--dim); font-size: .8rem; }
dd { margin: 0; overflow-wrap: anywhere; }
.verdict-card dl { grid-template-columns: repeat(auto-fill, minmax(min(100%, 18rem), 1fr)); }
.verdict-card dl div:last-child { grid-column: 1 / -1; }  /* a key that is split cannot be copied */
footer { margin-top: 4rem; padding-top: 1rem; border-top: 1px solid var(--line); }

dialog { width: min(60rem, calc(100vw - 1.5rem)); max-height: calc(100vh - 2rem); padding: 0; color: var(--ink);
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
dialog::backdrop { background: rgb(0 0 0 / .45); }
.dialog-head { position: sticky; top: 0; display: flex; gap: .4rem; align-items: center; padding: .8rem 1.25rem;
  background: var(--card); border-bottom: 1px solid var(--line); }
.dialog-head h2 { font-size: 1rem; margin: 0 auto 0 0; overflow-wrap: anywhere; }
#problem-body { padding: 1rem 1.25rem 1.5rem; display: grid; gap: 1.1rem; }
#problem-body > * { min-width: 0; }
[hidden] { display: none !important; }

@media (max-width: 44rem) {
  body { padding: 1.75rem 1rem 3rem; }
  section { margin-top: 2.75rem; }
  nav { gap: .3rem .9rem; }
  .dot-row { grid-template-columns: 4.5rem 1fr 3.4rem; gap: .6rem; }
  .dot-value span { display: none; }
  .row { display: block; padding: .75rem 0; }
  .row.head { display: none; }
  .cell { align-items: center; margin-top: .35rem; }
  .model { display: block; flex: 0 0 7.5rem; font-size: .78rem; color: var(--dim); overflow-wrap: anywhere; }
  .pill { max-width: 12rem; }
  th, td { padding-right: 1.1rem; }
}
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
@media print {
  :root { color-scheme: light !important; }
  body { max-width: none; padding: 0; font-size: 10pt; background: #fff; }
  nav, .pill-tools, .more, dialog, button#theme { display: none; }
  section { margin-top: 1.5rem; }
  pre { max-height: none; }
  .charts { grid-template-columns: 1fr 1fr; gap: 1rem; }
  .example, .row { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
)
