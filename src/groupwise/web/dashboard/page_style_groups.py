"""The part of the dashboard's style that is for groups, tokens and recipes; see `page_style`."""

from __future__ import annotations

# Up is blue and down is orange: the pair that most colour-blind readers tell apart.
GROUPS_STYLE = """
#filters { display: flex; flex-wrap: wrap; gap: .5rem .6rem; align-items: end; margin-bottom: .9rem; }
#filters label { display: grid; gap: .1rem; font-size: .75rem; color: var(--dim); }
#filters .search { flex: 1 1 15rem; }
#filters .search input { width: 100%; }
#filters input[type="number"] { width: 5.4rem; }
.range { display: flex; align-items: center; gap: .3rem; }
.kinds { display: flex; }
.kinds button:first-child { border-radius: 7px 0 0 7px; border-right: 0; }
.kinds button:last-child { border-radius: 0 7px 7px 0; }
.list-head { display: flex; flex-wrap: wrap; gap: .4rem 1rem; align-items: center; min-height: 2rem;
  margin-bottom: .35rem; }
#pages { margin-left: auto; display: flex; gap: .4rem; }
#filter-problem { color: var(--bad); font-size: .85rem; margin-bottom: .6rem; }
.group-list { border: 1px solid var(--line); border-radius: 11px; background: var(--card); overflow: hidden; }
.group-list:has(> .empty) { border: 0; }
.group-row { display: grid; grid-template-columns: 4rem minmax(0, 1fr) 9.7rem 17.5rem; gap: .3rem 1rem;
  align-items: center; padding: .5rem .95rem; border-bottom: 1px solid var(--line); color: inherit;
  text-decoration: none; font-size: .875rem; }
.group-row:last-child { border-bottom: 0; }
.group-row:hover { background: var(--soft); }
.group-row:focus-visible { outline-offset: -2px; }
.group-step { font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.25; }
.group-step .dim { display: block; font-weight: 400; font-size: .75rem; overflow-wrap: anywhere; }
.excerpt { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2; overflow: hidden;
  overflow-wrap: anywhere; line-height: 1.4; }
mark { background: color-mix(in srgb, var(--s4) 38%, transparent); color: inherit; border-radius: 2px; }
.strip { display: flex; flex-wrap: wrap; gap: 2px; max-width: 14.5rem; }
.chip { width: 1.05rem; height: 1.05rem; display: grid; place-items: center; border-radius: 3px; font-size: .68rem;
  font-style: normal; font-weight: 700; line-height: 1; }
.chip.correct, .pill.correct { background: var(--correct-soft); color: var(--correct); }
.chip.wrong, .pill.wrong { background: var(--wrong-soft); color: var(--wrong); }
.chip.none, .chip.error, .pill.none, .pill.error { background: var(--none-soft); color: var(--none); }
.group-numbers { display: flex; flex-wrap: wrap; gap: .1rem .6rem; align-items: baseline;
  font-variant-numeric: tabular-nums; }
.group-numbers b { min-width: 2.6rem; }
.badge.tokens { background: var(--correct-soft); color: var(--correct); }

dialog { width: min(96rem, calc(100vw - 2rem)); height: calc(100vh - 2rem); max-width: none; max-height: none;
  padding: 0; color: var(--ink); background: var(--page); border: 1px solid var(--line); border-radius: 12px;
  overflow: hidden; overscroll-behavior: contain; }
dialog[open] { display: flex; flex-direction: column; }
dialog::backdrop { background: rgb(0 0 0 / .5); }
.dialog-head { display: flex; flex-wrap: wrap; gap: .4rem .6rem; align-items: center; padding: .6rem 1.1rem;
  background: var(--card); border-bottom: 1px solid var(--line); }
.dialog-head h2 { margin-right: auto; overflow-wrap: anywhere; }
.token-tools { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; align-items: center; padding: .45rem 1.1rem;
  border-bottom: 1px solid var(--line); background: var(--card); font-size: .82rem; color: var(--dim); }
.token-tools label { display: inline-flex; gap: .4rem; align-items: center; }
.colour-tool { display: flex; flex-wrap: wrap; gap: .4rem .8rem; align-items: center; }
.scale { display: inline-flex; gap: .4rem; align-items: center; font-variant-numeric: tabular-nums; }
.scale-strip { display: inline-flex; border: 1px solid var(--line); border-radius: 3px; overflow: hidden; }
.scale-strip i { width: 1rem; height: .85rem; }
.hint { margin-left: auto; }
kbd { font: inherit; font-size: .78rem; border: 1px solid var(--line); border-radius: 4px; padding: 0 .3rem; }
#group-body { flex: 1; overflow-y: auto; padding: .9rem 1.1rem 2rem; display: grid; gap: .8rem; align-content: start;
  grid-template-columns: minmax(0, 1fr); }
.prompt { display: grid; gap: .5rem; }
.prompt pre { max-height: 14rem; }
.gold { overflow-wrap: anywhere; }
#group-body > p { max-width: none; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 25rem), 1fr)); gap: .9rem;
  align-items: start; }
.cards.alone { grid-template-columns: minmax(0, 60rem); }
.rollout { display: grid; gap: .5rem; grid-template-columns: minmax(0, 1fr); padding: .8rem .9rem; }
.rollout-head { display: flex; flex-wrap: wrap; gap: .2rem .65rem; align-items: center; }
.rollout-head h3 { color: var(--dim); min-width: 1.2rem; font-variant-numeric: tabular-nums; }
.pill { padding: .08rem .6rem; border-radius: 999px; font-size: .79rem; font-weight: 600; white-space: nowrap; }
.reward { font-weight: 600; font-size: .88rem; font-variant-numeric: tabular-nums; }
.advantage { display: flex; gap: .55rem; align-items: center; font-size: .82rem; font-variant-numeric: tabular-nums; }
.advantage-bar { position: relative; flex: 1; max-width: 13rem; height: .6rem; background: var(--soft);
  border-radius: 3px; overflow: hidden; }
.advantage-bar::after { content: ""; position: absolute; left: 50%; top: 0; bottom: 0; width: 1px;
  background: var(--dim); }
.advantage-bar i { position: absolute; top: 0; bottom: 0; }
.advantage.up i { background: var(--correct); } .advantage.up b { color: var(--correct); }
.advantage.down i { background: var(--wrong-fill); } .advantage.down b { color: var(--wrong); }
.advantage b { font-weight: 600; white-space: nowrap; }
.parts { display: flex; flex-wrap: wrap; gap: .3rem; margin: 0; padding: 0; list-style: none; font-size: .78rem;
  color: var(--dim); }
.parts li { border: 1px solid var(--line); border-radius: 6px; padding: 0 .45rem; overflow-wrap: anywhere; }
.parts b { color: var(--ink); font-weight: 600; font-variant-numeric: tabular-nums; }
.detail { overflow-wrap: anywhere; max-height: 6rem; overflow-y: auto; }
pre { margin: 0; padding: .65rem .8rem; background: var(--field); border: 1px solid var(--line); border-radius: 7px;
  font-size: .81rem; line-height: 1.6; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 27rem;
  overflow: auto; }
pre.nothing::before { content: "(empty)"; color: var(--dim); font-style: italic; }
pre [data-token] { border-radius: 2px; }
pre [data-token]:hover, pre .current { outline: 1px solid var(--ink); }
.rest { display: block; margin-top: .4rem; font-size: .78rem; color: var(--accent); }
button.link { border: 0; background: none; padding: 0; min-height: 0; color: var(--accent);
  text-decoration: underline; }
.up-1 { background: color-mix(in srgb, var(--s0) 12%, transparent); }
.up-2 { background: color-mix(in srgb, var(--s0) 22%, transparent); }
.up-3 { background: color-mix(in srgb, var(--s0) 32%, transparent); }
.up-4 { background: color-mix(in srgb, var(--s0) 42%, transparent); }
.up-5 { background: color-mix(in srgb, var(--s0) 52%, transparent); }
.up-6 { background: color-mix(in srgb, var(--s0) 62%, transparent); }
.down-1 { background: color-mix(in srgb, var(--s1) 12%, transparent); }
.down-2 { background: color-mix(in srgb, var(--s1) 22%, transparent); }
.down-3 { background: color-mix(in srgb, var(--s1) 32%, transparent); }
.down-4 { background: color-mix(in srgb, var(--s1) 42%, transparent); }
.down-5 { background: color-mix(in srgb, var(--s1) 52%, transparent); }
.down-6 { background: color-mix(in srgb, var(--s1) 62%, transparent); }
.heat-1 { background: color-mix(in srgb, var(--s5) 11%, transparent); }
.heat-2 { background: color-mix(in srgb, var(--s5) 20%, transparent); }
.heat-3 { background: color-mix(in srgb, var(--s5) 30%, transparent); }
.heat-4 { background: color-mix(in srgb, var(--s5) 40%, transparent); }
.heat-5 { background: color-mix(in srgb, var(--s5) 50%, transparent); }
.heat-6 { background: color-mix(in srgb, var(--s5) 60%, transparent); }
#tip { position: fixed; z-index: 10; max-width: 17rem; padding: .5rem .7rem; background: var(--ink); color: var(--page);
  border-radius: 8px; font-size: .79rem; pointer-events: none; box-shadow: 0 4px 16px var(--shade); }
#tip code { display: block; overflow-wrap: anywhere; margin-bottom: .25rem; font-weight: 600; }
#tip dl { display: grid; grid-template-columns: auto auto; gap: 0 .9rem; margin: 0;
  font-variant-numeric: tabular-nums; }
#tip dt { opacity: .75; } #tip dd { margin: 0; text-align: right; }

.recipe-text { max-height: none; }
.difference { border-collapse: collapse; width: 100%; margin-top: .6rem; font-size: .86rem; }
.difference th, .difference td { text-align: left; vertical-align: top; padding: .4rem .9rem .4rem 0; font-weight: 400;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
.difference thead th { color: var(--dim); font-size: .79rem; }
.difference .unset { color: var(--dim); }
.facts { margin: 1rem 0 0; display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 13rem), 1fr));
  gap: .6rem 1.2rem; font-size: .86rem; }
.facts dt { color: var(--dim); font-size: .77rem; }
.facts dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 62rem) {
  .group-row { grid-template-columns: 3.6rem minmax(0, 1fr); }
  .group-row .strip, .group-row .group-numbers { grid-column: 2; }
  .hint { display: none; }
}
@media (max-width: 40rem) {
  dialog { width: 100vw; height: 100dvh; border: 0; border-radius: 0; margin: 0; }
  .dialog-head, .token-tools, #group-body { padding-inline: .8rem; }
  .dialog-head h2 { flex-basis: 100%; }
  #close { margin-left: auto; }
  #filters .search { flex-basis: 100%; }
  .difference, .difference tbody, .difference tr, .difference th, .difference td { display: block; }
  .difference thead { display: none; }
  .difference td, .difference tbody th { border: 0; padding: .1rem 0; }
  .difference tr { border-bottom: 1px solid var(--line); padding: .4rem 0; }
  .difference td::before { content: attr(data-run) ": "; color: var(--dim); }
}
"""
