"""What a model that learned mathematics does differently: format, or arithmetic?

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

from groupwise.rewards.process.score_process import find_equations
from groupwise.runs.reader import Run
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
    """A greedy answer; there is one per problem."""
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


Pair = tuple[ScoredGroup, ScoredGroup]
"""The answers to one problem, before and after."""


def pairs_of(before: Sequence[ScoredGroup], after: Sequence[ScoredGroup]) -> list[Pair]:
    later = {one.group.prompt.problem.id: one for one in after}
    return [(one, later[one.group.prompt.problem.id]) for one in before]


def rights(kind: str, pairs: Sequence[Pair]) -> dict[str, int | str]:
    before, after = (sum(is_right(pair[side]) for pair in pairs) for side in (0, 1))
    return {"kind": kind, "count": len(pairs), "before": before, "after": after}


def by_first_answer(pairs: Sequence[Pair]) -> list[dict[str, int | str]]:
    """What the answer before was like: is a gain one of endings?"""
    cut_off = [pair for pair in pairs if is_cut_off(pair[0])]
    ended = [pair for pair in pairs if not is_cut_off(pair[0])]
    return [
        rights("cut off", cut_off),
        rights("ended, with a program", [pair for pair in ended if has_program(pair[0])]),
        rights("ended, without", [pair for pair in ended if not has_program(pair[0])]),
    ]


QUARTERS = ("shortened most", "second quarter", "third quarter", "shortened least, or longer")


def by_length(pairs: Sequence[Pair]) -> list[dict[str, int | str]]:
    """Answers that had ended, by how much shorter they became: what does brevity cost?"""
    ended = [pair for pair in pairs if not is_cut_off(pair[0])]
    ended.sort(key=lambda pair: (num_tokens(pair[1]) / num_tokens(pair[0]), _id(pair)))
    ends = [len(ended) * place // 4 for place in range(5)]
    return [rights(kind, ended[ends[place] : ends[place + 1]]) for place, kind in enumerate(QUARTERS)]


def question_and_answer(problem: Problem) -> str:
    return f"**{problem.messages[-1].content.splitlines()[0]}** Right: {problem.answer}."


def side_by_side(
    before: Sequence[ScoredGroup],
    after: Sequence[ScoredGroup],
    title: str,
    describe: Callable[[Problem], str] = question_and_answer,
    script: str = Path(__file__).name,
) -> str:
    pairs = sorted(pairs_of(before, after), key=_id)
    parts = [f"# {title}\n\nWritten by `benchmarks/{script}`: the first problems of each kind by id.\n"]
    for kind, are_right, count in SHOWN:
        of_kind = [pair for pair in pairs if (is_right(pair[0]), is_right(pair[1])) == are_right]
        parts.append(f"\n## {kind.capitalize()}: {len(of_kind):,} of {len(pairs):,}\n")
        for first, second in of_kind[:count]:
            parts.append(f"\n{describe(first.group.prompt.problem)}\n")
            parts.append(f"\nBefore:\n\n{_fenced(text_of(first))}\nAfter:\n\n{_fenced(text_of(second))}")
    return "".join(parts)


def _id(pair: Pair) -> str:
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
    pairs = pairs_of(before, after)
    kinds = {"first_answers": by_first_answer(pairs), "lengths": by_length(pairs)}
    print(json.dumps(found | kinds, indent=1))
    if options.page is not None:
        options.page.write_text(side_by_side(before, after, options.title), encoding="utf-8")


if __name__ == "__main__":
    main()
