"""How fast and how right the math verifiers are, on completions made from GSM8K and MATH.

    python benchmarks/math_bench.py --data DIR             # DIR has gsm8k/ and math/ with train.jsonl and test.jsonl
    python benchmarks/math_bench.py --data DIR --agreement 3000
    python benchmarks/math_bench.py --data DIR --library 1000     # without --data: the shipped answers

Prints checks per second of `Task.score` in one process, by class of completion, cold (no answer seen before) and again
with the caches filled; the same for a set of wrong LaTeX answers that are all distinct; and a table of the stages that
decided, with every case in which math-verify says otherwise. The set depends on the data and `--seed` alone.

`--library` replaces the last stage, our reading of LaTeX, by math-verify, behind the same stages of text, numbers and
lists. Both judge the answers that reach it, and both say whether the label is right: wrong and respelled answers, the
verdicts of others in `tests/data`, the lists of `tests/unit/rewards/math/test_equality.py`. The answers that are meant
to take long are judged in a process each, which is killed.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import random
import re
import runpy
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from math_verify import parse, verify  # type: ignore[import-untyped]

from groupwise.rewards.extract import last_boxed
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


TESTS = Path(__file__).resolve().parents[1] / "tests"
DEADLINE_S = 5
"""As `verifier.seconds` of a recipe."""


class Pair(NamedTuple):
    gold: str
    answer: str
    is_right: bool
    kind: str


def labelled_pairs(problems: Sequence[tuple[Task, Problem]], limit: int, seed: int) -> list[Pair]:
    """Pairs whose label is known: made from data, from the verdicts of others, and those of our tests."""
    cases = [case for case in mixed_cases(problems, seed) if case.kind == "respelled"]
    cases = [*cases[:limit], *wrong_latex_cases(problems, seed)[:limit]]
    pairs = [Pair(case.problem.answer, case.answer, case.kind == "respelled", case.kind) for case in cases]
    for line in (TESTS / "data/third_party_verdicts.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found = last_boxed(row["completion"])
        if row["form"] == "bare" or found:
            answer = row["completion"] if row["form"] == "bare" else found.readings[-1] if found else ""
            pairs.append(Pair(row["gold"], answer, row["verdict"], row["source"]))
    lists = _lists_of_tests()
    for name, is_right in (("SAME_BOTH_WAYS", True), ("SAME_ONE_WAY", True), ("DIFFERENT", False), ("UNDONE", False)):
        pairs += [Pair(gold, answer, is_right, f"tests: {name.lower()}") for gold, answer in lists[name]]
    return [pair for pair in dict.fromkeys(pairs) if reaches_last_stage(pair)]


def shipped_problems() -> list[tuple[Task, Problem]]:
    task = make_task("math", {"train": "unused", "held_out": "unused"})
    rows = (TESTS / "data/math_answers.jsonl").read_text(encoding="utf-8").splitlines()
    return [(task, Problem(row, (), json.loads(row)["answer"], {"solution": ""})) for row in rows]


def _lists_of_tests() -> dict[str, list[tuple[str, str]]]:
    return runpy.run_path(str(TESTS / "unit/rewards/math/test_equality.py"))


def reaches_last_stage(pair: Pair) -> bool:
    last = mock.Mock(return_value=equality.Judgement(False, "points"))
    clear_caches()
    with mock.patch.object(equality, "_judge_trees", last):
        equality.judge(pair.gold, pair.answer)
    clear_caches()
    return bool(last.called)


def judge_by_library(gold: str, answer: str) -> bool:
    texts = [parse(f"$\\boxed{{{text}}}$", parsing_timeout=DEADLINE_S) for text in (gold, answer)]
    return bool(verify(*texts, timeout_seconds=DEADLINE_S))


def judge_by_trees(gold: str, answer: str) -> bool:
    return equality._judge_trees(gold, answer).is_same


LAST_STAGES = {"ours": judge_by_trees, "library": judge_by_library}


def report_library(pairs: Sequence[Pair]) -> None:
    verdicts: dict[str, list[bool]] = {}
    seconds: dict[str, list[float]] = {}
    for name, judge in LAST_STAGES.items():
        verdicts[name], seconds[name] = [], []
        clear_caches()
        for pair in pairs:
            started = time.process_time()
            verdicts[name].append(judge(pair.gold, pair.answer))
            seconds[name].append(time.process_time() - started)
    print(f"\n{len(pairs)} answers that reach the last stage")
    print(f"{'kind':<24}{'answers':>8}{'ours right':>12}{'library':>9}{'ours /s':>10}{'library /s':>12}{'ratio':>7}")
    kinds = sorted({pair.kind for pair in pairs})
    groups = {kind: [i for i, pair in enumerate(pairs) if pair.kind == kind] for kind in kinds}
    groups["all labelled wrong"] = [i for i, pair in enumerate(pairs) if not pair.is_right]
    groups["all labelled right"] = [i for i, pair in enumerate(pairs) if pair.is_right]
    for kind, places in groups.items():
        right = [sum(verdicts[name][i] == pairs[i].is_right for i in places) for name in LAST_STAGES]
        rates = [len(places) / sum(seconds[name][i] for i in places) for name in LAST_STAGES]
        ratio = rates[0] / rates[1]
        print(f"{kind:<24}{len(places):>8}{right[0]:>12}{right[1]:>9}{rates[0]:>10.0f}{rates[1]:>12.0f}{ratio:>7.0f}")
    slowest = {name: max(times) for name, times in seconds.items()}
    print(f"slowest answer: {slowest['ours']:.2f} s, library {slowest['library']:.2f} s")
    for title, winner in (("only ours has the label", "ours"), ("only the library has the label", "library")):
        other = next(name for name in LAST_STAGES if name != winner)
        of_winner = [
            pair
            for i, pair in enumerate(pairs)
            if verdicts[winner][i] == pair.is_right and verdicts[other][i] != pair.is_right
        ]
        print(f"\n{len(of_winner)}: {title} (kind, label, gold | answer)")
        for pair in of_winner:
            print(f"  {pair.kind:<22}{'right' if pair.is_right else 'wrong':<7}{pair.gold!r} | {pair.answer!r}")


def report_bombs(golds: Sequence[str] = (r"\sqrt2", "x^2+1")) -> None:
    """How many of the answers that are meant to take long are judged in time."""
    context = multiprocessing.get_context("fork")
    pairs = [(gold, bomb) for gold in golds for bomb in _lists_of_tests()["BOMBS"]]
    for name, judge in LAST_STAGES.items():
        late = []
        for gold, bomb in pairs:
            process = context.Process(target=judge, args=(gold, bomb), daemon=True)
            process.start()
            process.join(DEADLINE_S)
            if process.is_alive():
                process.kill()
                process.join()
                late.append(bomb)
        print(f"\n{name}: {len(late)} of {len(pairs)} hostile answers take more than {DEADLINE_S} s")
        print(*(f"  {str(bomb)[:60]!r}" for bomb in dict.fromkeys(late)), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with gsm8k/ and math/; needed without --library")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agreement", type=int, default=0, help="compare this many decisions with math-verify (slow)")
    parser.add_argument(
        "--library", type=int, default=0, help="compare this many answers of each kind with math-verify"
    )
    arguments = parser.parse_args()
    problems = load_problems(arguments.data) if arguments.data else shipped_problems()
    if arguments.library:
        logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it prints each answer that it cannot read
        report_library(labelled_pairs(problems, arguments.library, arguments.seed))
        report_bombs()
        return
    if not arguments.data:
        parser.error("--data is missing: name a folder with gsm8k/ and math/")
    mixed, wrong = mixed_cases(problems, arguments.seed), wrong_latex_cases(problems, arguments.seed)
    report_speed("mixed GSM8K and MATH", mixed)
    report_speed("wrong LaTeX, all distinct", wrong)
    faults = check(mixed)
    print(f"\n{len(faults)} faults", *faults[:20], sep="\n  ")
    if arguments.agreement:
        report_agreement([*wrong, *mixed], arguments.agreement)


if __name__ == "__main__":
    main()
