from __future__ import annotations

from pathlib import Path
from typing import Any

from groupwise.doctor import CHECKS
from groupwise.runs import RunLog
from groupwise.types import StepRecord
from groupwise.web.report.report import make_report

HOSTILE = "<script>document.title='owned'</script>"


def steps(**metrics: float) -> list[StepRecord]:
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    base = {"reward/mean": 0.5, "policy/loss": 0.0, "policy/grad_norm": 1.0, "groups/signal_share": 0.9}
    return [StepRecord(number, "grpo", number, base | {"groups/count": 8.0} | named) for number in range(1, 41)]


def test_a_healthy_run_gets_a_clean_bill_and_an_answer_about_its_loss(tmp_path: Path, make: Any) -> None:
    report = make_report([make.run(tmp_path / "run", steps())])
    health = report.twin["sections"]["health"]["runs"][0]
    assert health["findings"] == []
    assert "The loss is 0 in 100 % of the steps" in health["stages"][0]["vital_signs"][0]
    assert f"No problem found: all {len(CHECKS)} checks passed." in report.html
    assert "guards" not in report.twin["sections"]


def test_a_few_steps_are_no_clean_bill(tmp_path: Path, make: Any) -> None:
    report = make_report([make.run(tmp_path / "run", steps()[:19])])
    assert "No problem found so far: most checks need 20 steps" in report.html
    assert "Healthy" not in report.html


def test_a_run_with_a_problem_is_told_what_to_change(tmp_path: Path, make: Any) -> None:
    starved = steps(groups__signal_share=0.05, groups__dead_all_wrong=7.6, rollouts__count=64.0)
    report = make_report([make.run(tmp_path / "run", starved)])
    findings = report.twin["sections"]["health"]["runs"][0]["findings"]
    assert findings
    for finding in findings:
        assert finding["severity"] in ("problem", "warning")
        assert finding["seen"]
        assert finding["say_change"]
    assert "Healthy" not in report.html
    assert findings[0]["title"] in report.html


def test_the_summary_of_a_run_without_a_gradient_says_that_it_did_not_learn(tmp_path: Path, make: Any) -> None:
    dead = steps(groups__signal_share=0.0, policy__grad_norm=0.0)
    evals = [(make.evaluation(step, 0.1, 0.0, 0.2), []) for step in (0, 40)]
    for path in (make.run(tmp_path / "run", dead, evals), make.run(tmp_path / "no evals", dead)):
        (card,) = make_report([path]).twin["sections"]["summary"]["cards"]
        assert card["headline"] == "The run did not learn: no step had a gradient"


def test_guards_are_drawn_and_what_broke_is_said(tmp_path: Path, make: Any) -> None:
    path = make.run(tmp_path / "run", steps())
    log = RunLog(path)
    log.write_event("guards", step=20, broken=[], action="warn", perplexity=99.0, format_share=0.1)
    readings = {0: (12.0, 0.9), 20: (13.0, 0.85), 40: (20.0, 0.8)}
    for step, (perplexity, share) in readings.items():
        broken = [f"perplexity went up {HOSTILE}"] if step == 40 else []
        log.write_event(
            "guards", step=step, broken=broken, action="end_stage", perplexity=perplexity, format_share=share
        )
    report = make_report([path])
    guards = report.twin["sections"]["guards"]
    perplexity, format_share = guards["charts"]
    assert perplexity["lines"][0]["x"] == [0, 20, 40]
    assert perplexity["lines"][0]["y"] == [12, 13, 20], "of two readings after one step the later stands"
    assert format_share["unit"] == "share"
    assert guards["rows"] == [
        ["Perplexity on general text", "12.00", "20.00", "20.00"],
        ["General format requests", "90.0 %", "80.0 %", "80.0 %"],
    ]
    assert guards["broken"] == [f"run, step 40: perplexity went up {HOSTILE} (end_stage)"]
    assert HOSTILE not in report.html
