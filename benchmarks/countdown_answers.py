"""What a model that learned Countdown does: which held-out problems it solves, and with which operations.

    python benchmarks/countdown_answers.py RUN
    python benchmarks/countdown_answers.py RUN --step 80
    python benchmarks/countdown_answers.py RUN --page answers.md --at 0=before 80=explore 120=SFT 200=refine

Reads the rollouts of an evaluation, by default the run's last, and prints JSON. The page has the answers to the first
problems by id, at several evaluations beside each other.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from groupwise.rewards.extract import last_tag
from groupwise.runs.reader import Run
from groupwise.types import ScoredGroup, Verdict


def is_sum(numbers: Sequence[int], target: int) -> bool:
    """Whether sums and differences of all the numbers are enough."""
    signs = itertools.product((1, -1), repeat=len(numbers))
    return any(sum(sign * number for sign, number in zip(row, numbers, strict=True)) == target for row in signs)


def answers(run: Run, step: int) -> dict[str, object]:
    problems: Counter[str] = Counter()
    solved: Counter[str] = Counter()
    with_products = right_with_products = 0
    for scored in run.eval_rollouts(step):
        meta = scored.group.prompt.problem.meta
        needed = "sums are enough" if is_sum(meta["nums"], meta["target"]) else "a product is needed"
        kind = f"{len(meta['nums'])} numbers, {needed}"
        for rollout, score in zip(scored.group.rollouts, scored.scores, strict=True):
            is_right = score.verdict is Verdict.CORRECT
            problems[kind] += 1
            solved[kind] += is_right
            answer = last_tag(rollout.text)
            has_product = answer is not None and any(sign in answer.text for sign in "*/")
            with_products += has_product
            right_with_products += has_product and is_right
    rows = [{"kind": kind, "count": problems[kind], "correct": solved[kind]} for kind in sorted(problems)]
    return {"step": step, "rows": rows, "with_products": with_products, "right_with_products": right_with_products}


def beside_each_other(run: Run, steps: Mapping[int, str], count: int) -> str:
    """Markdown: a line a problem, a column an evaluation."""
    evaluations = [{one.group.prompt.problem.id: one for one in run.eval_rollouts(step)} for step in steps]
    heads = [f"{name}, step {step}" for step, name in steps.items()]
    lines = [
        f"# Countdown: {count} of {len(evaluations[0]):,} held-out problems and their answers\n",
        "Written by `benchmarks/countdown_answers.py`: the first problems by id. ✓ is right.\n",
        "| numbers | target | " + " | ".join(heads) + " |",
        "|---" * (2 + len(heads)) + "|",
    ]
    for problem_id in sorted(evaluations[0])[:count]:
        meta = evaluations[0][problem_id].group.prompt.problem.meta
        cells = [answer_of(groups[problem_id]) for groups in evaluations]
        lines.append(f"| {' '.join(map(str, meta['nums']))} | {meta['target']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def answer_of(scored: ScoredGroup) -> str:
    (rollout,), (score,) = scored.group.rollouts, scored.scores
    answer = last_tag(rollout.text)
    if answer is None:
        return f"none after {len(rollout.token_ids)} tokens"
    mark = " ✓" if score.verdict is Verdict.CORRECT else ""
    return f"`{' '.join(answer.text.split()).replace('|', '¦')}`{mark}"


def named_step(text: str) -> tuple[int, str]:
    step, _, name = text.partition("=")
    return int(step), name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--step", type=int)
    parser.add_argument("--page", type=Path, help="where answers at several evaluations go")
    parser.add_argument("--at", type=named_step, nargs="+", default=[], metavar="STEP=NAME", help="those evaluations")
    parser.add_argument("--problems", type=int, default=24, help="on the page")
    options = parser.parse_args()
    run = Run(options.run)
    step = run.evals()[-1].step if options.step is None else options.step
    print(json.dumps(answers(run, step), indent=1))
    if options.page is not None:
        page = beside_each_other(run, dict(options.at), options.problems)
        options.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
