"""Runs that are really trained and really broken: the doctor names each, while it trains and afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupwise.audit.held_out_gain import HeldOutWatch
from groupwise.cli.train import train_here
from groupwise.config import Recipe
from groupwise.doctor import LiveDoctor, examine, read_stages
from groupwise.engines.native import decode
from groupwise.engines.sampling import draw_tokens
from groupwise.runs import Run
from groupwise.training import grpo, pipeline
from groupwise.training.gate import check_engine
from groupwise.training.setup import RunRequest

STAGE: dict[str, Any] = {
    "algorithm": "grpo",
    "steps": 15,
    "problems_per_step": 4,
    "rollouts_per_problem": 4,
    "sampling": {"max_new_tokens": 6},
    "optimizer": {"learning_rate": 1e-4},
}
TOY = "tests.integration.toy_task:EvenLetters"
HARD = {"name": "countdown", "options": {"style": "terse", "think": False, "num_train": 30, "num_held_out": 6}}

SFT = {"algorithm": "sft", "steps": 60, "demonstrations_per_step": 8, "optimizer": {"learning_rate": 1e-2}}
PARROT = "tests.integration.parrot_task:Parrot"
LETTERS = list("abcdefghijklmnopqrstuvwxyz")


def parrot(sentence: str) -> dict[str, Any]:
    """A recipe whose policy knows a sentence by heart when GRPO begins."""
    still = STAGE | {"optimizer": {"learning_rate": 1e-6}, "sampling": {"max_new_tokens": 90}}
    return {"task": {"name": PARROT, "options": {"sentence": sentence}}, "stages": [SFT, still]}


BROKEN: dict[str, dict[str, Any]] = {
    "verifier_errors": {"task": {"name": TOY, "options": {"fail": "raise"}}},
    "verifier_time_outs": {
        "task": {"name": TOY, "options": {"fail": "hang"}},
        "verifier": {"seconds": 0.05, "wall_seconds": 5.0},
    },
    "engine_gap": {},
    "no_learning": {"task": HARD},
    "ratio_explosion": {
        "stages": [STAGE | {"epochs_per_batch": 4, "optimizer": {"learning_rate": 0.03}, "kl": {"coefficient": 0.0}}]
    },
    "truncation": {"stages": [STAGE | {"steps": 25, "optimizer": {"learning_rate": 1e-6}}]},
    "kl_stuck_at_zero": {
        "stages": [
            STAGE
            | {
                "steps": 25,
                "sampling": {"max_new_tokens": 60, "stop_strings": LETTERS},
                "optimizer": {"learning_rate": 1e-14},
            }
        ]
    },
    "kl_spike": {"stages": [STAGE | {"optimizer": {"learning_rate": 0.1}}]},
    "updates_not_finite": {
        "stages": [STAGE | {"steps": 1, "epochs_per_batch": 40, "optimizer": {"learning_rate": 1.0}}],
        "max_nonfinite_updates": 100,
    },
    "runs_on_after_answer": parrot("<answer>8</answer> and so on and on and on and on and on"),
    "other_writing_system": parrot("Ответ на этот вопрос восемь."),
}


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_recipe_is_found_out(
    check: str,
    recipe_with: Callable[..., Recipe],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if check == "engine_gap":
        _let_the_engine_change_its_temperature_after_the_gate(monkeypatch)
    recipe = recipe_with(**({"stages": [STAGE], "evaluation": {"every_steps": 0}} | BROKEN[check]))
    with caplog.at_level(logging.WARNING, logger="groupwise.doctor"):
        assert pipeline.train(recipe, tmp_path / "run", [LiveDoctor(), HeldOutWatch()])
    run = Run(tmp_path / "run")
    live = [event["check"] for event in run.events() if event["kind"] == "finding"]
    assert live == [check]
    assert [finding.check for finding in examine(read_stages(run))] == [check]
    assert [record.name for record in caplog.records if record.name.startswith("groupwise.doctor")] == [
        "groupwise.doctor.live"
    ]


def _let_the_engine_change_its_temperature_after_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    scales = [1.0]

    def checked(*arguments: Any) -> None:
        check_engine(*arguments)
        scales[0] = 3.0

    monkeypatch.setattr(grpo, "check_engine", checked)
    monkeypatch.setattr(decode, "draw_tokens", lambda logits, *rest: draw_tokens(scales[0] * logits, *rest))


def test_after_a_run_with_a_problem_the_doctor_comes_next(
    recipe_with: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_with(stages=[STAGE], evaluation={"every_steps": 0}, **BROKEN["no_learning"])
    assert train_here(RunRequest(recipe, tmp_path / "run")) == 0
    following = capsys.readouterr().out.split("Next:\n")[1].splitlines()
    assert following[0] == f"groupwise doctor {tmp_path / 'run'}"
