"""How fast completions are scored through the worker pool, and what bombs and hung checks cost the others.

    python benchmarks/pool_bench.py --data DIR             # DIR has gsm8k/ and math/ with train.jsonl and test.jsonl

The completions are those of math_bench.py, grouped by problem as rollouts are. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from math_bench import Case, load_problems, mixed_cases, wrong_latex_cases

from groupwise.scoring.scorer import PooledScorer, ScoreFunction
from groupwise.tasks.task import Task
from groupwise.types import Problem, Score
from groupwise.workers import Limits

BOMBS = (
    "9^{9^{9^{9}}}",
    "(10^9)!",
    "\\binom{10^9}{5 \\cdot 10^8}",
    "\\sqrt{10^{5000}+1}",
    "\\sum_{n=1}^{10^9} n",
    "\\{" + ",".join(map(str, range(5000))) + "\\}",
    "(" * 1000 + "1" + ")" * 1000,
    "$ " * 50_000,
)
HANG = "this check never ends"
DEADLINE_S = 1.0


@dataclass(frozen=True)
class Mixed:
    """GSM8K and MATH in one task, and a completion whose check never ends."""

    gsm8k: Task
    math: Task

    verifier: ClassVar[str] = "mixed/1"

    def problems(self, split: str) -> Sequence[Problem]:
        return []

    def score(self, problem: Problem, completion: str) -> Score:
        while completion == HANG:
            pass
        task = self.gsm8k if problem.id.startswith("gsm8k") else self.math
        return task.score(problem, completion)


def by_problem(cases: Sequence[Case]) -> list[tuple[Problem, list[str]]]:
    groups: dict[str, tuple[Problem, list[str]]] = {}
    for case in cases:
        groups.setdefault(case.problem.id, (case.problem, []))[1].append(case.completion)
    return list(groups.values())


def measure(scorer: PooledScorer, groups: Sequence[tuple[Problem, list[str]]]) -> tuple[float, Counter[str]]:
    verdicts: Counter[str] = Counter()
    started = time.perf_counter()
    tickets = [scorer.submit(problem, completions) for problem, completions in groups]
    for ticket in tickets:
        verdicts.update(score.verdict.value for score in scorer.scores(ticket))
    return time.perf_counter() - started, verdicts


def report(title: str, seconds: float, verdicts: Counter[str]) -> None:
    count = verdicts.total()
    shown = ", ".join(f"{number} {verdict}" for verdict, number in sorted(verdicts.items()))
    print(f"{title:<42}{count:>8}{seconds:>9.2f} s{count / seconds:>12,.0f}/s   {shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with gsm8k/ and math/")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    problems = load_problems(options.data)
    tasks = {problem.id.partition("-")[0]: task for task, problem in problems}
    # As a module of its own, so that workers can import it.
    from pool_bench import Mixed as importable

    function = ScoreFunction(importable(tasks["gsm8k"], tasks["math"]))
    groups = by_problem(mixed_cases(problems))
    wrong = by_problem(wrong_latex_cases(problems))

    def fresh() -> PooledScorer:
        scorer = PooledScorer(function, options.workers, Limits(seconds=DEADLINE_S))
        scorer.start()
        measure(scorer, groups[:20])  # modules and regular expressions are warm in each worker
        return scorer

    print(f"{options.workers} workers; caches cold at the start of each line")
    for title, chosen in (
        ("mixed GSM8K and MATH", groups),
        ("wrong LaTeX, all distinct", wrong),
        ("mixed, with 8 bombs in each of 100 groups", with_bombs(groups[:2000])),
    ):
        scorer = fresh()
        report(title, *measure(scorer, chosen))
        scorer.close()
    base = fresh()
    alone, _ = measure(base, groups[:2000])
    base.close()
    for num_hung in (1, 4):
        scorer = fresh()
        seconds, verdicts = measure(scorer, with_hung(groups[:2000], num_hung))
        report(f"2,000 groups, {num_hung} checks that never end", seconds, verdicts)
        each = (seconds - alone) * options.workers / num_hung
        print(f"{'':<42}deadline {DEADLINE_S:g} s; {alone:.2f} s without them: {each:.2f} s of a worker for each")
        scorer.close()
    hung_alone(function, options.workers, groups)


def hung_alone(function: ScoreFunction, workers: int, groups: Sequence[tuple[Problem, list[str]]]) -> None:
    """One hung check and one sound one after the other: how long until each is answered."""
    waits = defaultdict(list)
    with_limit = PooledScorer(function, workers, Limits(seconds=DEADLINE_S))
    with_limit.start()
    for problem, completions in groups[:5]:
        started = time.perf_counter()
        hung, sound = with_limit.submit(problem, [HANG]), with_limit.submit(problem, completions[:1])
        with_limit.scores(sound)
        waits["another check meanwhile"].append(time.perf_counter() - started)
        with_limit.scores(hung)
        waits["the check that never ends"].append(time.perf_counter() - started)
    with_limit.close()
    for title, seconds in waits.items():
        print(f"{title:<42}answered after {max(seconds):.3f} s at most, of 5")


def with_bombs(groups: Sequence[tuple[Problem, list[str]]]) -> list[tuple[Problem, list[str]]]:
    boxed = [f"So it is \\boxed{{{bomb}}}." for bomb in BOMBS]
    return [
        (problem, completions + boxed if index % 20 == 0 else completions)
        for index, (problem, completions) in enumerate(groups)
    ]


def with_hung(groups: Sequence[tuple[Problem, list[str]]], count: int) -> list[tuple[Problem, list[str]]]:
    every = len(groups) // count
    return [
        (problem, [*completions, HANG] if index % every == 0 and index // every < count else completions)
        for index, (problem, completions) in enumerate(groups)
    ]


if __name__ == "__main__":
    main()
