"""Checks of a completion's form, whatever its answer.

`is_single_element` is stricter than XML: the content may have no markup and no entity, so that no XML parser, with its
entity bombs, ever reads model text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from groupwise.rewards.extract import last_tag
from groupwise.rewards.numbers import parse_number
from groupwise.types import Score, Verdict

# Characters that XML 1.0 allows in text, less `<`, `>` and `&`. NUL and lone surrogates are not among them.
_PLAIN_XML_TEXT = re.compile("[\t\n\r -%'-;=?-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")


def is_single_element(completion: str, tag: str = "answer") -> bool:
    """Return whether the stripped completion is one `<tag>…</tag>` with plain text inside."""
    text = completion.strip()
    opening, closing = f"<{tag}>", f"</{tag}>"
    if len(text) < len(opening) + len(closing) or not (text.startswith(opening) and text.endswith(closing)):
        return False
    return _PLAIN_XML_TEXT.fullmatch(text, len(opening), len(text) - len(closing)) is not None


def has_elements(completion: str, tags: Sequence[str]) -> bool:
    """Return whether the completion is exactly these elements in this order, with only white space between them."""
    if any(completion.count(mark) != 1 for tag in tags for mark in (f"<{tag}>", f"</{tag}>")):
        return False
    elements = (f"<{re.escape(tag)}>.*</{re.escape(tag)}>" for tag in tags)
    return re.fullmatch("\\s*".join(("", *elements, "")), completion, re.DOTALL) is not None


def score_copy(gold: str, completion: str, verifier: str) -> Score:
    """Score 1.0 for the right integer in `<answer>`, 0.2 for the element, 0.1 if it is the whole completion."""
    xml = 0.1 if is_single_element(completion) else 0.0
    return score_tagged_number(parse_number(gold), completion, verifier, tag=0.2, xml=xml)


def score_tagged_number(gold: Fraction | int | None, completion: str, verifier: str, **tag_parts: float) -> Score:
    """Score 1.0 for the right number in the last `<answer>`, and `tag_parts` for a complete element."""
    found = last_tag(completion)
    value = None if found is None else parse_number(found.text)
    is_right = None if value is None else value == gold
    detail = excerpt(found.text) if found else "no <answer> element"
    return score_correct(is_right, verifier, detail, **(tag_parts if found else dict.fromkeys(tag_parts, 0.0)))


def score_correct(is_right: bool | None, verifier: str, detail: str, **other_parts: float) -> Score:
    """Return a score with the part `correct`, 1.0 or 0.0, before any others; the reward is their sum.

    `is_right` is None where no answer was found.
    """
    parts = {"correct": 1.0 if is_right else 0.0, **other_parts}
    verdict = Verdict.CORRECT if is_right else Verdict.WRONG
    if is_right is None:
        verdict = Verdict.UNPARSED
    return Score(sum(parts.values()), verdict, parts, verifier, detail)


def excerpt(text: str, max_chars: int = 80) -> str:
    """Shorten any text to one printable line, as for `Score.detail`."""
    text = text[: 4 * max_chars]
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    text = text.strip()
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"
