"""The record of a finding, and the phrases that findings are made of. Nothing here compares anything."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.base.json_values import plain
from groupwise.base.text_layout import percent, shortened
from groupwise.sweeps.arm_scores import ArmScore
from groupwise.sweeps.spec import PLAIN_LIST
from groupwise.sweeps.sweep_records import Arm, Knob

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
    """Names of the arms that it is about."""
    figures: Mapping[str, Any]
    """The numbers behind it, to be checked against the run directories."""

    def to_json(self) -> dict[str, Any]:
        return dict(plain(self))


def percent_range(shares: Iterable[float]) -> str:
    """Return "95.8 to 97.2 %", or one number if both ends read the same."""
    known = list(shares)
    low, high = percent(min(known)), percent(max(known))
    return high if low == high else f"{low.removesuffix(' %')} to {high}"


def points_range(shares: Iterable[float]) -> str:
    return percent_range(shares).removesuffix(" %") + " points"


def rounded(value: float) -> str:
    """Format a quantity that is not a share, with three digits."""
    if not math.isfinite(value):
        return "∞"
    return f"{value:.3g}".replace("-", "−")


def count(number: int, noun: str) -> str:
    word = _NUMBERS[number] if number < len(_NUMBERS) else str(number)
    return f"{word} {noun}" + ("" if number == 1 else "s")


def seeds_words(arms: Sequence[ArmScore]) -> str:
    """Return "three seeds" or "two to three seeds". One seed is a single sample, and the words say so."""
    counts = sorted({len(arm.runs) for arm in arms})
    if counts == [1]:
        return "one seed is a single sample"
    most = count(counts[-1], "seed")
    return most if len(counts) == 1 else f"{count(counts[0], 'seed').split()[0]} to {most}"


def listed(words: Sequence[str]) -> str:
    """Join words: "a", "a and b", "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def short_label(arm: Arm) -> str:
    return shortened(arm.label, MAX_LABEL_CHARS)


def knob_words(knob: Knob) -> str:
    """Return the knob's name as the start of a sentence. Names are safe as folders and have no spaces."""
    words = shortened(knob.name.replace("_", " ").replace("-", " "), MAX_LABEL_CHARS)
    return words[:1].upper() + words[1:]


def subject(knob: Knob, arms: Sequence[Arm]) -> str:
    """Return "KL coefficient at 1" or "Algorithm grpo"; a plain list of arms has labels only."""
    labels = listed([short_label(arm) for arm in arms])
    if knob.name == PLAIN_LIST:
        return labels
    return f"{knob_words(knob)} at {labels}" if knob.is_ordered else f"{knob_words(knob)} {labels}"


def place(knob: Knob, arm: Arm) -> str:
    """Return "at 0.02" or "with grpo"."""
    return f"{'at' if knob.is_ordered else 'with'} {short_label(arm)}"
