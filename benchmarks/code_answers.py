"""What a model that learned to write code or SQL does differently.

    python benchmarks/code_answers.py RUN --page side-by-side.md

Reads the held-out rollouts before the first step and after the last one, prints JSON, and writes answers to the same
problems side by side. Kinds of failures are read from what the verifier said of an answer. For SQL it says as well how
new held-out queries are, and looks for the data where the run's recipe has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from math_answers import Pair, ends, is_right, pairs_of, parse, rights, side_by_side, text_of

from groupwise.runs.reader import Run
from groupwise.tasks import make_task
from groupwise.tasks.sql_jsonl import query_form
from groupwise.types import Problem, ScoredGroup

Facts = Mapping[str, Callable[[ScoredGroup], bool]]

SOME = re.compile(r"[1-9]\d* of ")
ROWS = re.compile(r"(\d+ rows, not \d+|other rows): ")


def detail_of(scored: ScoredGroup) -> str:
    return scored.scores[0].detail


def is_wrong(scored: ScoredGroup) -> bool:
    return not is_right(scored)


CODE: Facts = {
    "correct": is_right,
    "wrong, some tests pass": lambda one: is_wrong(one) and bool(SOME.match(detail_of(one))),
    "wrong, no test passes": lambda one: is_wrong(one) and not SOME.match(detail_of(one)),
    "wrong, the first failure is an error": lambda one: is_wrong(one) and ": raised: " in detail_of(one),
    "with an assertion of its own": lambda one: bool(re.search(r"^assert ", text_of(one), re.MULTILINE)),
    "wrong by that assertion": lambda one: is_wrong(one) and "raised: AssertionError" in detail_of(one),
    "with comments": lambda one: bool(re.search(r"^\s*#", text_of(one), re.MULTILINE)),
}
SQL: Facts = {
    "correct": is_right,
    "wrong, the query fails": lambda one: is_wrong(one) and not ROWS.match(detail_of(one)),
    "wrong, it finds no rows": lambda one: is_wrong(one) and detail_of(one).startswith("0 rows"),
    "wrong, it finds other rows": lambda one: (
        is_wrong(one) and bool(ROWS.match(detail_of(one))) and not detail_of(one).startswith("0 rows")
    ),
    "with a nested query": lambda one: text_of(one).upper().count("SELECT") > 1,
}


def facts(groups: Sequence[ScoredGroup], kinds: Facts) -> dict[str, int]:
    tokens = sum(len(one.group.rollouts[0].token_ids) for one in groups)
    return {
        "answers": len(groups),
        **{name: sum(map(found, groups)) for name, found in kinds.items()},
        "tokens": tokens,
    }


SEEN = ("the same query", "the same but for its values", "another query")


def how_new(train: Sequence[Problem], pairs: Sequence[Pair]) -> list[dict[str, int | str]]:
    """Whether the query that answers a held-out problem answers one of training, asked in other words."""
    queries = {_plain(problem.answer) for problem in train}
    forms = {query_form(problem.answer) for problem in train}

    def kind(pair: Pair) -> str:
        query = pair[0].group.prompt.problem.answer
        return SEEN[0] if _plain(query) in queries else SEEN[1] if query_form(query) in forms else SEEN[2]

    return [rights(name, [pair for pair in pairs if kind(pair) == name]) for name in SEEN]


def _plain(query: str) -> str:
    return " ".join(query.lower().split())


def tests_of(problem: Problem) -> str:
    tests = "\n".join(json.loads(problem.answer)["tests"])
    return f"**{problem.messages[-1].content.splitlines()[0]}**\n\n```python\n{tests}\n```"


def query_of(problem: Problem) -> str:
    """The question stands last but for the instruction, after the schema."""
    return f"**{problem.messages[-1].content.splitlines()[-2]}**\n\n```sql\n{problem.answer.strip()}\n```"


def main() -> None:
    options = parse(__doc__)
    run = Run(options.run)
    task = run.recipe["task"]
    is_sql = task["name"].startswith("sql")
    kinds = SQL if is_sql else CODE
    steps, before, after = ends(run)
    found: dict[str, object] = {"steps": steps, "before": facts(before, kinds), "after": facts(after, kinds)}
    if is_sql:
        found["queries"] = how_new(make_task(task["name"], task["options"]).problems("train"), pairs_of(before, after))
    print(json.dumps(found, indent=1))
    if options.page is not None:
        describe = query_of if is_sql else tests_of
        page = side_by_side(before, after, options.title, describe, Path(__file__).name)
        options.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
