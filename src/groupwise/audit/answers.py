"""A reading of one completion without a verifier: its marked answers, its reasoning, and what it copies.

Each function takes linear time. An answer is marked by `\\boxed{}`, `<answer>` or `####`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from groupwise.rewards.extract import find_boxes
from groupwise.rewards.process.score_process import arithmetic_steps, split_steps

MIN_REASONING_WORDS = 8
"""Fewer words beside the answer, without an equation, are not reasoning: "So the final answer is 7"."""
MIN_WORDS_AFTER = 8
"""Words after the answer from which a completion counts as continuing."""
MIN_COPIED_CHARS = 12
"""Length from which an answer found in the prompt is no coincidence, even with reasoning."""
COPY_WORDS = 8
"""Length of the runs of words that are compared with the prompt."""
COPY_SHARE = 0.5
"""Share of the prompt's runs from which it counts as copied."""

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
    """Everything that the checks need to know of a completion."""

    marks: tuple[Mark, ...]
    num_equations: int
    false_equations: tuple[str, ...]
    has_reasoning: bool
    num_words_after: int
    """Words after the first mark of the final answer."""
    text_after: str
    restated: str
    """The final answer if it is taken from the prompt; else ""."""
    copied_share: float
    """Share of the prompt's runs of `COPY_WORDS` words that the completion repeats."""

    @property
    def answers(self) -> tuple[str, ...]:
        """The distinct marked answers, in order."""
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
    """Return every marked answer in the order written; of nested marks, the outer one."""
    found = [Mark(*match.span(), match[1]) for mark in (_ELEMENT, _HASHES) for match in mark.finditer(completion)]
    boxes: list[Mark] = []
    # Nested boxes close inside out: keep the outer ones before any content is copied, or the time would be quadratic.
    for start, content, end in sorted(find_boxes(completion)):
        if not boxes or start >= boxes[-1].end:
            has_brace = completion[content - 1] == "{"  # not in `\boxed 9`
            boxes.append(Mark(start, end + has_brace, completion[content:end]))
    outer: list[Mark] = []
    for mark in sorted(found + boxes, key=lambda mark: (mark.start, -mark.end)):
        if mark.text.strip() and (not outer or mark.start >= outer[-1].end):
            outer.append(mark)
    return tuple(outer)


def num_words_beside(completion: str, marks: tuple[Mark, ...]) -> int:
    position, count = 0, 0
    for mark in (*marks, Mark(len(completion), len(completion), "")):
        count += len(_WORD.findall(_TAGS.sub(" ", completion[position : mark.start])))
        position = mark.end
    return count


def after_answer(completion: str, marks: tuple[Mark, ...]) -> str:
    """Return the text after the first mark of the final answer, so that repeating the answer counts as continuing."""
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
