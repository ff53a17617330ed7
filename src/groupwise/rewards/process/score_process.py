"""Process scores: the steps of a completion, and a checker of their arithmetic.

A process scorer is any callable `(steps) -> float | None`: it maps the steps of `split_steps` to a score in [0, 1], or
None where there is nothing to judge. The built-in `arithmetic_score` computes both sides of every written equation
exactly and returns the share that is true.

An equation has two sides joined by `=` or `≈`, at least one of them with an operator. Both may have units ("3 apples *
2 = 6 apples"). An equation with a possible variable, a function, a clock time or a remainder is skipped, not called
false. A chain `a = b = c` counts once per sign.

It is true if the sides are equal, or if a number with decimals is the other side rounded to its digits (`10/3 = 3.33`,
but not `10/3 = 3`). After `≈` integers may be rounded too. `%`, cents and words such as "dozen" may be factors or plain
units, since people write both `5/20 = 25%` and `5/20*100 = 25%`.

Model text is never run. The time is linear in its length, numbers are capped, and nothing here raises.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

from groupwise.rewards.process.equation_tokens import CALCULATOR_NOTE
from groupwise.rewards.process.equations import Step, find_equations

ProcessScorer = Callable[[Sequence[str]], "float | None"]
"""Maps steps to a score in [0, 1]; None where there is nothing to judge."""

MAX_TEXT_CHARS = 64_000
"""The rest of a completion is ignored."""
MAX_EQUATIONS = 2_000
"""Maximum per text; the rest is ignored."""


def arithmetic_score(steps: Sequence[str]) -> float | None:
    """Return the share of written equations that are true; None without any."""
    found = [step for text in steps for step in arithmetic_steps(text)]
    return sum(step.is_true for step in found) / len(found) if found else None


def arithmetic_steps(text: str) -> tuple[Step, ...]:
    """Return every equation between numbers in order, including those in GSM8K's `<<48/2=24>>`."""
    found: list[tuple[int, Step]] = []
    start = 0
    for line in _HARD_LINE_END.split(text[:MAX_TEXT_CHARS]):
        if _RELATION.search(line):
            # The calculator's note stands between the sign and the result: read the line without it, then the note.
            found += [(start + place, step) for place, step in find_equations(line, MAX_EQUATIONS)]
            for note in itertools.islice(CALCULATOR_NOTE.finditer(line), MAX_EQUATIONS):
                found += [
                    (start + note.start(1) + place, step) for place, step in find_equations(note[1], MAX_EQUATIONS)
                ]
        start += len(line) + 1
        if len(found) >= MAX_EQUATIONS:
            break
    found.sort(key=lambda entry: entry[0])
    return tuple(step for _, step in found[:MAX_EQUATIONS])


# Not inside an equation that continues: after a sign, or before an equals sign.
_HARD_LINE_END = re.compile(r"(?<![=≈+*/×÷-])(?<!\\cdot)(?<!\\times)\n(?![ \t]*+&?[ \t]*+(?:=|≈|\\approx))")
_RELATION = re.compile(r"[=≈≃≅]|\\(?:approx|simeq|cong)|[Ee]quals")
_ANSWER_ELEMENT = re.compile(r"<answer>(?:(?!<answer>).)*?</answer>", re.DOTALL)
_TAG = re.compile(r"</?(?:think|answer|reasoning)>")
_ANSWER_LINE = re.compile(r"\s*(?:####.*|[*_$\s\\\[\]]*\\(?:boxed|fbox)\s*\{[^\n]*\}[*_$\s\\.\[\]]*)")
_SPACES = re.compile(r"[^\S\n]+")
_EMPTY_LINES = re.compile(r" ?\n[ \n]*")
_CONTINUED = re.compile(r"\n(?=&? ?(?:=|≈|\\approx))")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]*]{0,3} |; ")
_LIST_NUMBER = re.compile(r"[*#>-]{0,4} ?(?:[Ss]tep )?[0-9]{1,3}[.)]")
_ABBREVIATIONS = ("Mr.", "Mrs.", "Ms.", "Dr.", "St.", "vs.", "approx.", "e.g.", "i.e.")


def split_steps(completion: str) -> tuple[str, ...]:
    """Return the sentences and lines of the reasoning, in order, without outer spaces.

    The answer itself is not a step: `<answer>` elements, `####` lines and lines that are only a box are skipped. A
    sentence that ends in a box is kept whole.
    """
    text = _TAG.sub("\n", _ANSWER_ELEMENT.sub("\n", completion[:MAX_TEXT_CHARS]))
    # Collapse spaces and empty lines first: the patterns below would take quadratic time on them.
    text = _CONTINUED.sub(" ", _EMPTY_LINES.sub("\n", _SPACES.sub(" ", text)))
    steps: list[str] = []
    for line in text.split("\n"):
        if _ANSWER_LINE.fullmatch(line):
            continue
        head = ""
        for piece in _SENTENCE_END.split(line):
            piece = f"{head} {piece}".strip()
            # "2." and "Mr." do not end a sentence.
            if _LIST_NUMBER.fullmatch(piece) or piece.endswith(_ABBREVIATIONS):
                head = piece
                continue
            head = ""
            if any(character.isalnum() for character in piece):
                steps.append(piece)
        if head and not _LIST_NUMBER.fullmatch(head):
            steps.append(head)
    return tuple(steps)
