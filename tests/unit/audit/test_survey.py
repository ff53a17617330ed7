"""A whole audit of runs whose faults are known."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupwise.audit.audit_checks import CHECKS
from groupwise.audit.survey import Audit, AuditError, Reservoir, audit_run, spread_evenly
from groupwise.base.stats import wilson_interval
from groupwise.runs import RunReadError
from groupwise.types import Verdict

C, W, U, E, T = Verdict.CORRECT, Verdict.WRONG, Verdict.UNPARSED, Verdict.ERROR, Verdict.TIMED_OUT
PROMPT = "A farmer has 12 cows and sells 5 of them on the market. How many cows does he keep in the end?"
GOOD = "He had 12 cows and sold 5, and 12 - 5 = 7. So he keeps \\boxed{7}."
LONG = "Whatever the question may be, the answer that I always like to give to it is this one: \\boxed{7}."

MakeRun = Callable[..., Path]


def found(audit: Audit) -> dict[str, tuple[int, int]]:
    return {finding.name: (finding.count, finding.total) for finding in audit.findings}


def test_every_check_finds_its_fault_and_no_other(make_run: MakeRun) -> None:
    faults = {
        "false_arithmetic": [("He has 12 - 5 = 8, no matter: \\boxed{7}", C)],
        "no_reasoning": [("\\boxed{7}", C)],
        "hedging": [("It is 12 - 5 = 7, but perhaps \\boxed{8}, else \\boxed{7}.", C)],
        "prompt_copied": [(f"{PROMPT} I do not know what to say to this at all.", U)],
        "goes_on": [(f"{GOOD} Human: here is another question about cows and hens for you.", C)],
        "identical": [(GOOD, C), (GOOD, C)],
        "verifier_error": [(GOOD, E)],
        "verifier_timed_out": [(GOOD, T)],
    }
    for name, texts in faults.items():
        counts = found(audit_run(make_run({1: [("cows", PROMPT, texts)]}, name)))
        assert {check: count for check, (count, _) in counts.items() if count} == {name: len(texts)}
    counts = found(audit_run(make_run({1: [("cows", PROMPT, [("\\boxed{12}", C)])]}, "restated")))
    assert {check: count for check, (count, _) in counts.items() if count} == {"restated": 1, "no_reasoning": 1}
    assert {check.name for check in CHECKS} == {*faults, "restated", "same_for_other_problem"}


def test_a_good_run_has_no_findings(make_run: MakeRun) -> None:
    texts = [(GOOD, C), ("I think 12 + 5 = 17 is what he keeps then: \\boxed{17}", W), ("I do not know.", U)]
    audit = audit_run(make_run({1: [("cows", PROMPT, texts)]}))
    assert {name for name, (count, _) in found(audit).items() if count} == set()
    assert (audit.num_rollouts, audit.num_problems, audit.first_step, audit.last_step) == (3, 1, 1, 1)
    assert audit.verdicts == {"correct": 1, "wrong": 1, "unparsed": 1, "error": 0, "timed_out": 0}


def test_populations_and_intervals(make_run: MakeRun) -> None:
    texts = [(GOOD, C), ("12 - 5 = 8. \\boxed{7}", C), ("\\boxed{7}", C), ("12 - 5 = 9: \\boxed{9}", W), ("hm", U)]
    audit = audit_run(make_run({3: [("cows", PROMPT, texts)]}))
    counts = found(audit)
    assert counts["false_arithmetic"] == (1, 2)  # the wrong one is not asked, nor is the one without arithmetic
    assert counts["no_reasoning"] == (1, 3)
    assert counts["hedging"] == (0, 4)
    assert counts["identical"] == (0, 5)
    finding = audit.findings[0]
    assert (finding.low, finding.high) == wilson_interval(1, 2)
    (example,) = finding.examples
    assert (example.step, example.problem_id, example.rollout_number, example.verdict) == (3, "cows", 1, "correct")
    assert example.evidence == "12 - 5 = 8"
    assert "12 - 5 = 8" in example.excerpt


def test_the_same_text_for_other_problems_counts_all_of_them(make_run: MakeRun) -> None:
    groups = {1: [("a", "1?", [(LONG, C)])], 2: [("a", "1?", [(LONG, C)]), ("b", "2?", [(LONG, W), (GOOD + LONG, W)])]}
    counts = found(audit_run(make_run({**groups, 3: [("c", "3?", [(LONG, W)])]}, "shared")))
    assert counts["same_for_other_problem"] == (4, 5)
    counts = found(audit_run(make_run({1: groups[1], 2: groups[1]}, "one problem")))
    assert counts["same_for_other_problem"] == (0, 2)


def test_the_same_seed_gives_the_same_audit(make_run: MakeRun) -> None:
    steps = {step: [("cows", PROMPT, [(f"No {step}.{i}: \\boxed{{7}}", C) for i in range(8)])] for step in range(1, 9)}
    run_dir = make_run(steps)
    one, two, other = (audit_run(run_dir, sample=10, seed=seed) for seed in (3, 3, 4))
    assert one == two
    assert {chain.id for chain in one.chains} != {chain.id for chain in other.chains}
    assert json.loads(json.dumps(one.to_json(), allow_nan=False))["chains"][0]["id"] == one.chains[0].id


def test_the_sample_is_spread_over_the_verdicts(make_run: MakeRun) -> None:
    texts = [*((f"right {i}", C) for i in range(40)), *((f"wrong {i}", W) for i in range(40)), ("odd", E)]
    audit = audit_run(make_run({1: [("cows", PROMPT, texts)]}), sample=11)
    assert Counter(chain.verdict for chain in audit.chains) == {C: 5, W: 5, E: 1}
    assert len({chain.id for chain in audit.chains}) == 11
    places = [list(Verdict).index(chain.verdict) for chain in audit.chains]
    assert places not in (sorted(places), sorted(places, reverse=True))  # mixed
    assert len(audit_run(make_run({1: [("cows", PROMPT, texts[:3])]}, "few"), sample=11).chains) == 3
    assert audit_run(make_run({1: [("cows", PROMPT, texts[:3])]}, "none"), sample=0).chains == ()


def test_held_out_rollouts_can_be_audited(make_run: MakeRun) -> None:
    run_dir = make_run({5: [("cows", PROMPT, [("\\boxed{7}", C)])]}, folder="eval_rollouts")
    audit = audit_run(run_dir, source="held_out")
    assert audit.chains[0].id.startswith("held_out-5-0-0-")
    with pytest.raises(AuditError, match="keeps no rollouts"):
        audit_run(run_dir)


def test_the_id_names_place_and_text(make_run: MakeRun) -> None:
    one = audit_run(make_run({1: [("cows", PROMPT, [("a", C)])]}, "one")).chains[0]
    two = audit_run(make_run({1: [("cows", PROMPT, [("b", C)])]}, "two")).chains[0]
    assert one.id.rpartition("-")[0] == two.id.rpartition("-")[0] == "train-1-0-0"
    assert one.id != two.id


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sample": -1}, "sample = -1"),
        ({"source": "test"}, "source = 'test'"),
    ],
)
def test_refusals(make_run: MakeRun, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AuditError, match=message):
        audit_run(make_run({1: []}), **changes)


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunReadError, match="no run at"):
        audit_run(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("total", "available", "expected"),
    [
        (30, [30, 30, 30], [10, 10, 10]),
        (10, [100, 2, 0], [8, 2, 0]),
        (2, [5, 5, 5], [1, 1, 0]),
        (9, [1, 1], [1, 1]),
        (0, [4], [0]),
        (5, [], []),
        (11, [40, 40, 1], [5, 5, 1]),
    ],
)
def test_spread_evenly(total: int, available: list[int], expected: list[int]) -> None:
    assert spread_evenly(total, available) == expected


def test_a_reservoir_draws_evenly() -> None:
    counts: Counter[int] = Counter()
    for seed in range(2000):
        reservoir: Reservoir[int] = Reservoir(3, str(seed))
        for item in range(10):
            reservoir.offer(lambda item=item: item)  # type: ignore[misc]
        assert reservoir.items() == sorted(reservoir.items())
        counts.update(reservoir.items())
    # 600 expected of each; the standard deviation is 20.
    assert all(500 < counts[item] < 700 for item in range(10))
