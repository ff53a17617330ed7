"""No completion buys itself a failed score: `error` and `timed_out` would keep a wrong answer out of the loss."""

import pytest

from groupwise.rewards.code.score_code import shared_sandbox
from groupwise.sandbox import SandboxUnavailable
from groupwise.scoring.scorer import PooledScorer, ScoreFunction
from groupwise.tasks import TASKS, task_class
from groupwise.types import Verdict
from groupwise.workers import Limits
from tests.verifier_cases import FORMS, SAME_VERIFIER, TEXTS, Case, expensive_completions, verifier_cases

LIMITS = Limits()
NAMES = (
    *("arithmetic", "countdown", "format-copy", "gsm8k", "jsonl exact", "jsonl number", "math", "math set"),
    *("math-hard", "json-schema", "sql-jsonl", "code-jsonl"),
)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return verifier_cases(tmp_path_factory.mktemp("cases"))


def _skip_without_isolation(case: Case) -> None:
    if case.form == "python":
        try:
            shared_sandbox("auto").run("")
        except SandboxUnavailable as error:
            pytest.skip(f"no isolation on this machine: {error}")


def test_every_task_has_a_case(cases: dict[str, Case]) -> None:
    assert tuple(cases) == NAMES
    assert {name.partition(" ")[0] for name in cases} | set(SAME_VERIFIER) == set(TASKS)
    for name, other in SAME_VERIFIER.items():
        assert task_class(name).score is task_class(other).score


@pytest.mark.parametrize("name", NAMES)
def test_expensive_completions_are_scored(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    _skip_without_isolation(case)
    completions = expensive_completions(case)
    with PooledScorer(ScoreFunction(case.task, "arithmetic"), 2, LIMITS) as scorer:
        (gold,) = scorer.scores(scorer.submit(case.problem, [case.gold]))
        assert gold.verdict is Verdict.CORRECT
        answers = scorer.timed_scores(scorer.submit(case.problem, list(completions.values())))
    failed = {what: score for what, (score, _) in zip(completions, answers, strict=True) if score.is_error}
    assert failed == {}
    slow = {what: s for what, (_, s) in zip(completions, answers, strict=True) if s > LIMITS.seconds / 2}
    assert slow == {}


def test_the_scorer_waits_as_long_as_a_program_may_take(cases: dict[str, Case]) -> None:
    case = cases["code-jsonl"]
    _skip_without_isolation(case)
    with PooledScorer(ScoreFunction(case.task), 1, Limits(wall_seconds=1.0)) as scorer:
        completions = [FORMS["python"].format(TEXTS["sleeper"]), case.gold]
        sleeper, gold = scorer.scores(scorer.submit(case.problem, completions))
    assert (sleeper.verdict, gold.verdict) == (Verdict.WRONG, Verdict.CORRECT)
    assert "timed_out" in sleeper.detail
