"""What completions show to whoever reads them: another writing system than the prompt's, words after the answer.

Linear time, no verifier, no tokenizer.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from groupwise.audit.answers import MIN_WORDS_AFTER, after_answer, answer_marks
from groupwise.runs import Run, RunReadError, group_from_json, layout
from groupwise.types import ScoredGroup

MAX_GROUPS = 16
"""Read of one step: of long completions a whole file takes seconds."""
MAX_COMPLETIONS = 64
"""Looked at of those: a share of one in ten then shows for certain, and a look takes milliseconds."""
MAX_CHARS = 4000
"""Read of one completion for its letters."""
MIN_LETTERS = 20
"""Of a completion with fewer letters nothing is said about its writing system."""
FOREIGN_SHARE = 0.3
"""A name or a formula is no drift; a third of the letters is a language."""
FOREIGN_LATIN_SHARE = 0.8
"""Formulas, code and tags are Latin whatever the language, so Latin letters count only as nearly the whole text."""
HOME_SHARE = 0.01
"""A system that makes up this much of the prompt's letters is the prompt's own."""

# Japanese mixes the first three; the names are the first words of Unicode's names of letters.
_SCRIPTS = {
    "LATIN": "Latin",
    "CJK": "Chinese or Japanese",
    "HIRAGANA": "Chinese or Japanese",
    "KATAKANA": "Chinese or Japanese",
    "CYRILLIC": "Cyrillic",
    "GREEK": "Greek",
    "ARABIC": "Arabic",
    "HEBREW": "Hebrew",
    "HANGUL": "Korean",
    "THAI": "Thai",
    "DEVANAGARI": "Devanagari",
    "BENGALI": "Bengali",
    "TAMIL": "Tamil",
    "TELUGU": "Telugu",
    "GEORGIAN": "Georgian",
    "ARMENIAN": "Armenian",
}


@dataclass(frozen=True, slots=True)
class TextSigns:
    """What a sample of one step's completions shows."""

    step: int
    num_read: int
    num_foreign: int
    """In another writing system than their prompt."""
    foreign_script: str
    """The most frequent of those."""
    num_marked: int
    """With a marked answer: a box, an `<answer>` element, a `####` line."""
    num_running_on: int
    """Of those, how many go on after it."""
    num_closed_by_tag: int
    """Of those with a marked answer, how many mark it by `</answer>`, at which sampling could stop."""
    failure: str
    """What a verifier said that failed; "" where none did."""


def read_signs(run: Run, step: int) -> TextSigns | None:
    """Of the first groups of a step, which are in random order; None where its rollouts were not kept."""
    path = run.path / layout.ROLLOUTS / layout.rollout_file(step)
    try:
        with open(path, "rb") as file:
            lines = list(islice(file, MAX_GROUPS))
        return signs_of(step, [group_from_json(json.loads(line)) for line in lines])
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunReadError(f"{path}: not the rollouts of a step ({error!r}); delete the file to go on") from error


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
    """Prompts and completions: the same number of each group."""
    per_group = max(1, MAX_COMPLETIONS // max(len(groups), 1))
    for scored in groups[:MAX_COMPLETIONS]:
        prompt = "\n".join(message.content for message in scored.group.prompt.problem.messages)
        for rollout in scored.group.rollouts[:per_group]:
            yield prompt, rollout.text


def foreign_script(prompt: str, completion: str) -> str:
    """The writing system that much of a completion is in and its prompt is not; "" for none."""
    home, found = _scripts(prompt), _scripts(completion)
    if found.total() < MIN_LETTERS or not home:
        return ""
    for script, count in found.most_common():
        limit = FOREIGN_LATIN_SHARE if script == "Latin" else FOREIGN_SHARE
        if count >= limit * found.total() and home[script] < HOME_SHARE * home.total():
            return script
    return ""


def _scripts(text: str) -> Counter[str]:
    """How many letters of each writing system. Letters of no system that we know, as of formulas, are left out."""
    letters = Counter(letter for letter in text if letter.isalpha())
    counts: Counter[str] = Counter()
    for letter, count in letters.items():
        word = unicodedata.name(letter, "").partition(" ")[0].partition("-")[0]
        if script := _SCRIPTS.get(word):
            counts[script] += count
    return counts
