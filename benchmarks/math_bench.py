"""How fast and how right the math verifiers are, on completions made from GSM8K and MATH.

    python benchmarks/math_bench.py --data DIR             # DIR has gsm8k/ and math/ with train.jsonl and test.jsonl
    python benchmarks/math_bench.py --data DIR --agreement 3000

Prints checks per second of `Task.score` in one process, by class of completion, cold (no answer seen before) and again
with the caches filled; the same for a set of wrong LaTeX answers that are all distinct; and a table of the stages that
decided, with every case in which math-verify says otherwise. The set depends on the data and `--seed` alone.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from math_verify import parse, verify  # type: ignore[import-untyped]

from groupwise.rewards.math import equality, score_math
from groupwise.rewards.math.normalize import normalize
from groupwise.rewards.numbers import gold_number, parse_number
from groupwise.tasks import make_task
from groupwise.tasks.task import Task
from groupwise.types import Problem, Verdict


@dataclass(frozen=True, slots=True)
class Case:
    task: Task
    problem: Problem
    kind: str
    """right, respelled, other answer, off by one, perturbed, malformed, none."""
    answer: str
    """What is in the box; "" where there is none."""
    completion: str


def load_problems(data: Path) -> list[tuple[Task, Problem]]:
    """Every held-out problem of GSM8K and MATH with its task."""
    pairs = []
    for name in ("gsm8k", "math"):
        files = {"train": str(data / name / "train.jsonl"), "held_out": str(data / name / "test.jsonl")}
        task = make_task(name, files)
        pairs += [(task, problem) for problem in task.problems("held_out")]
    return pairs


def mixed_cases(problems: Sequence[tuple[Task, Problem]], seed: int = 0) -> list[Case]:
    """One case of each kind that can be made of each problem, in a random order that the seed fixes."""
    generator = random.Random(seed)
    cases = []
    for index, (task, problem) in enumerate(problems):
        gold = problem.answer
        other = problems[(index + 7) % len(problems)][1].answer
        answers = {
            "right": gold,
            "respelled": respell(gold, generator),
            "other answer": other if normalize(other) != normalize(gold) else "",
            "off by one": off_by_one(gold, generator),
            "perturbed": perturb(gold, generator),
        }
        reasoning = _reasoning(problem)
        for kind, answer in answers.items():
            if answer:
                cases.append(Case(task, problem, kind, answer, f"{reasoning}\n$\\boxed{{{answer}}}$"))
        cases.append(Case(task, problem, "malformed", "", f"{reasoning}\n$\\boxed{{{gold}"))
        cases.append(Case(task, problem, "none", "", reasoning))
    generator.shuffle(cases)
    return cases


def wrong_latex_cases(problems: Sequence[tuple[Task, Problem]], seed: int = 0) -> list[Case]:
    """Wrong answers to problems whose gold answer is LaTeX and no number; no pair (gold, answer) is there twice."""
    generator = random.Random(seed)
    latex = [(task, problem) for task, problem in problems if parse_number(normalize(problem.answer)) is None]
    seen: set[tuple[str, str]] = set()
    cases = []
    for index, (task, problem) in enumerate(latex):
        others = [latex[(index + step) % len(latex)][1].answer for step in (1, 5, 11)]
        for kind, answer in [
            ("perturbed", perturb(problem.answer, generator)),
            ("off by one", off_by_one(problem.answer, generator)),
            *(("other answer", other) for other in others),
        ]:
            pair = (problem.answer, answer)
            if answer and pair not in seen and normalize(answer) != normalize(problem.answer):
                seen.add(pair)
                cases.append(Case(task, problem, kind, answer, f"{_reasoning(problem)}\n$\\boxed{{{answer}}}$"))
    generator.shuffle(cases)
    return cases


def respell(gold: str, generator: random.Random) -> str:
    """Another way to write the same; "" where this knows none."""
    number = parse_number(gold)
    if number is not None:
        factor = generator.randrange(2, 9)
        spellings = [
            f"x = {gold}",
            f" {gold} ",
            f"\\frac{{{number.numerator * factor}}}{{{number.denominator * factor}}}",
        ]
        if number.denominator == 1:
            spellings += [f"{number.numerator}.0", f"{number.numerator:,}"]
        return generator.choice(spellings)
    sum_of_two = re.fullmatch(r"([0-9A-Za-z\\{}^ ]+?) ?\+ ?([0-9A-Za-z\\{}^ ]+)", gold)
    if sum_of_two and sum_of_two[1].count("{") == sum_of_two[1].count("}"):
        return f"{sum_of_two[2]} + {sum_of_two[1]}"
    if root := re.fullmatch(r"([2-9]) ?\\sqrt\{([0-9]+)\}", gold):
        return f"\\sqrt{{{int(root[1]) ** 2 * int(root[2])}}}"
    changed = gold.replace("\\frac", "\\dfrac").replace("(", "\\left( ").replace(")", " \\right)").replace(",", ", ")
    return changed if changed != gold and "\\left\\left" not in changed else ""


def off_by_one(gold: str, generator: random.Random) -> str:
    """One integer of the answer raised by one; "" where there is none."""
    places = list(re.finditer(r"(?<![0-9.,])[0-9]{1,12}(?![0-9.,])", gold))
    if not places:
        return ""
    place = generator.choice(places)
    return f"{gold[: place.start()]}{int(place[0]) + 1}{gold[place.end() :]}"


def perturb(gold: str, generator: random.Random) -> str:
    """One sign, function, bracket or letter of the answer changed; "" where there is none to change."""
    changes = [(r"\+", "-"), ("-", "+"), (r"\\sqrt", r"7\\sqrt"), (r"\\pi", r"\\pi^3"), (r"\[", "("), (r"\]", ")")]
    changes += [(r"\\sin", r"\\cos"), (r"\\cup", r"\\cap"), (r"\\infty", "0"), (r"\^2", "^3"), (r"\\frac", r"2\\frac")]
    changes += [(r"(?<![A-Za-z\\])x(?![A-Za-z])", "y"), (r"(?<![A-Za-z\\])i(?![A-Za-z])", "(-i)")]
    possible = [change for change in changes if re.search(change[0], gold)]
    if not possible:
        return ""
    pattern, new = generator.choice(possible)
    return re.sub(pattern, new, gold, count=1)


def _reasoning(problem: Problem) -> str:
    """The solution as published, up to its first answer."""
    return re.split(r"####|\\boxed|\\fbox", str(problem.meta["solution"]))[0]


def clear_caches() -> None:
    for function in (equality._judge, equality._read_gold, equality._gold_tree, score_math._gold_number, gold_number):
        function.cache_clear()


def measure(cases: Sequence[Case]) -> tuple[float, Counter[str]]:
    """CPU seconds per case, and the verdicts."""
    verdicts: Counter[str] = Counter()
    started = time.process_time()
    for case in cases:
        verdicts[case.task.score(case.problem, case.completion).verdict] += 1
    return (time.process_time() - started) / max(1, len(cases)), verdicts


def report_speed(title: str, cases: Sequence[Case]) -> None:
    by_kind: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_kind[case.kind].append(case)
    print(f"\n{title}: {len(cases)} completions, mean {_mean_chars(cases):.0f} characters")
    print(f"{'kind':<14}{'number':>8}{'cold µs':>10}{'cold /s':>10}{'again µs':>10}   verdicts")
    for kind, group in [*sorted(by_kind.items()), ("all", list(cases))]:
        clear_caches()
        cold, verdicts = measure(group)
        again, _ = measure(group)
        shown = ", ".join(f"{verdict} {count}" for verdict, count in sorted(verdicts.items()))
        print(f"{kind:<14}{len(group):>8}{1e6 * cold:>10.1f}{1 / cold:>10.0f}{1e6 * again:>10.1f}   {shown}")


def _mean_chars(cases: Sequence[Case]) -> float:
    return sum(len(case.completion) for case in cases) / max(1, len(cases))


def boxed_pairs(cases: Sequence[Case]) -> Iterator[tuple[str, str, str]]:
    """Each (gold, answer, kind) of MATH once; GSM8K compares numbers alone."""
    seen = set()
    for case in cases:
        pair = (case.problem.answer, case.answer)
        if case.answer and case.task.verifier.startswith("math") and pair not in seen:
            seen.add(pair)
            yield (*pair, case.kind)


def report_agreement(cases: Sequence[Case], limit: int) -> None:
    """math-verify on what was decided without it."""
    table: Counter[tuple[str, bool, bool]] = Counter()
    disagreements = []
    for gold, answer, kind in list(boxed_pairs(cases))[:limit]:
        judgement = equality.judge(gold, answer)
        theirs = judgement.is_same if judgement.stage == "algebra" else _math_verify(gold, answer)
        table[judgement.stage, judgement.is_same, theirs == judgement.is_same] += 1
        if theirs != judgement.is_same:
            disagreements.append((judgement.stage, judgement.is_same, kind, gold, answer))
    print(f"\n{'stage':<10}{'says':<12}{'agree':>8}{'disagree':>10}")
    for stage, is_same in sorted({key[:2] for key in table}):
        says = "same" if is_same else "different"
        print(f"{stage:<10}{says:<12}{table[stage, is_same, True]:>8}{table[stage, is_same, False]:>10}")
    print(f"\n{len(disagreements)} disagreements (stage, we say, kind, gold | answer):")
    for stage, is_same, kind, gold, answer in sorted(disagreements):
        print(f"  {stage:<8}{'same' if is_same else 'different':<10}{kind:<13}{gold!r} | {answer!r}")


def _math_verify(gold: str, answer: str) -> bool:
    return bool(verify(parse(f"$\\boxed{{{gold}}}$"), parse(f"$\\boxed{{{answer}}}$")))


def check(cases: Sequence[Case]) -> list[str]:
    """What must hold whatever the machine: right is right, and no box is never right."""
    problems = []
    for case in cases:
        verdict = case.task.score(case.problem, case.completion).verdict
        if case.kind == "right" and verdict is not Verdict.CORRECT:
            problems.append(f"right but {verdict}: {case.answer!r}")
        if case.kind in ("malformed", "none") and verdict is not Verdict.UNPARSED:
            problems.append(f"{case.kind} but {verdict}: {case.problem.answer!r}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with gsm8k/ and math/")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agreement", type=int, default=0, help="compare this many decisions with math-verify (slow)")
    arguments = parser.parse_args()
    problems = load_problems(arguments.data)
    mixed, wrong = mixed_cases(problems, arguments.seed), wrong_latex_cases(problems, arguments.seed)
    report_speed("mixed GSM8K and MATH", mixed)
    report_speed("wrong LaTeX, all distinct", wrong)
    faults = check(mixed)
    print(f"\n{len(faults)} faults", *faults[:20], sep="\n  ")
    if arguments.agreement:
        report_agreement([*wrong, *mixed], arguments.agreement)


if __name__ == "__main__":
    main()
