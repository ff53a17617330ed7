"""Contamination: problems of an evaluation that are, or nearly are, in a training set. Does not import torch.

Exact: the same words in the same order, ignoring case, spacing and punctuation. Near: most of a problem's runs of
SHINGLE_WORDS words occur in one training problem. Runs that many problems share (an instruction, a template) are not
counted, so a problem of only such runs is not near to anything.

Time is linear in the total text, because only problems that share a rare run are compared. Translations and paraphrases
are not found.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from groupwise.base.text_layout import shortened
from groupwise.types import Problem

SHINGLE_WORDS = 5
NEAR_SHARE = 0.8
"""Share of an evaluation problem's rare runs that one training problem must contain."""
MAX_SHARED = 0.01
"""A run in more than this share of the evaluation's problems, or of the training problems, is common."""
MIN_SHARED = 4
"""A run in at most this many problems is never common."""
MIN_RARE = 5
"""A problem needs this many rare runs to be near to another."""
SHOWN_CHARS = 160

# Signs count: "59 + 28" and "59 - 28" are two problems. Punctuation, brackets and dollars do not.
_WORD = re.compile(r"\w+|[-+*/^=<>|%]")


@dataclass(frozen=True, slots=True)
class Overlap:
    kind: Literal["exact", "near"]
    problem_id: str
    """Id of the evaluation's problem."""
    training_id: str
    share: float
    """Share of the problem's rare runs that the training problem contains; 1 if exact."""
    problem: str
    """Beginning of its text."""
    training: str


@dataclass(frozen=True, slots=True)
class Contamination:
    num_problems: int
    num_training: int
    overlaps: tuple[Overlap, ...]
    """The closest training problem of each problem of the evaluation, if any."""

    @property
    def num_exact(self) -> int:
        return sum(overlap.kind == "exact" for overlap in self.overlaps)

    @property
    def num_near(self) -> int:
        return len(self.overlaps) - self.num_exact

    def to_json(self) -> dict[str, Any]:
        counts = {"problems": self.num_problems, "training": self.num_training}
        found = {"exact": self.num_exact, "near": self.num_near}
        return counts | found | {"overlaps": [asdict(overlap) for overlap in self.overlaps]}

    def __str__(self) -> str:
        return (
            f"{self.num_exact:,} of {self.num_problems:,} problems are training problems word for word, and "
            f"{self.num_near:,} nearly so ({self.num_training:,} training problems)"
        )


def find_contamination(problems: Sequence[Problem], training: Sequence[Problem]) -> Contamination:
    runs, copies = [], defaultdict(list)
    for index, problem in enumerate(problems):
        words = _words(problem)
        runs.append(_runs(words))
        copies[" ".join(words)].append(index)
    known = set().union(*runs)
    # By text: the training problem, and its runs that occur in any problem.
    candidates: dict[str, tuple[Problem, set[str]]] = {}
    for candidate in training:
        words = _words(candidate)
        candidates.setdefault(" ".join(words), (candidate, _runs(words) & known))
    # An evaluation of a few problems does not show its template; the training problems do.
    common = _common(runs) | _common([shared for _, shared in candidates.values()])
    num_rare = [len(entry - common) for entry in runs]
    holders: dict[str, list[int]] = defaultdict(list)
    for index, entry in enumerate(runs):
        for run in entry - common:
            holders[run].append(index)
    closest: dict[int, tuple[float, bool, Problem]] = {}
    for text, (candidate, shared) in candidates.items():
        counts = Counter(index for run in shared for index in holders.get(run, ()))
        found = [(index, counts[index] / num_rare[index], False) for index in counts if num_rare[index] >= MIN_RARE]
        found += [(index, 1.0, True) for index in copies.get(text, ())]
        for index, share, is_exact in found:
            if share >= NEAR_SHARE and (index not in closest or (share, is_exact) > closest[index][:2]):
                closest[index] = (share, is_exact, candidate)
    overlaps = tuple(_overlap(problems[index], *closest[index]) for index in sorted(closest))
    return Contamination(len(problems), len(training), overlaps)


def _common(runs: Sequence[set[str]]) -> set[str]:
    counts = Counter(run for entry in runs for run in entry)
    most = max(MIN_SHARED, MAX_SHARED * len(runs))
    return {run for run, count in counts.items() if count > most}


def _words(problem: Problem) -> tuple[str, ...]:
    return tuple(word for message in problem.messages for word in _WORD.findall(message.content.lower()))


def _runs(words: tuple[str, ...]) -> set[str]:
    """Return all runs of SHINGLE_WORDS words. A shorter text is one run."""
    count = max(1, len(words) - SHINGLE_WORDS + 1)
    return {" ".join(words[start : start + SHINGLE_WORDS]) for start in range(count)}


def _overlap(problem: Problem, share: float, is_exact: bool, training: Problem) -> Overlap:
    kind: Literal["exact", "near"] = "exact" if is_exact else "near"
    shown, shown_training = (shortened(one.question, SHOWN_CHARS) for one in (problem, training))
    return Overlap(kind, problem.id, training.id, share, shown, shown_training)
