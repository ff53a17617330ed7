"""Labels that people give to chains, merged from the page's export into `audit/labels.jsonl` of the run directory.

The file in the run directory is only appended to. Of several labels of one chain the newest by its own time counts, and
of equal times the later line; merging a file twice changes nothing. A label with neither answer nor note withdraws the
label. A file that cannot be used raises `LabelError` with the key, the value and the fix, and nothing is written.

`agreement` gives the share of labelled chains whose verdict people call right. "Unsure" counts on neither side. Chains
are sampled evenly over the verdicts, not in proportion to them, so each verdict has its own share beside the overall
one. A label whose chain the run no longer has, or has with other text, is skipped and counted.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from groupwise.audit.survey import Chain, Source, groups_at, make_chain
from groupwise.base.outside import file_bytes, json_value
from groupwise.base.stats import wilson_interval
from groupwise.runs.files import append_line, encode_line, read_lines, repair_tail, writing
from groupwise.runs.reader import Run
from groupwise.types import Verdict

FOLDER = "audit"
LABELS = "labels.jsonl"
FORMAT = "groupwise-audit-labels/1"
ANSWERS = ("right", "wrong", "unsure")
MAX_FILE_BYTES = 64 * 2**20
MAX_NOTE_CHARS = 10_000

_CHAIN_ID = re.compile(r"(train|held_out)-([0-9]{1,9})-([0-9]{1,9})-([0-9]{1,9})-[0-9a-f]{12}")


class LabelError(ValueError):
    """A file of labels that cannot be used."""


@dataclass(frozen=True, slots=True)
class Label:
    chain: str
    verdict: str | None
    """Is the verdict right? One of `ANSWERS`, or None for no answer."""
    reasoning: str | None
    """Is the reasoning sound? One of `ANSWERS`, or None for no answer."""
    note: str
    time: str
    """When the label was given: ISO 8601 with a zone."""

    @property
    def place(self) -> tuple[Source, int, int, int]:
        """(source, step, group number, rollout number), from the chain's id."""
        source, *numbers, _ = self.chain.rsplit("-", 4)
        step, group_number, number = map(int, numbers)
        return cast(Source, source), step, group_number, number

    @property
    def moment(self) -> datetime.datetime:
        return datetime.datetime.fromisoformat(self.time)


def read_labels(run_dir: Path) -> dict[str, Label]:
    """Return the current labels by chain, without those that were withdrawn."""
    labels = _read_all(run_dir)
    return {chain: label for chain, label in labels.items() if label.verdict or label.reasoning or label.note}


def merge_labels(run_dir: Path, file: Path) -> int:
    """Merge the labels of an exported file into the run directory; return the number of new ones."""
    run = Run(run_dir)
    newest = _read_all(run_dir)
    fresh = []
    for label in _read_export(file, run.name):
        if label.chain not in newest or label.moment > newest[label.chain].moment:
            newest[label.chain] = label
            fresh.append(label)
    if fresh:
        path = run.path / FOLDER / LABELS
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            repair_tail(path)
            append_line(path, b"".join(encode_line(asdict(label)) for label in fresh), fsync=True)
    return len(fresh)


def _read_all(run_dir: Path) -> dict[str, Label]:
    path = Path(run_dir) / FOLDER / LABELS
    newest: dict[str, Label] = {}
    for number, table in read_lines(path):
        label = _label(table, f"{path}, line {number}")
        if label.chain not in newest or label.moment >= newest[label.chain].moment:
            newest[label.chain] = label
    return newest


def _read_export(file: Path, run_name: str) -> list[Label]:
    try:
        table = json_value(file_bytes(file, MAX_FILE_BYTES))
    except OSError as error:
        why = error.strerror or error
        raise LabelError(f"could not read {file}: {why}; give the file that the page exported") from error
    except ValueError as error:
        raise LabelError(f"{file} is not JSON ({error}): export the labels again from the page") from error
    found = table if isinstance(table, dict) else {}
    for key, expected in (("format", FORMAT), ("run", run_name)):
        if found.get(key) != expected:
            why = f"{key} = {found.get(key)!r:.80}, expected {expected!r}"
            raise LabelError(f"{file}: {why}; give the file that this run's page exported")
    labels = found.get("labels")
    if not isinstance(labels, list):
        raise LabelError(f"{file}: labels = {labels!r:.80}, expected a list")
    return [_label(entry, f"{file}, labels[{number}]") for number, entry in enumerate(labels)]


def _label(table: Any, place: str) -> Label:
    if not isinstance(table, Mapping):
        raise LabelError(f"{place}: {table!r:.80}, expected an object")
    chain, note, time = table.get("chain"), table.get("note", ""), table.get("time")
    if not isinstance(chain, str) or not _CHAIN_ID.fullmatch(chain):
        raise LabelError(f"{place}: chain = {chain!r:.80}, expected an id from the page")
    for key in ("verdict", "reasoning"):
        if table.get(key) is not None and table[key] not in ANSWERS:
            raise LabelError(f"{place}: {key} = {table[key]!r:.80}, expected {', '.join(map(repr, ANSWERS))} or null")
    if not isinstance(note, str) or len(note) > MAX_NOTE_CHARS:
        raise LabelError(f"{place}: note = {note!r:.80}, expected a text of at most {MAX_NOTE_CHARS} characters")
    if not isinstance(time, str) or not _has_zone(time):
        raise LabelError(f"{place}: time = {time!r:.80}, expected ISO 8601 with a zone, as in 2030-01-31T12:00:00Z")
    return Label(chain, table.get("verdict"), table.get("reasoning"), note, time)


def _has_zone(time: str) -> bool:
    try:
        return datetime.datetime.fromisoformat(time).tzinfo is not None
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class AgreementShare:
    name: str
    """As in "verdict right: all" or "reasoning sound: correct"."""
    agreed: int
    total: int
    low: float
    high: float
    """`low` to `high` is the 95 % interval (Wilson)."""

    @property
    def share(self) -> float:
        return self.agreed / self.total if self.total else 0.0


class Disagreement(NamedTuple):
    chain: Chain
    label: Label


@dataclass(frozen=True, slots=True)
class Agreement:
    shares: tuple[AgreementShare, ...]
    """All verdicts, then each verdict, then the reasoning; only those with labels."""
    disagreements: tuple[Disagreement, ...]
    """Chains whose verdict a person calls wrong."""
    num_labels: int
    num_unsure: int
    num_lost: int
    """Labels of chains that the run no longer has."""

    def to_json(self) -> dict[str, Any]:
        return {
            "shares": [{**asdict(share), "share": share.share} for share in self.shares],
            "disagreements": [
                {"chain": chain.to_json(), "label": asdict(label)} for chain, label in self.disagreements
            ],
            **{name: getattr(self, name) for name in ("num_labels", "num_unsure", "num_lost")},
        }


def agreement(run_dir: Path) -> Agreement:
    labels = read_labels(run_dir)
    chains = _find_chains(Run(run_dir), labels)
    held = [(chains[name], label) for name, label in labels.items() if name in chains]
    shares = [_share("verdict right: all", [label.verdict for _, label in held])]
    for verdict in Verdict:
        answers = [label.verdict for chain, label in held if chain.verdict is verdict]
        shares.append(_share(f"verdict right: {verdict.value}", answers))
    for verdict in (Verdict.CORRECT, Verdict.WRONG):
        answers = [label.reasoning for chain, label in held if chain.verdict is verdict]
        shares.append(_share(f"reasoning sound: {verdict.value}", answers))
    return Agreement(
        shares=tuple(share for share in shares if share.total),
        disagreements=tuple(Disagreement(chain, label) for chain, label in held if label.verdict == "wrong"),
        num_labels=len(labels),
        num_unsure=sum(label.verdict == "unsure" for _, label in held),
        num_lost=len(labels) - len(held),
    )


def _share(name: str, answers: list[str | None]) -> AgreementShare:
    agreed, total = answers.count("right"), answers.count("right") + answers.count("wrong")
    return AgreementShare(name, agreed, total, *wilson_interval(agreed, total))


def _find_chains(run: Run, labels: Mapping[str, Label]) -> dict[str, Chain]:
    """Return the labelled chains that the run still has with the same text, by id."""
    found: dict[str, Chain] = {}
    groups = cache(partial(groups_at, run))
    for name, label in labels.items():
        source, step, group_number, number = label.place
        members = groups(source, step)
        if group_number < len(members) and number < len(members[group_number].scores):
            chain = make_chain(source, step, group_number, members[group_number], number)
            if chain.id == name:
                found[name] = chain
    return found
