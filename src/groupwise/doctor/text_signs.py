"""Signs in the text of completions: another writing system than the prompt's, words after the answer.

Linear time, no verifier, no tokenizer.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from groupwise.audit.answers import MIN_WORDS_AFTER, after_answer, answer_marks
from groupwise.runs import Run, group_from_json, layout
from groupwise.runs.files import read_records
from groupwise.types import ScoredGroup

MAX_GROUPS = 16
"""Groups read per step; a whole file of long completions takes seconds."""
MAX_COMPLETIONS = 64
"""Completions read of those groups: enough to see a share of one in ten, in milliseconds."""
MAX_CHARS = 4000
"""Characters read of one completion to find its writing system."""
MIN_LETTERS = 20
"""A completion with fewer letters has no writing system to report."""
FOREIGN_SHARE = 0.3
"""A name or a formula is not a drift; a third of the letters is."""
FOREIGN_LATIN_SHARE = 0.8
"""Formulas, code and tags are Latin in any language, so Latin counts only when it is nearly the whole text."""
HOME_SHARE = 0.01
"""A system with at least this share of the prompt's letters belongs to the prompt."""

# By the first word of a letter's Unicode name. Japanese mixes three systems with Latin.
_NAMES = "Latin Cyrillic Greek Arabic Hebrew Thai Devanagari Bengali Tamil Telugu Georgian Armenian"
_SCRIPTS = {name.upper(): name for name in _NAMES.split()} | {
    **dict.fromkeys(("CJK", "HIRAGANA", "KATAKANA"), "Chinese or Japanese"),
    "HANGUL": "Korean",
}


@dataclass(frozen=True, slots=True)
class TextSigns:
    """Counts over a sample of one step's completions."""

    step: int
    num_read: int
    num_foreign: int
    """Completions in another writing system than their prompt."""
    foreign_script: str
    """The most frequent of those systems."""
    num_marked: int
    """Completions with a marked answer: a box, an `<answer>` element, a `####` line."""
    num_running_on: int
    """Completions that continue after their marked answer."""
    num_closed_by_tag: int
    """Completions that end their marked answer with `</answer>`, where sampling could stop."""
    failure: str
    """The message of a verifier that failed; "" when none did."""


def read_signs(run: Run, step: int) -> TextSigns | None:
    """Read the first groups of a step, which are in random order; None when its rollouts were not kept."""
    path = run.path / layout.ROLLOUTS / layout.rollout_file(step)
    return signs_of(step, read_records(path, group_from_json, MAX_GROUPS)) if os.path.lexists(path) else None


def signs_of(step: int, groups: Sequence[ScoredGroup]) -> TextSigns:
    foreign: Counter[str] = Counter()
    num_read = num_marked = num_running_on = num_closed_by_tag = 0
    for prompt, completion in _sample(groups):
        num_read += 1
        if script := foreign_script(prompt, completion[:MAX_CHARS]):
            foreign[script] += 1
        if marks := answer_marks(completion):
            num_marked += 1
            num_closed_by_tag += "</answer>" in completion
            num_running_on += len(after_answer(completion, marks).split()) >= MIN_WORDS_AFTER
    failures = (score.detail for scored in groups for score in scored.scores if score.is_error)
    return TextSigns(
        step=step,
        num_read=num_read,
        num_foreign=foreign.total(),
        foreign_script=max(foreign, key=lambda script: foreign[script], default=""),
        num_marked=num_marked,
        num_running_on=num_running_on,
        num_closed_by_tag=num_closed_by_tag,
        failure=next(failures, ""),
    )


def _sample(groups: Sequence[ScoredGroup]) -> Iterator[tuple[str, str]]:
    """Yield (prompt, completion), with the same number of completions from each group."""
    per_group = max(1, MAX_COMPLETIONS // max(len(groups), 1))
    for scored in groups[:MAX_COMPLETIONS]:
        prompt = "\n".join(message.content for message in scored.group.prompt.problem.messages)
        for rollout in scored.group.rollouts[:per_group]:
            yield prompt, rollout.text


def foreign_script(prompt: str, completion: str) -> str:
    """Return the writing system of much of a completion that its prompt does not use; "" for none."""
    home, found = _scripts(prompt), _scripts(completion)
    if found.total() < MIN_LETTERS or not home:
        return ""
    for script, count in found.most_common():
        limit = FOREIGN_LATIN_SHARE if script == "Latin" else FOREIGN_SHARE
        if count >= limit * found.total() and home[script] < HOME_SHARE * home.total():
            return script
    return ""


def _scripts(text: str) -> Counter[str]:
    """Count the letters of each writing system; those of unknown systems, such as formulas, are left out."""
    letters = Counter(letter for letter in text if letter.isalpha())
    counts: Counter[str] = Counter()
    for letter, count in letters.items():
        word = unicodedata.name(letter, "").partition(" ")[0].partition("-")[0]
        if script := _SCRIPTS.get(word):
            counts[script] += count
    return counts
