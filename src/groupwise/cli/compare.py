"""Compare results on the same problems: the first with each of the others.

Examples:
  groupwise compare evals/base evals/trained
  groupwise compare runs/mine@0 runs/mine
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from groupwise.base.harmless import printable
from groupwise.base.text_layout import percent
from groupwise.cli.arguments import Options, argument, json_option, takes
from groupwise.cli.printing import print_json, say, say_unread
from groupwise.config import ConfigError

if TYPE_CHECKING:
    from groupwise.evals.compare import Comparison

NUM_SHOWN = 5
"""Problems gained, and lost, in the terminal; `--json` has all of them."""


@takes(
    argument("sides", "a folder of `groupwise eval`, a run, or RUN@STEP", nargs="+", metavar="RESULT"),
    json_option("print JSON, with every problem whose score changed"),
)
def run(options: Options) -> int:
    from groupwise.evals.compare import compare, read_side
    from groupwise.runs.reader import read_each

    if len(options.sides) < 2:
        raise ConfigError("compare: name at least two results; the others are compared with the first")
    first = read_side(options.sides[0])
    comparisons, errors = read_each(options.sides[1:], lambda named: compare(first, read_side(named)))
    for comparison in comparisons:
        if options.json:
            print_json(comparison.to_json())
        else:
            _show(comparison)
    if len(comparisons) > 1 and not options.json:
        say(f"{len(comparisons)} comparisons: the more there are, the likelier one is to look clear by chance.")
    return say_unread(errors)


def _show(found: Comparison) -> None:
    from groupwise.runs.results import say_value

    say(f"{found.verdict}.")
    test = "McNemar's exact test" if found.test == "mcnemar" else "paired bootstrap"
    say(f"  pass@1 {percent(found.first_value)} → {percent(found.second_value)}; {test}, p = {found.p:.2g}")
    if found.left_out:
        say(f"  left out: {found.left_out:,} problems that are not on both sides or could not be judged", indent="  ")
    for name, (before, after) in found.scores.items():
        if name != "pass@1" and before != after:
            say(f"  {name} {say_value(name, before)} → {say_value(name, after)}")
    for note in found.notes:
        say(f"  note: {note}", indent="  ")
    for word, flips in (("gained", found.gained), ("lost", found.lost)):
        say(f"  {word}: {len(flips):,}")
        for flip in flips[:NUM_SHOWN]:
            change = f"{percent(flip.before, 0)} → {percent(flip.after, 0)}"
            say(f"    {change}  {flip.problem_id}  {printable(flip.question)}", indent="      ")
