"""Process scores: is the reasoning right, whatever the answer? Steps of a completion, and a checker of arithmetic.

A process scorer is any callable `(steps) -> float | None`: the steps of `split_steps` in, a score in [0, 1] out, None
where there is nothing to judge. The built-in one, `arithmetic_score`, finds every `a ∘ b = c` that is written out,
computes both sides exactly as `Fraction` and says what share of them is true.

What counts as an equation: two sides joined by `=` or `≈`, at least one of them with an operator. Both may carry units
("3 apples * 2 = 6 apples"). A letter that could be a variable, a function, a clock time, a remainder: none of that is
arithmetic, and the equation is left out rather than called false. A chain `a = b = c` is as many steps as it has signs.

When it is true: the sides are equal, or a number with decimals is the other side rounded to the digits shown (`10/3 =
3.33`, and not `10/3 = 3`). After `≈` whole numbers may be rounded too. `%`, cents and words such as "dozen" may be
read as a factor or as a plain unit, since people write both `5/20 = 25%` and `5/20*100 = 25%`.

Model text is read, never run. The time is linear in its length, numbers are capped, and nothing here raises.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

from groupwise.rewards.process.equation_tokens import CALCULATOR_NOTE
from groupwise.rewards.process.equations import Step, find_equations

__all__ = ["ProcessScorer", "Step", "arithmetic_score", "arithmetic_steps", "split_steps"]

ProcessScorer = Callable[[Sequence[str]], "float | None"]
"""Steps in; a score in [0, 1] out, or None where there is nothing to judge."""

MAX_TEXT_CHARS = 64_000
"""What comes after is not read."""
MAX_EQUATIONS = 2_000
"""Of one text; what comes after is not judged."""


def arithmetic_score(steps: Sequence[str]) -> float | None:
    """Share of the written equations that are true; None when no arithmetic is written."""
    found = [step for text in steps for step in arithmetic_steps(text)]
    return sum(step.is_true for step in found) / len(found) if found else None


def arithmetic_steps(text: str) -> tuple[Step, ...]:
    """Every equation between numbers in `text`, in the order written, those in GSM8K's `<<48/2=24>>` included."""
    found: list[tuple[int, Step]] = []
    start = 0
    for line in _HARD_LINE_END.split(text[:MAX_TEXT_CHARS]):
        if _RELATION.search(line):
            # The calculator's note stands between the sign and the result: around it, the line is read without it.
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


# Not inside an equation that goes on: behind a sign, or before one of equality.
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
    """The sentences and lines that make the reasoning, in order, without outer spaces.

    The answer itself is not a step: `<answer>` elements, `####` lines and lines that are nothing but a box are left
    out. A sentence that ends in a box stays whole, since the box closes an argument there.
    """
    text = _TAG.sub("\n", _ANSWER_ELEMENT.sub("\n", completion[:MAX_TEXT_CHARS]))
    # Runs of spaces and empty lines go first: what follows would take quadratic time on them.
    text = _CONTINUED.sub(" ", _EMPTY_LINES.sub("\n", _SPACES.sub(" ", text)))
    steps: list[str] = []
    for line in text.split("\n"):
        if _ANSWER_LINE.fullmatch(line):
            continue
        head = ""
        for piece in _SENTENCE_END.split(line):
            piece = f"{head} {piece}".strip()
            # "2." and "Mr." end no sentence: what follows belongs to them.
            if _LIST_NUMBER.fullmatch(piece) or piece.endswith(_ABBREVIATIONS):
                head = piece
                continue
            head = ""
            if any(character.isalnum() for character in piece):
                steps.append(piece)
        if head and not _LIST_NUMBER.fullmatch(head):
            steps.append(head)
    return tuple(steps)
