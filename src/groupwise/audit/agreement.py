"""Agreement of people with the verifier: the share of labelled chains whose verdict they call right.

"Unsure" counts on neither side. Chains are sampled evenly over the verdicts, not in proportion to them, so each verdict
has its own share beside the overall one. A label whose chain the run no longer has, or has with other text, is skipped
and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from groupwise.audit.chains import Chain, Source, make_chain
from groupwise.audit.labels import Label, read_labels, split_chain_id
from groupwise.base.stats import wilson_interval
from groupwise.runs.reader import Run
from groupwise.types import ScoredGroup, Verdict


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
    chains = find_chains(Run(run_dir), labels)
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


def find_chains(run: Run, labels: Mapping[str, Label]) -> dict[str, Chain]:
    """Return the labelled chains that the run still has with the same text, by id."""
    found: dict[str, Chain] = {}
    groups: dict[tuple[str, int], list[ScoredGroup]] = {}
    for name in labels:
        source, step, group_number, number = split_chain_id(name) or ("", 0, 0, 0)
        if (source, step) not in groups:
            groups[source, step] = run.rollouts(step) if source == "train" else run.eval_rollouts(step)
        members = groups[source, step]
        if group_number < len(members) and number < len(members[group_number].scores):
            chain = make_chain(cast(Source, source), step, group_number, members[group_number], number)
            if chain.id == name:
                found[name] = chain
    return found
