"""Examples are picked by rule: whoever reads the rollouts by hand finds the same ones."""

import math
from pathlib import Path
from typing import Any

import pytest

from groupwise.types import StepRecord, Verdict
from groupwise.web.report.digest import digest_rollouts
from groupwise.web.report.inputs import read_sources
from groupwise.web.report.page import Material
from groupwise.web.report.sections.shown_completions import render_examples

THOUGHT = "First add three and four, which makes seven; so <answer>7</answer>"
BARE = "<answer>7</answer>"


def test_one_pass_finds_what_the_rules_say(make: Any) -> None:
    steps = [
        (1, [make.group("a", [("Wait, no", Verdict.WRONG), ("x", Verdict.UNPARSED)], num_tokens=50)]),
        (2, [make.group("b", [("8", Verdict.WRONG), (THOUGHT, Verdict.CORRECT)], num_tokens=10)]),
        (3, [make.group("c", [(BARE, Verdict.CORRECT), (THOUGHT, Verdict.CORRECT)], num_tokens=3)]),
        (4, [make.group("d", [(THOUGHT, Verdict.CORRECT)], num_tokens=3)]),
        (5, []),
    ]
    digest = digest_rollouts(steps)
    found = {rule: (picked.step, picked.number) for rule, picked in digest.picked.items()}
    assert found == {"first_solve": (2, 1), "longest": (1, 1), "no_reasoning": (3, 0)}
    assert [step.step for step in digest.steps] == [1, 2, 3, 4]
    assert digest.num_rollouts == 7
    first, second = digest.steps[:2]
    assert (first.counts["backtracks"], first.counts["verifies"], first.num_correct) == (1, 0, 0)
    assert math.isnan(first.tokens_correct)
    assert (first.tokens_wrong, first.tokens_mean) == (50, 50.5)
    assert (second.tokens_correct, second.tokens_wrong) == (11, 10)


def test_nothing_is_picked_from_nothing() -> None:
    digest = digest_rollouts([])
    assert (digest.steps, digest.picked) == ((), {})


def test_held_out_examples_compare_first_with_last(make: Any, tmp_path: Path) -> None:
    right, wrong = (BARE, Verdict.CORRECT), ("8", Verdict.WRONG)
    before = [make.group(name, [answer]) for name, answer in zip("abcd", (right, wrong, wrong, right), strict=True)]
    after = [make.group(name, [answer]) for name, answer in zip("abcd", (right, right, wrong, wrong), strict=True)]
    evals = [(make.evaluation(0, 0.5, 0.2, 0.8), before), (make.evaluation(1, 0.5, 0.2, 0.8), after)]
    path = make.run(tmp_path / "run", [StepRecord(1, "grpo", 1, {})], evals)
    material = Material(read_sources([path]))
    content = render_examples(material)
    assert content is not None
    texts = material.texts.all()
    found = {example["rule"]: texts[example["prompt"]] for example in content.data["examples"]}
    assert found == {"learned": "question b", "still_wrong": "question c", "lost": "question d"}
    # What a model wrote is not in the HTML: only the number of its place.
    assert BARE not in content.html
    assert "data-text=" in content.html


@pytest.mark.parametrize("num_groups", [1, 10, 25])
def test_the_spread_leaves_out_a_tenth_at_each_end(make: Any, num_groups: int) -> None:
    groups = [make.group(str(number), [("x", Verdict.WRONG)], num_tokens=number) for number in range(1, num_groups + 1)]
    (step,) = digest_rollouts([(1, groups)]).steps
    below = sum(number < step.tokens_low for number in range(1, num_groups + 1))
    above = sum(number > step.tokens_high for number in range(1, num_groups + 1))
    assert below == above == num_groups // 10
