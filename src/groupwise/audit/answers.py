"""What can be said of one completion by reading it: its marked answers, its reasoning, what it owes to the prompt.

Each function takes linear time and knows no verifier. An answer is marked by `\\boxed{}`, by `<answer>` or by `####`;
of a completion without any of these nothing is said about where its answer is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from groupwise.rewards.process.score_process import arithmetic_steps, split_steps

MIN_REASONING_WORDS = 8
"""Fewer words beside the answer, and no equation: "So the final answer is 7" is no reasoning."""
MIN_WORDS_AFTER = 8
"""So many words behind the answer are more than closing punctuation."""
MIN_COPIED_CHARS = 12
"""A restated answer that is this long is no coincidence, even beside reasoning."""
COPY_WORDS = 8
"""Length of the runs of words that are looked for in the prompt."""
COPY_SHARE = 0.5

_BOX_TOKEN = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*+\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)
_ELEMENT = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_HASHES = re.compile(r"####([^\n]*)")
_WORD = re.compile(r"\w+")
_TAGS = re.compile(r"</?(?:think|answer|reasoning)>")
_SPACES = re.compile(r"\s+")


class Mark(NamedTuple):
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Reading:
    """A completion as read once; the checks ask it."""

    marks: tuple[Mark, ...]
    num_equations: int
    false_equations: tuple[str, ...]
    has_reasoning: bool
    num_words_after: int
    """Words behind the first place where the final answer is marked."""
    text_after: str
    restated: str
    """The final answer, where it is taken from the prompt; else ""."""
    copied_share: float
    """Share of the prompt's runs of `COPY_WORDS` words that the completion repeats."""

    @property
    def answers(self) -> tuple[str, ...]:
        """The different answers that are marked, in order."""
        return tuple(dict.fromkeys(_SPACES.sub("", mark.text) for mark in self.marks))


def read_completion(prompt: str, completion: str) -> Reading:
    marks = answer_marks(completion)
    equations = arithmetic_steps("\n".join(split_steps(completion)))
    has_reasoning = bool(equations) or num_words_beside(completion, marks) >= MIN_REASONING_WORDS
    text_after = after_answer(completion, marks)
    return Reading(
        marks=marks,
        num_equations=len(equations),
        false_equations=tuple(step.text for step in equations if not step.is_true),
        has_reasoning=has_reasoning,
        num_words_after=len(_WORD.findall(text_after)),
        text_after=text_after,
        restated=restated_answer(prompt, marks, has_reasoning),
        copied_share=copied_share(prompt, completion),
    )


def answer_marks(completion: str) -> tuple[Mark, ...]:
    """Every marked answer in the order written; of marks inside each other, the outer one."""
    found = [Mark(*match.span(), match[1]) for match in _ELEMENT.finditer(completion)]
    found += [Mark(*match.span(), match[1]) for match in _HASHES.finditer(completion)]
    found += _boxes(completion)
    found.sort(key=lambda mark: (mark.start, -mark.end))
    outer: list[Mark] = []
    for mark in found:
        if mark.text.strip() and (not outer or mark.start >= outer[-1].end):
            outer.append(mark)
    return tuple(outer)


def _boxes(completion: str) -> list[Mark]:
    if "\\boxed" not in completion and "\\fbox" not in completion:
        return []
    found = []
    open_braces: list[tuple[int, int]] = []
    for token in _BOX_TOKEN.finditer(completion):
        if token["box"]:
            open_braces.append((token.start(), token.end()))
        elif token["open"]:
            open_braces.append((-1, token.end()))
        elif token["close"] and open_braces:
            start, content = open_braces.pop()
            if start >= 0:
                found.append((start, content, token.start()))
    # Nested boxes close inside out: keep the outer ones before any content is copied, or the time would be quadratic.
    found.sort()
    marks: list[Mark] = []
    for start, content, end in found:
        if not marks or start >= marks[-1].end:
            marks.append(Mark(start, end + 1, completion[content:end]))
    return marks


def num_words_beside(completion: str, marks: tuple[Mark, ...]) -> int:
    position, count = 0, 0
    for mark in (*marks, Mark(len(completion), len(completion), "")):
        count += len(_WORD.findall(_TAGS.sub(" ", completion[position : mark.start])))
        position = mark.end
    return count


def after_answer(completion: str, marks: tuple[Mark, ...]) -> str:
    """What stands behind the first mark that says the same as the last one: repeating the answer is going on, too."""
    if not marks:
        return ""
    final = _SPACES.sub("", marks[-1].text)
    first = next(mark for mark in marks if _SPACES.sub("", mark.text) == final)
    return _TAGS.sub(" ", completion[first.end :]).strip()


def restated_answer(prompt: str, marks: tuple[Mark, ...], has_reasoning: bool) -> str:
    if not marks:
        return ""
    answer = marks[-1].text.strip()
    if has_reasoning and len(answer) < MIN_COPIED_CHARS:
        return ""
    position = prompt.find(answer)
    while position >= 0:
        before, after = prompt[max(0, position - 1) : position], prompt[position + len(answer) :][:2]
        is_whole = not (answer[0].isalnum() and before.isalnum()) and not (answer[-1].isalnum() and after[:1].isalnum())
        is_decimal = answer[-1].isdigit() and after[:1] in (".", ",") and after[1:].isdigit()
        if is_whole and not is_decimal:
            return answer
        position = prompt.find(answer, position + len(answer))
    return ""


def copied_share(prompt: str, completion: str) -> float:
    runs = _runs(prompt)
    return len(runs & _runs(completion)) / len(runs) if runs else 0.0


def _runs(text: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return {tuple(words[start : start + COPY_WORDS]) for start in range(len(words) - COPY_WORDS + 1)}
