"""Search for groups of a run: by their outlines, and by a text in the files.

Contract: `choose` answers within its time budget. All outlines are tested; a text is searched file by file, newest step
first. The hits of each file are remembered for the next call with that text, so turning pages, changing other filters
and continuing after the budget ran out are cheap. A text matches a message of the problem, its answer, its id or a
completion, ignoring case (`str.lower` of both).
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from groupwise.runs import RunReadError
from groupwise.runs.files import parse_object
from groupwise.web.dashboard.group_outline import GroupOutline, completions_of
from groupwise.web.dashboard.index import FileIndex, IndexEntry, Kind, RunIndex, open_as_indexed
from groupwise.web.dashboard.tail import Identity

Sort = Literal["newest", "oldest", "spread", "highest", "lowest"]
SORTS: tuple[Sort, ...] = get_args(Sort)
Where = Literal["completion", "prompt", "answer", "problem_id"]

MAX_REMEMBERED_TEXTS = 16
CONTEXT_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Wanted:
    """The filters of groups. Empty and None: anything."""

    kind: Kind = "train"
    text: str = ""
    problem_id: str = ""
    verdicts: tuple[str, ...] = ()
    """Any rollout has one of these; the same holds for finishes."""
    finishes: tuple[str, ...] = ()
    has_signal: bool | None = None
    stages: tuple[str, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    min_reward: float | None = None
    """Lower bound of the mean reward."""
    max_reward: float | None = None


@dataclass(frozen=True, slots=True)
class FoundGroup:
    file: FileIndex
    entry: IndexEntry


@dataclass(frozen=True, slots=True)
class Chosen:
    groups: tuple[FoundGroup, ...]
    """All matching groups, in order."""
    searched_share: float
    """Share of the bytes searched; below 1 if the time ran out."""


@dataclass(frozen=True, slots=True)
class Match:
    where: Where
    rollout: int | None
    before: str
    text: str
    after: str


class Searches:
    """The texts searched in a run, with their hits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._texts: OrderedDict[str, dict[tuple[Kind, int], tuple[Identity, frozenset[int]]]] = OrderedDict()

    def choose(self, index: RunIndex, wanted: Wanted, sort: Sort, budget_s: float) -> Chosen:
        deadline = self._clock() + budget_s
        files = [file for file in index.files(wanted.kind) if _is_in_steps(file.step, wanted)]
        passing = [(file, [entry for entry in file.entries if _passes(entry.outline, wanted)]) for file in files]
        passing = [(file, entries) for file, entries in passing if entries]
        if not wanted.text:
            return Chosen(_in_order(passing, sort), 1.0)
        matching, done_bytes = [], 0
        for file, entries in passing:
            hits = self._hits(file, wanted.text.lower(), is_late=self._clock() > deadline)
            if hits is None:
                continue
            done_bytes += file.identity.size_bytes
            matching.append((file, [entry for entry in entries if entry.line in hits]))
        total_bytes = sum(file.identity.size_bytes for file, _ in passing)
        return Chosen(_in_order(matching, sort), done_bytes / total_bytes if total_bytes else 1.0)

    def _hits(self, file: FileIndex, text: str, is_late: bool) -> frozenset[int] | None:
        """Return the groups of a file that contain the text; None if they are unknown and the time is up."""
        key = (file.kind, file.step)
        with self._lock:
            known = self._texts.setdefault(text, {})
            self._texts.move_to_end(text)
            while len(self._texts) > MAX_REMEMBERED_TEXTS:
                self._texts.popitem(last=False)
            remembered = known.get(key)
        if remembered is not None and remembered[0] == file.identity:
            return remembered[1]
        if is_late:
            return None
        try:
            hits = frozenset(search_file(file, text))
        except RunReadError:
            # Rewritten since it was indexed: the next call sees the new file.
            return frozenset()
        with self._lock:
            known[key] = (file.identity, hits)
        return hits


def search_file(file: FileIndex, text: str) -> Iterator[int]:
    """Yield the numbers of the groups that contain `text`, which is in lower case."""
    with open_as_indexed(file) as data:
        for entry in file.entries:
            if any(text in part for part in entry.outline.problem_texts):
                yield entry.line
                continue
            data.seek(entry.offset)
            line = data.read(entry.num_bytes)
            if any(text in completion.lower() for completion in completions_of(line, entry.outline)):
                yield entry.line


def _passes(outline: GroupOutline, wanted: Wanted) -> bool:
    """Return whether a group passes all filters except for steps and text. Without a mean it fails any bound of it."""
    mean, low, high = outline.mean_reward, wanted.min_reward, wanted.max_reward
    return (
        wanted.problem_id in ("", outline.problem_id)
        and (not wanted.verdicts or not set(wanted.verdicts).isdisjoint(outline.verdicts))
        and (not wanted.finishes or not set(wanted.finishes).isdisjoint(outline.finishes))
        and wanted.has_signal in (None, outline.has_signal)
        and (not wanted.stages or outline.stage in wanted.stages)
        and (low is None or (mean is not None and mean >= low))
        and (high is None or (mean is not None and mean <= high))
    )


def find_match(line: bytes, outline: GroupOutline, text: str) -> Match | None:
    """Return the first match of `text` in a group, completions before the problem."""
    for where, rollout, content in _places(line, outline):
        if around := _around(content, text):
            return Match(where, rollout, *around)
    return None


def _places(line: bytes, outline: GroupOutline) -> Iterator[tuple[Where, int | None, str]]:
    for number, completion in enumerate(completions_of(line, outline)):
        yield "completion", number, completion
    if table := parse_object(line):
        problem = table["problem"]
        yield from (("prompt", None, str(message["content"])) for message in problem["messages"])
        yield "answer", None, str(problem["answer"])
        yield "problem_id", None, str(problem["id"])


def _around(content: str, text: str) -> tuple[str, str, str] | None:
    lowered, sought = content.lower(), text.lower()
    position = lowered.find(sought)
    if position < 0:
        return None
    start, end = position, position + len(sought)
    if len(lowered) != len(content):
        start, end = _original_position(content, start), _original_position(content, end)
    before = content[max(0, start - CONTEXT_CHARACTERS) : start]
    return before, content[start:end], content[end : end + CONTEXT_CHARACTERS]


def _original_position(content: str, position: int) -> int:
    """Return the position in `content` of a position in `content.lower()`: the letter İ becomes two."""
    passed = 0
    for number, letter in enumerate(content):
        if passed >= position:
            return number
        passed += len(letter.lower())
    return len(content)


def _is_in_steps(step: int, wanted: Wanted) -> bool:
    is_late_enough = wanted.first_step is None or step >= wanted.first_step
    return is_late_enough and (wanted.last_step is None or step <= wanted.last_step)


def _in_order(found: Sequence[tuple[FileIndex, list[IndexEntry]]], sort: Sort) -> tuple[FoundGroup, ...]:
    """Sort groups. Files come newest first, their groups in file order; ties keep that order."""
    groups = [FoundGroup(file, entry) for file, entries in found for entry in entries]
    if sort == "oldest":
        groups.sort(key=lambda group: (group.file.step, group.entry.line))
    elif sort != "newest":
        name, sign = {"spread": ("spread", -1), "highest": ("mean_reward", -1), "lowest": ("mean_reward", 1)}[sort]

        def rank(group: FoundGroup) -> float:
            value = getattr(group.entry.outline, name)
            return math.inf if value is None else sign * value

        groups.sort(key=rank)
    return tuple(groups)
