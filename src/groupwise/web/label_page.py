"""The page for labelling chains by hand: one HTML file that needs no network and works from `file://`.

Everything that a model or a data set wrote is escaped, and invisible characters (control codes, escapes, marks that
reorder text) are made visible. A content security policy allows only the page's own script and style, by their hashes:
if escaping ever failed, foreign script would still not run. Labels are stored in the browser and exported as a file;
`merge_labels` merges that into the run directory, and the next page shows them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from groupwise.audit.held_out_gain import SUSPICIOUS, HeldOutGain
from groupwise.audit.labels import FOLDER, FORMAT, MAX_NOTE_CHARS, Label, read_labels
from groupwise.audit.survey import Audit, AuditFinding, Chain
from groupwise.base.harmless import escape
from groupwise.web.bundle import bundle_script, bundle_style, content_policy, fill_page, save_text

SCRIPT = bundle_script("audit.js")
STYLE = bundle_style("base.css", "audit.css")

PAGE = f"{FOLDER}/page.html"
MAX_SHOWN_CHARS = 400_000
"""Maximum length of a completion; a browser still shows this quickly."""

_QUESTIONS = (
    ("verdict", "Is the verdict right?", (("right", "Right"), ("wrong", "Wrong"), ("unsure", "Unsure"))),
    ("reasoning", "Is the reasoning sound?", (("right", "Sound"), ("wrong", "Unsound"), ("unsure", "Unsure"))),
)


def write_page(audit: Audit, run_dir: Path, path: Path | None = None) -> Path:
    """Write the page with the labels saved in the run directory; by default to its `audit/page.html`."""
    return save_text(Path(run_dir) / PAGE if path is None else path, render_page(audit, read_labels(run_dir)))


def render_page(audit: Audit, labels: Mapping[str, Label]) -> str:
    kept = {chain.id: asdict(labels[chain.id]) for chain in audit.chains if chain.id in labels}
    data = {"format": FORMAT, "run": audit.run, "labels": kept}
    source = {"train": "training", "held_out": "held-out"}[audit.source]
    verdicts = ", ".join(f"{count:,} {name}" for name, count in audit.verdicts.items() if count)
    summary = f"{audit.num_rollouts:,} {source} completions of {audit.num_problems:,} problems, steps "
    summary += f"{audit.first_step} to {audit.last_step}: {verdicts}. {len(audit.chains):,} of them are shown below."
    options = "".join(f"<option>{name}</option>" for name, count in audit.verdicts.items() if count)
    return fill_page(
        "audit.html",
        policy=content_policy(SCRIPT, STYLE),
        run=escape(audit.run),
        summary=escape(summary),
        style=STYLE,
        findings=_findings(audit),
        options=options,
        chains="\n".join(_chain(chain, number, len(audit.chains)) for number, chain in enumerate(audit.chains, 1)),
        # A data block without "<" cannot end its element.
        data=json.dumps(data).replace("<", "\\u003c"),
        script=SCRIPT,
    )


def _findings(audit: Audit) -> str:
    rows = "\n".join(map(_finding, audit.findings))
    gains = "".join(map(_gain, audit.held_out_gains))
    head = '<th>finding<th class="number">count<th>of<th class="number">share<th>95 % interval'
    return (
        '<details class="findings" open><summary>Findings</summary>\n<div class="scroll"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n{gains}</details>"
    )


def _finding(finding: AuditFinding) -> str:
    examples = "".join(
        f"<li>step {example.step}, {escape(example.problem_id)}, rollout {example.rollout_number}, "
        f"{escape(example.verdict)}: <b>{escape(example.evidence)}</b><br>"
        f"<code>{escape(example.excerpt)}</code></li>"
        for example in finding.examples
    )
    title = escape(finding.title)
    name = f"<details><summary>{title}</summary><ul>{examples}</ul></details>" if examples else title
    count, of, share, interval = finding.words
    return (
        f'<tr{"" if finding.count else " class=none"}><td>{name}<td class="number">{count}'
        f'<td>{escape(of)}<td class="number">{share}<td>{interval}</tr>'
    )


def _gain(gain: HeldOutGain) -> str:
    warning = f"<b>{SUSPICIOUS}</b> " if gain.is_suspicious else ""
    return f"<p>{warning}{escape(gain.sentence())}</p>"


def _chain(chain: Chain, number: int, total: int) -> str:
    shown = chain.completion[:MAX_SHOWN_CHARS]
    if len(chain.completion) > len(shown):
        shown += f"\n[{len(chain.completion) - len(shown):,} more characters]"
    parts = ", ".join(f"{name} {value:g}" for name, value in chain.parts.items()) or "none"
    place = f"step {chain.step} · {chain.problem_id} · rollout {chain.rollout_number} · ended by {chain.finish}"
    return (
        f'<article data-chain="{escape(chain.id)}" data-verdict="{chain.verdict.value}">\n'
        f'<h2><span class="count">{number} / {total}</span> <span class="verdict {chain.verdict.value}">'
        f'{chain.verdict.value}</span> <span class="reward">reward {chain.reward:g}</span></h2>\n'
        f'<p class="place">{escape(place)}</p>\n'
        f'<h3>Prompt</h3>\n<pre class="prompt" tabindex="0">{escape(chain.prompt)}</pre>\n'
        f'<h3>Completion</h3>\n<pre class="completion" tabindex="0">{escape(shown)}</pre>\n'
        f"<dl><dt>gold answer<dd>{escape(chain.gold)}<dt>reward parts<dd>{escape(parts)}"
        f"<dt>{escape(chain.verifier or 'verifier')} says<dd>{escape(chain.detail or 'no details')}</dl>\n"
        f"{''.join(_question(*question) for question in _QUESTIONS)}"
        f'<label class="note">Note<textarea rows="2" maxlength="{MAX_NOTE_CHARS}"></textarea></label>\n</article>'
    )


def _question(name: str, title: str, answers: tuple[tuple[str, str], ...]) -> str:
    buttons = "".join(
        f'<button type="button" data-question="{name}" data-answer="{value}" aria-pressed="false">{shown}</button>'
        for value, shown in answers
    )
    return f'<fieldset><legend>{title}</legend><div class="answers">{buttons}</div></fieldset>\n'
