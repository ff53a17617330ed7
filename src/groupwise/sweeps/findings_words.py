"""What a finding is, and the words that findings are put into. Nothing here compares anything."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.sweeps.arm_scores import ArmScore
from groupwise.sweeps.spec import PLAIN_LIST
from groupwise.sweeps.sweep_records import Knob, Member

MAX_LABEL_CHARS = 60
MAX_REASON_CHARS = 160
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


@dataclass(frozen=True, slots=True)
class SweepFinding:
    kind: str
    """best, flat, unclear, stops, harms, costs, speed, side_effect, spread, collapsed, failed, unfinished or none."""
    knob: str
    sentence: str
    arms: tuple[str, ...]
    """The names of the arms that it speaks of."""
    figures: Mapping[str, Any]
    """What it was made of, as JSON values: to be checked against the run directories."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "knob": self.knob,
            "sentence": self.sentence,
            "arms": list(self.arms),
            "figures": dict(self.figures),
        }


def percent(share: float) -> str:
    return f"{_hundredths(share)} %"


def percent_range(shares: Iterable[float]) -> str:
    """ "95.8 to 97.2 %"; one number where both ends read alike."""
    known = list(shares)
    low, high = _hundredths(min(known)), _hundredths(max(known))
    return f"{low} %" if low == high else f"{low} to {high} %"


def points_range(shares: Iterable[float]) -> str:
    return percent_range(shares).removesuffix(" %") + " points"


def _hundredths(share: float) -> str:
    return f"{100 * share:.1f}".removesuffix(".0").replace("-", "−")


def plain(value: float) -> str:
    """Three digits of a quantity that is no share."""
    if not math.isfinite(value):
        return "∞"
    return f"{value:.3g}".replace("-", "−")


def count(number: int, noun: str) -> str:
    word = _NUMBERS[number] if number < len(_NUMBERS) else str(number)
    return f"{word} {noun}" + ("" if number == 1 else "s")


def seeds_words(arms: Sequence[ArmScore]) -> str:
    """ "three seeds", "two to three seeds"; one seed says what it cannot show."""
    counts = sorted({len(arm.seeds) for arm in arms})
    if counts == [1]:
        return "one seed, not repeated"
    most = count(counts[-1], "seed")
    return most if len(counts) == 1 else f"{count(counts[0], 'seed').split()[0]} to {most}"


def listed(words: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def cut(text: str, max_chars: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def label_of(member: Member) -> str:
    return cut(member.label, MAX_LABEL_CHARS)


def knob_words(knob: Knob) -> str:
    """The knob's name as a sentence begins with it: names are safe for folders and have no spaces."""
    words = cut(knob.name.replace("_", " ").replace("-", " "), MAX_LABEL_CHARS)
    return words[:1].upper() + words[1:]


def subject(knob: Knob, members: Sequence[Member]) -> str:
    """ "KL coefficient at 1", "Algorithm grpo"; a plain list of arms has labels alone."""
    labels = listed([label_of(member) for member in members])
    if knob.name == PLAIN_LIST:
        return labels
    return f"{knob_words(knob)} at {labels}" if knob.is_ordered else f"{knob_words(knob)} {labels}"


def place(knob: Knob, member: Member) -> str:
    """ "at 0.02", "with grpo": where a number was found."""
    return f"{'at' if knob.is_ordered else 'with'} {label_of(member)}"
