"""What a model that learned Countdown does: which held-out problems it solves, and with which operations.

    python benchmarks/countdown_answers.py RUN
    python benchmarks/countdown_answers.py RUN --step 80

Reads the rollouts of an evaluation, by default the run's last, and prints JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from groupwise.rewards.extract import last_tag
from groupwise.runlog.reader import Run
from groupwise.types import Verdict


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--step", type=int)
    options = parser.parse_args()
    run = Run(options.run)
    step = run.evals()[-1].step if options.step is None else options.step
    print(json.dumps(answers(run, step), indent=1))


if __name__ == "__main__":
    main()
