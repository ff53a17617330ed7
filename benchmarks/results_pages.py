"""Writes the tables of README.md and docs/results, and the reports, from the archives. No number is typed by hand.

    python benchmarks/results_pages.py          # writes them
    python benchmarks/results_pages.py --check  # exits with status 1 if a page disagrees with the archives

A page marks a table with `<!-- table: NAME -->` and `<!-- end of table -->`; benchmarks/results/tables.toml says what
NAME is made of. In its rows, `run` is a run directory without rollouts and checkpoints, and `compare` is the output of
`groupwise compare --json`. `[reports]` lists the runs of each report. Sweep reports are not listed: they need rollouts.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from archives import stored

from groupwise.base.stats import mean, student_interval, wilson_interval
from groupwise.runs.reader import Run
from groupwise.web.report.inputs import read_sources
from groupwise.web.report.report import make_report
from groupwise.web.report.sections.facts import run_cost

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
TABLES = ROOT / "benchmarks" / "results" / "tables.toml"
REPORT_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
MARK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)

Row = Mapping[str, str]


def before_after(rows: Sequence[Row]) -> str:
    """Held-out pass@1 of a run's weights before and after it."""
    cells = [["", "before", "after", "difference, paired", "problems", "GPU time"]]
    for row in rows:
        found = read(row["compare"])
        count = found["num_problems"]
        scores = [share(found[key], count) for key in ("first_value", "second_value")]
        cells.append([row["label"], *scores, difference(found), f"{count:,}", f"{spent_s(row['run']) / 60:.1f} min"])
    return table(cells)


def summary(rows: Sequence[Row]) -> str:
    """One row per experiment: `runs` differ only in their seed; the difference is of the lowest final score."""
    cells = [["", "before", "after, by seed", "gain of the worst seed, paired", "problems", "GPU time per run"]]
    for row in rows:
        names = row["runs"].split()
        found = [read(f"{name}.json") for name in names]
        lowest = min(found, key=lambda one: float(one["second_value"]))
        count = lowest["num_problems"]
        after = ", ".join(f"{100 * one['second_value']:.1f}" for one in found) + " %"
        minutes = f"{mean([spent_s(name) for name in names]) / 60:.1f} min"
        cells.append(
            [row["label"], share(lowest["first_value"], count), after, difference(lowest), f"{count:,}", minutes]
        )
    return table(cells)


def against(rows: Sequence[Row]) -> str:
    """Two runs on the same problems. With several answers per problem a score is no count and has no interval."""
    cells = [["", "first", "second", "difference, paired", "gained", "lost", "p"]]
    for row in rows:
        found = read(row["compare"])
        count = found["num_problems"]
        is_plain = found["test"] == "mcnemar"
        values = [(row[name], found[key]) for name, key in (("first", "first_value"), ("second", "second_value"))]
        scores = [f"{name}: {share(value, count) if is_plain else f'{100 * value:.1f} %'}" for name, value in values]
        flips = [str(len(found[key])) if is_plain else "" for key in ("gained", "lost")]
        cells.append([row["label"], *scores, difference(found), *flips, f"{found['p']:.2g}"])
    return table(cells)


def seeds(rows: Sequence[Row]) -> str:
    """`runs`, separated by spaces, differ only in their seed."""
    cells = [["", "before", "after, by seed", "after, mean over seeds", "problems", "GPU time per run"]]
    for row in rows:
        names = row["runs"].split()
        evals = [Run(stored(name)).evals() for name in names]
        before, after = ([found[place].pass_at_1 for found in evals] for place in (0, -1))
        low, high = student_interval(after)
        cells.append(
            [
                row["label"],
                f"{100 * mean(before):.1f} %",
                ", ".join(f"{100 * value:.1f}" for value in after) + " %",
                f"{100 * mean(after):.1f} % ({100 * max(0.0, low):.1f} to {100 * min(1.0, high):.1f})",
                f"{evals[0][-1].num_problems:,}",
                f"{mean([spent_s(name) for name in names]) / 60:.1f} min",
            ]
        )
    return table(cells)


def reach(rows: Sequence[Row]) -> str:
    """Seconds of training until a score is reached: the output of `groupwise reach --json`."""
    cells = [["", "score", "seeds that reach it", "mean training time", "95 % interval", "by seed"]]
    for row in rows:
        for found in read(row["reach"])["rows"]:
            span, interval = "–", "–"
            if found["seconds"] is not None:
                middle, low, high = found["seconds"]
                span = f"{middle:.0f} s"
                interval = "–" if low is None else f"{low:.0f} to {high:.0f} s"
            count = f"{found['num_reached']} of {len(found['runs'])}"
            each = ", ".join("–" if one["step"] is None else f"{one['train_s']:.0f}" for one in found["runs"]) + " s"
            cells.append([row["label"], f"{100 * found['score']:.0f} %", count, span, interval, each])
    return table(cells)


def diversity(rows: Sequence[Row]) -> str:
    """How much the rollouts of a group differ, averaged over steps `first` to `last`, by seed."""
    cells = [["", "steps", "groups with signal", "duplicate rollouts in a group", "entropy, nats per token"]]
    for row in rows:
        first, last = int(row["first"]), int(row["last"])
        runs = [[metrics for step, metrics in rl_steps(name) if first <= step <= last] for name in row["runs"].split()]
        signal, identical, entropy = (
            [mean([metrics[key] for metrics in steps]) for steps in runs]
            for key in ("groups/signal_share", "rollouts/identical_share", "policy/entropy_nats")
        )
        shares = (", ".join(f"{100 * value:.0f}" for value in values) + " %" for values in (signal, identical))
        cells.append([row["label"], f"{first} to {last}", *shares, ", ".join(f"{value:.2f}" for value in entropy)])
    return table(cells)


def effort(rows: Sequence[Row]) -> str:
    """How many rollouts and groups were sampled, and how many groups had signal, by seed."""
    cells = [["", "rollouts, thousands", "groups", "groups with signal", "with signal per step, last 20 steps"]]
    for row in rows:
        by_seed = []
        for name in row["runs"].split():
            steps = [metrics for _, metrics in rl_steps(name)]
            drawn, dealt = (sum(metrics[key] for metrics in steps) for key in ("rollouts/count", "groups/count"))
            lively = [metrics["groups/signal_share"] * metrics["groups/count"] for metrics in steps]
            by_seed.append((f"{drawn / 1000:.0f}", f"{dealt:,.0f}", f"{sum(lively):,.0f}", f"{mean(lively[-20:]):.0f}"))
        cells.append([row["label"], *("; ".join(column) for column in zip(*by_seed, strict=True))])
    return table(cells)


def rl_steps(name: str) -> list[tuple[int, Mapping[str, float]]]:
    """The steps of a run that sampled rollouts, with their metrics."""
    records = Run(stored(name)).steps()
    return [(record.step, record.metrics) for record in records if "groups/signal_share" in record.metrics]


def countdown_answers(rows: Sequence[Row]) -> str:
    """Scores by kind of problem, one column per output of benchmarks/countdown_answers.py."""
    found = [read(row["answers"]) for row in rows]
    cells = [["problems", "count", *(row["label"] for row in rows)]]
    for kinds in zip(*(one["rows"] for one in found), strict=True):
        cells.append(
            [
                worded(kinds[0]["kind"]),
                f"{kinds[0]['count']:,}",
                *(share(k["correct"] / k["count"], k["count"]) for k in kinds),
            ]
        )
    products = [f"{one['with_products']} ({one['right_with_products']} correct)" for one in found]
    cells.append(["answers with a product or quotient", "", *products])
    return table(cells)


WORDS: Mapping[str, str] = {
    "3 numbers, a product is needed": "3 numbers, needs a product or quotient",
    "3 numbers, sums are enough": "3 numbers, solvable with sums",
    "4 numbers, a product is needed": "4 numbers, needs a product or quotient",
    "4 numbers, sums are enough": "4 numbers, solvable with sums",
    "wrong, without one": "wrong, no wrong equation",
    "without an answer": "no answer found",
    "cut off": "truncated",
    "cut off, starting again": "truncated, keeps starting over",
    "with a program": "contains a program",
    "with a program and its output": "contains a program and its output",
    "wrong, the first failure is an error": "wrong, the first failure is an exception",
    "with an assertion of its own": "contains its own assertion",
    "wrong by that assertion": "wrong because of that assertion",
    "with comments": "contains comments",
    "wrong, it finds no rows": "wrong, the query returns no rows",
    "wrong, it finds other rows": "wrong, the query returns other rows",
    "with a nested query": "contains a nested query",
    "ended, with a program": "finished, with a program",
    "ended, without": "finished, without a program",
    "the same but for its values": "the same except for its values",
    "another query": "a different query",
}
"""How tables word what the archived files count, where that differs."""
MATH_FACTS = (
    *("correct", "wrong, with a wrong equation", "wrong, without one", "without an answer", "cut off"),
    *("cut off, starting again", "with a program", "with a program and its output"),
)


def math_answers(rows: Sequence[Row]) -> str:
    """Before and after training, from the output of benchmarks/math_answers.py."""
    found, cells = shares_of_answers(rows, MATH_FACTS)
    wrong = [f"{one['equations']:,} ({100 * one['wrong equations'] / one['equations']:.1f} % wrong)" for one in found]
    cells.append(["equations written", *wrong])
    return table(cells)


def code_answers(rows: Sequence[Row]) -> str:
    """The same, from the output of benchmarks/code_answers.py."""
    names = [name for name in read(rows[0]["answers"])["before"] if name not in ("answers", "tokens")]
    return table(shares_of_answers(rows, names)[1])


def shares_of_answers(rows: Sequence[Row], names: Sequence[str]) -> tuple[list[dict[str, int]], list[list[str]]]:
    """Returns the counts by column, and the cells: one row per name, then the mean length.

    Runs of the same model share their column "before".
    """
    heads, found = ["share of answers"], list[dict[str, int]]()
    for row in rows:
        answers = read(row["answers"])
        for when, counts in (("before", answers["before"]), ("after", answers["after"])):
            if when == "after" or counts not in found:
                heads.append(", ".join(filter(None, (row["label"], when))))
                found.append(counts)
    cells = [heads]
    cells += [[worded(name), *(share(one[name] / one["answers"], one["answers"]) for one in found)] for name in names]
    cells.append(["mean tokens", *(f"{one['tokens'] / one['answers']:.0f}" for one in found)])
    return found, cells


def by_kind(rows: Sequence[Row], head: str, of: str) -> str:
    """Correct answers by kind of problem, from key `of`. Runs with the same counts before training share them."""
    found = [read(row["answers"])[of] for row in rows]
    is_one = all([kind["before"] for kind in kinds] == [kind["before"] for kind in found[0]] for kinds in found)
    columns = [("before", found[0], "before")] if is_one else []
    for row, kinds in zip(rows, found, strict=True):
        sides = ("after",) if is_one else ("before", "after")
        columns += [(f"{side}, {row['label']}", kinds, side) for side in sides]
    cells = [[head, "problems", *(title for title, _, _ in columns)]]
    for place, kind in enumerate(found[0]):
        counts = [(kinds[place][side], kinds[place]["count"]) for _, kinds, side in columns]
        cells.append(
            [worded(kind["kind"]), f"{kind['count']:,}", *(share(right / count, count) for right, count in counts)]
        )
    return table(cells)


def scores(rows: Sequence[Row], columns: Sequence[Row]) -> str:
    """Output of `groupwise eval`: the `file` of a column, in the `folder` of a row."""
    cells = [["", *(column["head"] for column in columns)]]
    for row in rows:
        found = [read(f"{row['folder']}/{column['file']}")["scores"][column["score"]] for column in columns]
        cells.append([row["label"], *map(score, found)])
    return table(cells)


def groups(rows: Sequence[Row]) -> str:
    """Rows by group size, for one advantage rule, from the output of `groupwise bench groups --json`."""
    head = ["G", "zero-variance groups", "advantage variance", "relative gradient variance", "signal to noise"]
    cells = [[*head, "divided by G \u2212 1"]]
    for row in rows:
        sizes, rule = read(row["groups"])["sizes"], row["rule"]
        for one in sizes:
            relative = one["gradient_variance"][rule] / sizes[0]["gradient_variance"][rule]
            advantage, signal = one["advantage_variance"][rule], one["signal_to_noise"][rule]
            shares = f"{100 * one['dead_share']:.0f} %", f"{advantage:.4f}", f"{relative:.3f}"
            cells.append([str(one["size"]), *shares, f"{signal:.4f}", f"{signal / (one['size'] - 1):.4f}"])
    return table(cells)


def doublings(rows: Sequence[Row]) -> str:
    """What doubling the group costs, and by how much it raises signal to noise, from the same file."""
    cells = [["G", "sampling", "learning", "cost of doubling", *(f"gain, {row['label']}" for row in rows)]]
    sizes = read(rows[0]["groups"])["sizes"]
    for before, one in zip([None, *sizes], sizes, strict=False):
        seconds = [f"{one[key]:.2f} s" for key in ("sample_s", "learn_s")]
        if before is None:
            cells.append([str(one["size"]), *seconds, *[""] * (1 + len(rows))])
            continue
        spent, spent_before = (each["sample_s"] + each["learn_s"] for each in (one, before))
        bought = [one["signal_to_noise"][row["rule"]] / before["signal_to_noise"][row["rule"]] for row in rows]
        cells.append([str(one["size"]), *seconds, *(f"{ratio:.2f} ×" for ratio in (spent / spent_before, *bought))])
    return table(cells)


def slopes(rows: Sequence[Row]) -> str:
    """Slopes of log variance against log group size, from the same file: −1 means 1/G."""
    cells = [["", "slope of the advantage variance", "slope of the gradient variance"]]
    for row in rows:
        found = read(row["groups"])["slopes"][row["rule"]]
        pairs = [found[kind] for kind in ("advantage", "gradient")]
        texts = [[f"{number:.2f}".replace("-", "\u2212") for number in pair] for pair in pairs]
        cells.append([row["label"], *(f"{value} ({low} to {high})" for value, low, high in texts)])
    return table(cells)


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stored(name).read_text(encoding="utf-8"))
    return found


def worded(kind: str) -> str:
    return WORDS.get(kind, kind)


def share(value: float, count: int) -> str:
    low, high = wilson_interval(round(value * count), count)
    return f"{100 * value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def score(found: Mapping[str, Any]) -> str:
    """A share in percent, any other value unchanged."""
    scale, unit = (1, "") if max(found["high"], found["value"]) > 1 else (100, " %")
    value, low, high = (f"{scale * found[key]:.1f}" for key in ("value", "low", "high"))
    return f"{value}{unit} ({low} to {high})"


def difference(found: Mapping[str, float]) -> str:
    return f"{points(found['difference'])} ({points(found['low'])} to {points(found['high'])})"


def points(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "\u2212")


def spent_s(run: str) -> float:
    """Training, evaluations and checkpoints, as in the report of the run; start-up is not counted."""
    return float(sum(run_cost(read_sources([stored(run)]).runs[0])["seconds"].values()))


def table(cells: Sequence[Sequence[str]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([head, "|" + "---|" * len(cells[0]), *body]) + "\n"


KINDS: Mapping[str, Callable[..., str]] = {
    "before_after": before_after,
    "summary": summary,
    "against": against,
    "seeds": seeds,
    "reach": reach,
    "diversity": diversity,
    "effort": effort,
    "countdown_answers": countdown_answers,
    "math_answers": math_answers,
    "code_answers": code_answers,
    "by_kind": by_kind,
    "scores": scores,
    "groups": groups,
    "doublings": doublings,
    "slopes": slopes,
}


def pages() -> Iterator[tuple[Path, str]]:
    """Each page with the text that it should have."""
    spec: Mapping[str, Any] = tomllib.loads(TABLES.read_text(encoding="utf-8"))
    for page in (ROOT / "README.md", *sorted(RESULTS.glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        yield page, MARK.sub(lambda mark: mark[1] + made(**spec[mark[2]]) + mark[3], text)
    for name, runs in spec["reports"].items():
        yield RESULTS / name, make_report([stored(run) for run in runs]).html


def made(kind: str, **parts: Any) -> str:
    return KINDS[kind](**parts)


def said(page: str) -> str:
    """What a page states. For a report that is its data: its layout may change."""
    data = REPORT_DATA.search(page)
    return page if data is None else data[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    is_stale = False
    for page, text in pages():
        before = page.read_text(encoding="utf-8") if page.exists() else ""
        if said(before) != said(text):
            is_stale = True
            print(f"{page.relative_to(ROOT)}: {'stale' if options.check else 'written'}")
        if not options.check:
            page.write_text(text, encoding="utf-8")
    return int(options.check and is_stale)


if __name__ == "__main__":
    sys.exit(main())
