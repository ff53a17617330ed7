"""Process scores: the steps of a completion, and a checker of their arithmetic.

`arithmetic_score`, the built-in process scorer, computes both sides of every written equation exactly and returns the
share that is true.

An equation has two sides joined by `=` or `≈`, at least one of them with an operator. Both may have units ("3 apples *
2 = 6 apples"). An equation with a possible variable, a function, a clock time or a remainder is skipped, not called
false. A chain `a = b = c` counts once per sign.

It is true if the sides are equal, or if a number with decimals is the other side rounded to its digits (`10/3 = 3.33`,
but not `10/3 = 3`). After `≈` integers may be rounded too. `%`, cents and words such as "dozen" may be factors or plain
units, since people write both `5/20 = 25%` and `5/20*100 = 25%`.

Equations are read by recursive descent over the tokens of `equation_tokens`, exactly as `Fraction`. Values and depth
are capped: linear time on any text. Model text is never run, and nothing here raises.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from groupwise.rewards.numbers import VULGAR, calculate
from groupwise.rewards.process.equation_tokens import (
    CALCULATOR_NOTE,
    SCALES,
    SENTENCE_WORDS,
    SUPERSCRIPTS,
    VALUE_START,
    tokenize,
)

ProcessScorer = Callable[[Sequence[str]], "float | None"]
"""Maps the steps of `split_steps` to a score in [0, 1]; None where there is nothing to judge."""

MAX_TEXT_CHARS = 64_000
"""The rest of a completion is ignored."""
MAX_EQUATIONS = 2_000
"""Maximum per text; the rest is ignored."""
MAX_BITS = 512
"""Maximum bits of an intermediate numerator or denominator; larger expressions are skipped."""
MAX_DEPTH = 32
MAX_EXPONENT = 64
MAX_UNIT_WORDS = 4
MAX_STEP_CHARS = 200
"""Maximum length of the text that a `Step` keeps."""

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
_SEPARATORS = re.compile(r"[ ,{}\\!]")
_PART_OF_A_UNIT = re.compile(r"(?:[0-9]+ )?([0-9]{1,6})/([0-9]{1,6})\s+[^\W\d][^0-9+*/]*")


@dataclass(frozen=True, slots=True)
class Step:
    """One equation as written."""

    text: str
    is_true: bool


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
            # A calculator's note stands between the sign and the result: read the line without notes, then the notes.
            notes = itertools.islice(CALCULATOR_NOTE.finditer(line), MAX_EQUATIONS)
            for offset, part in ((0, line), *((note.start(1), note[1]) for note in notes)):
                found += [(start + offset + place, step) for place, step in find_equations(part, MAX_EQUATIONS)]
        start += len(line) + 1
        if len(found) >= MAX_EQUATIONS:
            break
    found.sort(key=lambda entry: entry[0])
    return tuple(step for _, step in found[:MAX_EQUATIONS])


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


class _NotArithmetic(Exception):
    """End of one expression's parse; never leaves this module."""


@dataclass(frozen=True, slots=True)
class _Value:
    """The value of an expression in two readings; None where it divides by zero."""

    plain: Fraction | None
    scaled: Fraction | None
    """With `%` as 1/100, "dozen" as 12 and so on; equal to `plain` without such a word."""
    shown: Fraction | None = None
    """Unit of the last digit of a single number, 1/100 for 3.33; None for anything computed."""
    is_open: bool = False
    """The number ends in dots, as in 3.33…: it may be truncated rather than rounded."""
    has_units: bool = False


@dataclass(frozen=True, slots=True)
class _Side:
    value: _Value
    start: int
    end: int
    is_clean: bool
    """No operator, letter or function is attached at either end."""


class _Parser:
    """A parser of one expression at a time. `position` never goes back, so the whole text takes linear time."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens = tokenize(source)
        self.position = 0
        self.names_a_part = False
        """The last side has an "of" that may not be a product: "2/3 of the tank", "= 1/3 of $150"."""
        self.is_first = True

    def kind(self, ahead: int = 0) -> str:
        index = self.position + ahead
        return self.tokens[index].kind if index < len(self.tokens) else "B"

    def text(self, ahead: int = 0) -> str:
        index = self.position + ahead
        return self.tokens[index].text if index < len(self.tokens) else ""

    def take(self) -> str:
        """Go past the token and return its text."""
        self.position += 1
        return self.text(-1)

    def is_operator(self, choices: str, ahead: int = 0) -> bool:
        return self.kind(ahead) == "O" and self.text(ahead) in choices

    def is_glued(self) -> bool:
        """Return whether the token follows the previous one without a space."""
        return 0 < self.position < len(self.tokens) and self.tokens[self.position].is_glued

    def starts_value(self, ahead: int = 0) -> bool:
        return self.kind(ahead + 1 if self.is_operator("+-", ahead) else ahead) in VALUE_START

    def side(self, is_first: bool) -> _Side | None:
        """Read the expression that starts here; None where it is not one."""
        first, start = self.position, self.tokens[self.position].start
        self.names_a_part, self.is_first = False, is_first
        before = self.tokens[first - 1].kind if first else "B"
        # After an operator or a letter, beside another number ("5 650 000"), or a sign after a word ("cost - 3 - 2").
        hangs = before in "O^VFN)%" or (self.kind() == "O" and (before != "B" or self.text() == "+"))
        hangs = hangs or self.source.endswith(("}", "_", "^", ")", "]", "\\"), 0, start)
        hangs = hangs or (before == "W" and first > 1 and self.tokens[first - 2].kind == "O")  # "5 + his 1 + 2 = 8"
        try:
            value = self.sum(0)
        except _NotArithmetic:
            self.position = max(self.position, first + 1)
            return None
        is_clean = not (is_first and hangs) and self.ends_clean() and not self.names_a_part
        return _Side(value, start, self.tokens[self.position - 1].end, is_clean)

    def ends_clean(self) -> bool:
        if self.is_operator("-") and self.kind(1) == "W":
            return not self.is_glued()  # a dash: "= 7 - that is all"
        if self.kind() == "N":
            return self.kind(-1) != "N" and not self.is_glued()  # "= 3 400" may be one number, "2^{3}5" a product
        # "= 2 (1 + 2)" may be a product; "= 7 (as we saw)" and "= 7 \\boxed{7}" are not.
        return self.kind() not in "O^VF" and not (self.kind() == "(" and self.text() != "{" and self.starts_value(1))

    def sum(self, depth: int) -> _Value:
        value = self.product(depth)
        while self.is_operator("+-") and self.starts_value(1):
            value = _combine(self.take(), value, self.product(depth))
        return value

    def product(self, depth: int) -> _Value:
        value = self.factor(depth)
        while True:
            if self.is_operator("*/") and self.starts_value(1):
                sign = self.take()
            elif self.kind() == "(" and self.is_glued() and self.tokens[self.position - 1].kind in "N)":
                sign = "*"
            elif self.is_product_of(value):
                sign = "*"
                self.position += 1
                self.names_a_part = not self.is_first
            else:
                return value
            is_apart = sign == "/" and not self.is_glued()
            part = self.tight_fraction() if is_apart else None
            value = _combine(sign, value, self.factor(depth) if part is None else self.with_units(_exactly(part)))

    def is_product_of(self, value: _Value) -> bool:
        """Return whether this is the "of" in `1/2 of 48` or `20% of 50`, right after a fraction or a percentage."""
        if self.kind() != "W" or self.text() != "of" or not self.starts_value(1) or self.kind(-1) not in "N)%":
            return False
        return value.scaled is not None and (value.scaled != value.plain or 0 < value.scaled < 1)

    def factor(self, depth: int) -> _Value:
        is_negative = self.is_operator("+-") and self.take() == "-"
        value = self.power(depth)
        return _negated(value) if is_negative else value

    def power(self, depth: int) -> _Value:
        value = self.atom(depth)
        if self.kind() == "S":
            value = _raised(value, self.take().translate(SUPERSCRIPTS))
        elif self.kind() == "^":
            ahead = 2 if self.kind(1) == "(" and self.text(1) == "{" else 1
            if self.kind(ahead) != "N" or (ahead == 2 and self.kind(3) != ")"):
                raise _NotArithmetic
            value = _raised(value, self.text(ahead))
            self.position += 2 if ahead == 1 else 4
        return self.with_units(value)

    def atom(self, depth: int) -> _Value:
        if depth > MAX_DEPTH:
            raise _NotArithmetic
        match self.kind():
            case "F":
                return self.fraction(depth)
            case "(":
                return self.group(depth)
            case "N":
                return self.number()
        raise _NotArithmetic

    def group(self, depth: int) -> _Value:
        closing = self.tokens[self.position].partner
        self.position += 1
        value = self.sum(depth + 1)
        if self.position != closing:
            raise _NotArithmetic
        self.position += 1
        return value

    def fraction(self, depth: int) -> _Value:
        """Read `\\frac{1}{2}` or `\\frac12`."""
        self.position += 1
        if self.kind() == "N" and self.text().isdecimal() and len(self.text()) == 2:
            return _combine("/", *(_exactly(Fraction(digit)) for digit in self.take()))
        arguments = []
        for _ in range(2):
            if self.kind() != "(" or self.text() != "{":
                raise _NotArithmetic
            arguments.append(self.group(depth))
        return _combine("/", arguments[0], arguments[1])

    def number(self) -> _Value:
        text = self.take()
        if text in VULGAR:
            return _exactly(VULGAR[text])
        digits = _SEPARATORS.sub("", text)
        decimals = len(digits.partition(".")[2])
        value = Fraction(digits)
        if decimals == 0 and (part := self.fractional_part()) is not None:
            return _exactly(value + part)
        is_open = self.kind() == "D"
        if is_open:
            self.position += 1
        return _Value(value, value, Fraction(1, 10**decimals), is_open)

    def fractional_part(self) -> Fraction | None:
        """Read the 1/2 of `2 1/2`, `2½` and `2\\frac{1}{2}`."""
        if self.kind() == "N" and self.text() in VULGAR:
            return VULGAR[self.take()]
        if (part := self.tight_fraction()) is not None:
            return part
        if self.kind() == "W" and self.text() == "and" and self.kind(1) == "N":
            self.position += 1
            if (part := self.fractional_part()) is None:
                self.position -= 1
            return part
        if self.kind() == "F" and self.is_glued():
            value = self.fraction(0)
            if value.plain is None or not 0 <= value.plain < 1:
                raise _NotArithmetic
            return value.plain
        return None

    def tight_fraction(self) -> Fraction | None:
        """Read a proper fraction without spaces, such as the 1/4 of `3 / 1/4`, where spaces act as brackets."""
        if not (self.kind() == "N" and self.is_operator("/", 1) and self.kind(2) == "N"):
            return None
        top, slash, bottom = self.tokens[self.position : self.position + 3]
        is_tight = top.end == slash.start and slash.end == bottom.start
        if not (is_tight and top.text.isdecimal() and bottom.text.isdecimal() and int(top.text) < int(bottom.text)):
            return None
        self.position += 3
        return Fraction(int(top.text), int(bottom.text))

    def with_units(self, value: _Value) -> _Value:
        """Skip "%", "apples", "dollars per hour", "miles/hour", "cm^2". Words that are factors change `scaled`."""
        scale, num_words = Fraction(1), 0
        while num_words <= MAX_UNIT_WORDS:
            if self.kind() in "%W":
                if self.text() in SENTENCE_WORDS or (self.text() == "of" and self.starts_value(1)):
                    break
                is_share = self.kind(-1) == "%" or self.is_operator("/", -2)
                self.names_a_part = self.names_a_part or (self.text() == "of" and self.is_first and is_share)
                scale *= SCALES.get(self.text().lstrip("\\"), 1)
                self.position += 1
            elif self.is_operator("/") and self.kind(1) == "W":
                self.position += 2
            elif num_words and self.kind() == "S":
                self.position += 1
            elif num_words and self.kind() == "^" and self.kind(1) == "N":
                self.position += 2
            else:
                break
            num_words += 1
        if not num_words:
            return value
        scaled = None if value.scaled is None else value.scaled * scale
        return _Value(value.plain, scaled, value.shown, value.is_open, has_units=True)


def _exactly(value: Fraction) -> _Value:
    return _Value(value, value)


def _negated(value: _Value) -> _Value:
    plain, scaled = (None if reading is None else -reading for reading in (value.plain, value.scaled))
    return _Value(plain, scaled, value.shown, value.is_open, value.has_units)


def _combine(sign: str, left: _Value, right: _Value) -> _Value:
    return _Value(_computed(sign, left.plain, right.plain), _computed(sign, left.scaled, right.scaled))


def _computed(sign: str, left: Fraction | None, right: Fraction | None) -> Fraction | None:
    value = calculate(sign, left, right)
    if value is not None and _num_bits(value) > MAX_BITS:
        raise _NotArithmetic
    return value


def _num_bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _raised(value: _Value, exponent_text: str) -> _Value:
    exponent = int(exponent_text) if exponent_text.isdecimal() and len(exponent_text) < 4 else MAX_EXPONENT + 1
    base = value.plain
    if base is None or exponent > MAX_EXPONENT or _num_bits(base) * exponent > MAX_BITS:
        raise _NotArithmetic
    return _exactly(base**exponent)


def find_equations(text: str, limit: int) -> list[tuple[int, Step]]:
    """Return the first `limit` equations, each with its start."""
    parser = _Parser(text)
    found: list[tuple[int, Step]] = []
    while parser.position < len(parser.tokens) and len(found) < limit:
        if not parser.starts_value():
            parser.position += 1
            continue
        follows_words = parser.position > 0 and parser.kind(-1) == "W"
        left = parser.side(is_first=True)
        while parser.kind() == "=" and parser.starts_value(1) and len(found) < limit:
            is_rounded = parser.text() not in ("=", "==")
            parser.position += 1
            right = parser.side(is_first=False)
            if left is not None and right is not None and _is_equation(left, right, text, follows_words):
                is_true = _is_same(left.value, right.value, is_rounded)
                found.append((left.start, Step(text[left.start : right.end][:MAX_STEP_CHARS].strip(), is_true)))
            left, follows_words = right, False
    return found[:limit]


def _is_equation(left: _Side, right: _Side, text: str, follows_words: bool) -> bool:
    if not (left.is_clean and right.is_clean) or (left.value.shown is not None and right.value.shown is not None):
        return False
    # "The cost of 3 apples = 3 * 2", "1/2 cup = 4 ounces": a quantity on the left names a thing and is not a side.
    if left.value.shown is not None and (follows_words or left.value.has_units):
        return False
    part = _PART_OF_A_UNIT.fullmatch(text[left.start : min(left.end, left.start + MAX_STEP_CHARS)])
    return part is None or int(part[1]) >= int(part[2])


def _is_same(left: _Value, right: _Value, is_rounded: bool) -> bool:
    is_estimate = is_rounded and left.shown is None and right.shown is None
    readings = itertools.product(_readings(left, is_rounded), _readings(right, is_rounded))
    return any(
        abs(one - other) <= max(room, other_room, abs(other) / 100 if is_estimate else 0)
        for (one, room), (other, other_room) in readings
    )


def _readings(value: _Value, is_rounded: bool) -> list[tuple[Fraction, Fraction]]:
    """Return the value in both readings, each with its rounding tolerance."""
    scale = value.scaled / value.plain if value.scaled and value.plain else Fraction(1)
    readings = ((value.plain, Fraction(1)), (value.scaled, scale))
    return [(reading, _room(value, scale, is_rounded)) for reading, scale in readings if reading is not None]


def _room(value: _Value, scale: Fraction, is_rounded: bool) -> Fraction:
    """Return the rounding tolerance of a written number: half of its last digit."""
    if value.shown is None:
        return Fraction(0)
    last_digit = value.shown * scale
    if value.is_open:
        return last_digit
    if is_rounded and value.shown == 1 and value.plain:
        zeros = len(str(value.plain.numerator)) - len(str(value.plain.numerator).rstrip("0"))
        return last_digit * 10**zeros / 2
    # `10/3 = 3` is false; `1/3 = 33%` shows two decimals in another spelling.
    return last_digit / 2 if is_rounded or last_digit < 1 else Fraction(0)
