"""What a model that learned mathematics does otherwise than before: format, or arithmetic?

    python benchmarks/math_answers.py RUN --page side-by-side.md

Reads the held-out rollouts before the first step and after the last one, prints JSON, and writes answers to the same
problems side by side. Problems of the page are the first of their kind by id, which is a hash.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from groupwise.rewards.process.equations import find_equations
from groupwise.runlog.reader import Run
from groupwise.types import Finish, Problem, ScoredGroup, Verdict

SHOWN = (
    ("wrong before, right after", (False, True), 3),
    ("right before, wrong after", (True, False), 2),
    ("wrong both times", (False, False), 1),
)
"""Kinds of problems, whether the answers to them are right, and how many are shown."""
MOST_EQUATIONS = 1000
AGAIN = re.compile(r"re-?check|re-?examine|re-?evaluate|reconsider", re.IGNORECASE)
"""Twice in an answer: it starts again."""


def is_right(scored: ScoredGroup) -> bool:
    """Of a greedy answer, which is one to a problem."""
    return scored.scores[0].verdict is Verdict.CORRECT


def is_cut_off(scored: ScoredGroup) -> bool:
    return scored.group.rollouts[0].finish is Finish.LENGTH


def has_program(scored: ScoredGroup) -> bool:
    return "```" in text_of(scored)


def text_of(scored: ScoredGroup) -> str:
    return scored.group.rollouts[0].text


def num_tokens(scored: ScoredGroup) -> int:
    return len(scored.group.rollouts[0].token_ids)


def facts(groups: Sequence[ScoredGroup]) -> dict[str, int]:
    written = [[step for _, step in find_equations(text_of(one), MOST_EQUATIONS)] for one in groups]
    equations = [step for steps in written for step in steps]
    slipped = [any(not step.is_true for step in steps) for steps in written]
    wrong = [one.scores[0].verdict is Verdict.WRONG for one in groups]
    return {
        "answers": len(groups),
        "correct": sum(map(is_right, groups)),
        "without an answer": sum(one.scores[0].verdict is Verdict.UNPARSED for one in groups),
        "wrong, with a wrong equation": sum(a and b for a, b in zip(wrong, slipped, strict=True)),
        "wrong, without one": sum(a and not b for a, b in zip(wrong, slipped, strict=True)),
        "with a program": sum(map(has_program, groups)),
        "with a program and its output": sum("```output" in text_of(one) for one in groups),
        "cut off": sum(map(is_cut_off, groups)),
        "cut off, starting again": sum(is_cut_off(one) and len(AGAIN.findall(text_of(one))) > 1 for one in groups),
        "tokens": sum(map(num_tokens, groups)),
        "equations": len(equations),
        "wrong equations": sum(not step.is_true for step in equations),
    }


def by_first_answer(before: Sequence[ScoredGroup], after: Sequence[ScoredGroup]) -> list[dict[str, object]]:
    """How many problems are right before and after, by what the answer before was like: is a gain one of endings?"""
    right_after = {one.group.prompt.problem.id: is_right(one) for one in after}
    kinds = {"cut off": is_cut_off, "ended, with a program": has_program, "ended, without": lambda _: True}
    left = list(before)
    rows = list[dict[str, object]]()
    for kind, is_kind in kinds.items():
        found, left = [one for one in left if is_kind(one)], [one for one in left if not is_kind(one)]
        after_it = sum(right_after[one.group.prompt.problem.id] for one in found)
        rows.append({"kind": kind, "count": len(found), "before": sum(map(is_right, found)), "after": after_it})
    return rows


QUARTERS = ("shortened most", "second quarter", "third quarter", "shortened least, or longer")


def by_length(before: Sequence[ScoredGroup], after: Sequence[ScoredGroup]) -> list[dict[str, object]]:
    """The same, of answers that had ended, by how much shorter they became: what does brevity cost?"""
    later = {one.group.prompt.problem.id: one for one in after}
    pairs = [(one, later[one.group.prompt.problem.id]) for one in before if not is_cut_off(one)]
    pairs.sort(key=lambda pair: (num_tokens(pair[1]) / num_tokens(pair[0]), _id(pair)))
    rows = list[dict[str, object]]()
    for place, kind in enumerate(QUARTERS):
        part = pairs[len(pairs) * place // 4 : len(pairs) * (place + 1) // 4]
        rights = [sum(is_right(pair[side]) for pair in part) for side in (0, 1)]
        tokens = [sum(num_tokens(pair[side]) for pair in part) for side in (0, 1)]
        rows.append(
            {"kind": kind, "count": len(part), "before": rights[0], "after": rights[1], "tokens": tokens},
        )
    return rows


def question_and_answer(problem: Problem) -> str:
    return f"**{problem.messages[-1].content.splitlines()[0]}** Right: {problem.answer}."


def side_by_side(
    before: Sequence[ScoredGroup],
    after: Sequence[ScoredGroup],
    title: str,
    describe: Callable[[Problem], str] = question_and_answer,
    script: str = Path(__file__).name,
) -> str:
    later = {one.group.prompt.problem.id: one for one in after}
    pairs = sorted(((one, later[one.group.prompt.problem.id]) for one in before), key=_id)
    parts = [f"# {title}\n\nWritten by `benchmarks/{script}`: the first problems of each kind by id.\n"]
    for kind, are_right, count in SHOWN:
        of_kind = [pair for pair in pairs if (is_right(pair[0]), is_right(pair[1])) == are_right]
        parts.append(f"\n## {kind.capitalize()}: {len(of_kind)} of {len(pairs)}\n")
        for first, second in of_kind[:count]:
            parts.append(f"\n{describe(first.group.prompt.problem)}\n")
            parts.append(f"\nBefore:\n\n{_fenced(text_of(first))}\nAfter:\n\n{_fenced(text_of(second))}")
    return "".join(parts)


def _id(pair: tuple[ScoredGroup, ScoredGroup]) -> str:
    return pair[0].group.prompt.problem.id


def _fenced(text: str) -> str:
    """Longer than any fence inside."""
    fence = "`" * (max((len(run) for run in text.split() if set(run) == {"`"}), default=3) + 1)
    return f"{fence}text\n{text.strip()}\n{fence}\n"


def parse(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--page", type=Path, help="where answers go, side by side")
    parser.add_argument("--title", default="Answers before and after")
    return parser.parse_args()


def ends(run: Run) -> tuple[tuple[int, int], list[ScoredGroup], list[ScoredGroup]]:
    """(the steps of the first and the last evaluation, the answers of each)."""
    steps = run.evals()[0].step, run.evals()[-1].step
    before, after = (run.eval_rollouts(step) for step in steps)
    return steps, before, after


def main() -> None:
    options = parse(__doc__)
    steps, before, after = ends(Run(options.run))
    found = {"steps": steps, "before": facts(before), "after": facts(after)}
    kinds = {"first_answers": by_first_answer(before, after), "lengths": by_length(before, after)}
    print(json.dumps(found | kinds, indent=1))
    if options.page is not None:
        options.page.write_text(side_by_side(before, after, options.title), encoding="utf-8")


if __name__ == "__main__":
    main()
