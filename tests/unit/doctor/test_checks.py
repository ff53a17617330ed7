"""Each check on a run that has its problem and no other: it is reported, alone, live and afterwards."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise import cli
from groupwise.config import apply_override, make_recipe
from groupwise.doctor import CHECKS, examine, read_stages
from groupwise.doctor.live import LiveDoctor
from groupwise.doctor.stage_history import StageHistory
from groupwise.doctor.wording import log_message, say_change, vital_signs
from groupwise.runs import Run, RunLog
from groupwise.types import StepRecord, Verdict

ARCHIVE = Path(__file__).parents[3] / "benchmarks" / "results" / "archives" / "countdown.tar.xz"
RUSSIAN = "В каждом вагоне по тридцать четыре места, вагонов двенадцать, значит всего мест четыреста восемь."
DEAD = {
    **{"reward/mean": 0.0, "score/pass_at_1": 0.0, "groups/signal_share": 0.0, "groups/dead_all_wrong": 32.0},
    **{"groups/dead_all_correct": 0.0, "policy/loss": 0.0, "policy/grad_norm": 0.0, "kl/ref_k3": 0.0},
}
RUNNING_ON = "<answer>408</answer> Now the next question: a boat has 3 decks with 20 cabins each. How many are there?"


def after(number: int, start: int, metrics: dict[str, float]) -> dict[str, float]:
    return metrics if number > start else {}


def broken_runs(make: Any) -> dict[str, dict[str, Any]]:
    """What to break in a healthy run, by the check that reports it."""
    return {
        "no_learning": {"change": lambda n: DEAD},
        "nearly_greedy": {
            "change": lambda n: {"rollouts/identical_share": 0.6},
            "recipe": make.recipe(stage__sampling={"temperature": 0.01}),
        },
        "dead_groups": {"change": lambda n: {"groups/signal_share": 0.1, "groups/dead_all_wrong": 28.0}},
        "verifier_failures_grow": {
            "change": lambda n: after(n, 30, {"score/error_share": 0.0005 * n, "score/timed_out_share": 0.0005 * n})
        },
        "verifier_errors": {
            "change": lambda n: {"score/error_share": 0.08},
            "verdict": Verdict.ERROR,
            "detail": "ZeroDivisionError: division by zero",
        },
        "verifier_time_outs": {"change": lambda n: {"score/timed_out_share": 0.02}},
        "truncation": {"change": lambda n: after(n, 40, {"rollouts/truncated_share": 0.7})},
        "kl_spike": {"change": lambda n: after(n, 40, {"kl/ref_k3": 2.0})},
        "kl_stuck_at_zero": {"change": lambda n: {"kl/ref_k3": 0.0}},
        "entropy_collapse": {"change": lambda n: {"policy/entropy_nats": 0.8 * 0.9**n}},
        "ratio_explosion": {
            "change": lambda n: after(n, 30, {"policy/clip_share": 0.5, "policy/ratio_max": 200.0}),
            "recipe": make.recipe(stage__epochs_per_batch=4),
        },
        "gradient_spikes": {"change": lambda n: {"policy/grad_norm": 40.0} if n > 30 and n % 6 == 0 else {}},
        "updates_not_finite": {"change": lambda n: {"update/skipped": 1.0} if n % 20 == 0 else {}},
        "length_collapse": {"change": lambda n: after(n, 45, {"rollouts/length_mean_tokens": 12.0})},
        "reasoning_dropped": {
            "change": lambda n: (
                {"rollouts/length_mean_tokens": 18.0}
                | ({"rollouts/length_mean_tokens": 400.0, "reward/mean": 0.0} if n <= 3 else {})
            )
        },
        "length_growth": {"change": lambda n: after(n, 45, {"rollouts/length_mean_tokens": 900.0})},
        "hollow_reward": {"change": lambda n: {"reward/mean": 0.2 + 0.01 * n}},
        "held_out_falls": {"evals": lambda n: 0.5 - 0.003 * n},
        "identical_completions": {"change": lambda n: after(n, 40, {"rollouts/identical_share": 0.6})},
        "other_writing_system": {"completion": RUSSIAN},
        "runs_on_after_answer": {"completion": RUNNING_ON},
        "learning_rate_too_small": {
            "change": lambda n: {"policy/learning_rate": 1e-8},
            "recipe": make.recipe(stage__optimizer={"learning_rate": 1e-8}),
            "device": "cuda",
        },
        "engine_gap": {"change": lambda n: after(n, 20, {"engine/logprob_gap_mean": 0.3})},
        "slow_phase": {"change": lambda n: {"time/score_s": 6.0}},
    }


@pytest.mark.parametrize("check", CHECKS)
def test_a_problem_is_named_alone_and_its_change_can_be_made(check: str, make: Any, tmp_path: Path) -> None:
    broken = broken_runs(make)[check]
    run = Run(make.run(tmp_path / "run", **broken))
    findings = examine(read_stages(run))
    assert [finding.check for finding in findings] == [check]
    (finding,) = findings
    assert finding.stage == "grpo"
    assert 1 <= finding.first_step <= finding.last_step <= make.num_steps
    assert finding.figures
    assert all(map(math.isfinite, finding.figures.values()))
    assert all((finding.seen, finding.means, finding.change.advice))
    if finding.change.key:
        recipe = run.recipe
        words = say_change(finding.change).split("  (")[0]
        assert words.startswith("--set ")
        apply_override(recipe, words.removeprefix("--set ").replace("'", ""))
        assert make_recipe(recipe) != make_recipe(run.recipe), "the change changes nothing"


def live_findings(run_dir: Path) -> list[str]:
    return [event["check"] for event in Run(run_dir).events() if event["kind"] == "finding"]


@pytest.mark.parametrize("check", CHECKS)
def test_a_run_that_goes_on_is_told_once(check: str, make: Any, tmp_path: Path) -> None:
    broken = broken_runs(make)[check]
    run_dir = make.run(tmp_path / "run", **broken, sinks=[LiveDoctor()])
    assert live_findings(run_dir) == [check]


@pytest.mark.parametrize(
    ("verifier", "machine", "expected"),
    [({}, {"num_cores": 16}, 16), ({}, {"num_cores": 2}, 4), ({}, {}, 8), ({"workers": 3}, {"num_cores": 16}, 6)],
)
def test_scores_that_are_waited_for_ask_for_more_processes(
    verifier: dict[str, int], machine: dict[str, int], expected: int, make: Any, tmp_path: Path
) -> None:
    recipe = make.recipe() | {"verifier": verifier}
    run_dir = make.run(tmp_path / "run", lambda n: {"time/score_s": 6.0}, recipe=recipe)
    (run_dir / "run.json").write_text(json.dumps({"machine": machine}))
    (finding,) = examine(read_stages(Run(run_dir)))
    assert (finding.change.key, finding.change.value) == ("verifier.workers", expected)


def test_what_greedy_sampling_explains_is_not_blamed_on_something_else(make: Any, tmp_path: Path) -> None:
    """Numbers of a GSM8K run with groups of 4 at temperature 0.01 (docs/lab-log.md)."""

    def change(number: int) -> dict[str, float]:
        dead = {"groups/signal_share": 0.03, "groups/dead_all_wrong": 48.0, "groups/dead_all_correct": 14.0}
        spikes = {"kl/ref_k3": 1e6, "policy/grad_norm": 1e7} if number % 7 == 0 else {"kl/ref_k3": 30.0}
        return dead | spikes | {"rollouts/identical_share": 0.65}

    cold, warm = (make.recipe(stage__sampling={"temperature": value}) for value in (0.01, 1.0))
    (finding,) = examine(read_stages(Run(make.run(tmp_path / "cold", change, recipe=cold))))
    assert finding.check == "nearly_greedy"
    assert "temperature 0.01 in groups of 8" in finding.seen
    assert "100 times as sharp" in finding.means
    others = examine(read_stages(Run(make.run(tmp_path / "warm", change, recipe=warm))))
    assert {other.check for other in others} == {
        "dead_groups",
        "identical_completions",
        "kl_spike",
        "gradient_spikes",
    }


def test_cold_sampling_whose_rollouts_differ_or_are_right_is_let_be(make: Any, tmp_path: Path) -> None:
    cold = make.recipe(stage__sampling={"temperature": 0.2})
    assert not examine(read_stages(Run(make.run(tmp_path / "differ", recipe=cold))))
    right = {"rollouts/identical_share": 0.8, "score/pass_at_1": 0.97, "reward/mean": 0.97}
    assert not examine(
        read_stages(Run(make.run(tmp_path / "right", lambda n: right, recipe=cold, evals=lambda n: 0.97)))
    )


def test_a_score_that_falls_is_told_once_and_chance_is_let_be(make: Any, tmp_path: Path) -> None:
    """Numbers of a MATH level 5 run that its report called worse (docs/lab-log.md)."""

    def found(name: str, reward: float, fall: float) -> list[str]:
        run_dir = make.run(
            tmp_path / name,
            lambda n: {"reward/mean": 0.2 + reward * n},
            evals=lambda n: 0.5 - fall * n / make.num_steps,
        )
        return [finding.check for finding in examine(read_stages(Run(run_dir)))]

    assert found("falls", 0.0, 0.08) == ["held_out_falls"]
    assert found("chance", 0.0, 0.06) == []
    assert found("paid", 0.01, 0.08) == ["hollow_reward"]


def test_a_fall_that_a_later_stage_made_up_for_is_only_a_warning(tmp_path: Path) -> None:
    """Countdown's SFT stage costs 12 points, and GRPO after it wins 18 (docs/results)."""
    with tarfile.open(ARCHIVE) as packed:
        members = [one for one in packed.getmembers() if one.name.startswith("countdown/staged-refilled-0/")]
        packed.extractall(tmp_path, members=members, filter="data")
    _, distill, _ = read_stages(Run(tmp_path / "countdown" / "staged-refilled-0"))
    (finding,) = examine([distill])
    assert (finding.check, finding.severity) == ("held_out_falls", "warning")
    assert finding.seen.startswith("held-out pass@1 57.2 % (step 80) → 44.8 % (step 120")
    assert finding.seen.endswith("; since then 63.5 % (step 200)")
    # As it was seen while the stage was the last one, and as it would be had the next one not been enough.
    until = [record for record in distill.evals if record.step <= 120]
    for evals in (until, [*until, dataclasses.replace(distill.evals[-1], pass_at_1=0.57)]):
        (finding,) = examine([dataclasses.replace(distill, evals=tuple(evals))])
        assert (finding.check, finding.severity) == ("held_out_falls", "problem")
        assert "since then" not in finding.seen


def test_what_is_paid_for_is_named(make: Any, tmp_path: Path) -> None:
    """Numbers of a Countdown run that divided two similar numbers to come near a third one (docs/lab-log.md)."""

    def advised(name: str, part: str, **reward: Any) -> tuple[str, Any, str]:
        def paid(number: int) -> dict[str, float]:
            parts = {"reward/part/format": 0.05, "reward/part/near": 0.1, "reward/part/correct": 0.05}
            return {"reward/mean": 0.2 + 0.01 * number} | parts | {f"reward/part/{part}": 0.01 * number}

        recipe = make.recipe(stage__reward=reward) if reward else make.recipe()
        (finding,) = examine(read_stages(Run(make.run(tmp_path / name, paid, recipe=recipe, evals=lambda n: 0.05))))
        assert finding.check == "hollow_reward"
        return finding.change.key, finding.change.value, finding.change.advice

    key, value, advice = advised("near", "near")
    assert (key, value) == ("stages.0.reward.part_weights.near", 0.5)
    assert "paid for `near`" in advice
    assert advised("less", "near", part_weights={"near": 0.5})[:2] == ("stages.0.reward.part_weights.near", 0.25)
    faded = advised("format", "format", format_parts=["tag", "format"])
    assert faded[0] == "stages.0.reward.format_anneal_steps"
    unpaid = advised("unpaid", "near", part_weights={"near": 0.0}, format_parts=["tag", "format"])
    assert unpaid[0] == "stages.0.reward.format_anneal_steps"


def test_kl_that_is_far_from_the_first_step_on_has_not_jumped(make: Any, tmp_path: Path) -> None:
    (finding,) = examine(read_stages(Run(make.run(tmp_path / "run", lambda n: {"kl/ref_k3": 3.0}))))
    assert finding.check == "kl_spike"
    assert "was from the first step on 3 nats" in finding.seen


def test_reasoning_that_was_cut_off_gets_room_and_paid_brevity_is_let_be(make: Any, tmp_path: Path) -> None:
    def shrinks(number: int) -> dict[str, float]:
        long = {"rollouts/length_mean_tokens": 200.0, "reward/mean": 0.0, "rollouts/truncated_share": 0.4}
        return long if number <= 3 else {"rollouts/length_mean_tokens": 18.0}

    (finding,) = examine(read_stages(Run(make.run(tmp_path / "cut", shrinks))))
    assert (finding.check, finding.change.key) == ("reasoning_dropped", "stages.0.sampling.max_new_tokens")
    assert "40 % were cut off" in finding.change.advice
    paid = make.recipe(stage__reward={"length_cost": 0.1})
    assert not examine(read_stages(Run(make.run(tmp_path / "paid", shrinks, recipe=paid))))


def test_a_few_steps_get_no_clean_bill(make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = make.run(tmp_path / "run", num_steps=19)
    assert cli.main(["doctor", str(run_dir)]) == 0
    shown = capsys.readouterr().out
    assert "No problem found so far" in shown
    assert "checks passed" not in shown


@pytest.mark.parametrize("num_steps", [3, 6, 80])
def test_a_dead_run_is_the_first_thing_to_be_said(
    num_steps: int, make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dead runs with updates of gradient 0, as a KL term makes them, and without any update."""
    for name, missing in (("updated", ()), ("skipped", ("policy/loss", "policy/grad_norm"))):
        run_dir = make.run(tmp_path / name, lambda n: DEAD, num_steps=num_steps, missing=missing, sinks=[LiveDoctor()])
        assert live_findings(run_dir) == ["no_learning"]
        assert cli.main(["doctor", str(run_dir)]) == 1
        shown = " ".join(capsys.readouterr().out.split())
        assert f"No gradient in {num_steps} of {num_steps} steps" in shown
        assert "problem: No learning: the gradient is 0" in shown
        assert "That is right" not in shown
        assert "No problem found" not in shown


def test_two_steps_and_a_step_with_a_gradient_are_no_dead_run(make: Any, tmp_path: Path) -> None:
    for name, kept in (("two", {"num_steps": 2}), ("one moves", {"num_steps": 9})):
        run_dir = make.run(tmp_path / name, lambda n: DEAD if n != 5 else {}, **kept)
        assert examine(read_stages(Run(run_dir))) == ()


def test_the_cause_of_a_dead_run_decides_what_to_change(make: Any, tmp_path: Path) -> None:
    def found(name: str, changes: dict[str, float], **recipe: Any) -> Any:
        (finding,) = examine(
            read_stages(
                Run(make.run(tmp_path / name, lambda n: DEAD | changes, recipe=make.recipe(**recipe), num_steps=6))
            )
        )
        return finding

    assert found("wrong", {}).change.key == ""
    assert found("cut", {"rollouts/truncated_share": 0.9}).change.key == "stages.0.sampling.max_new_tokens"
    assert found("cold", {}, stage__sampling={"temperature": 0.1}).change.key == "stages.0.sampling.temperature"
    assert found("failing", {"score/error_share": 1.0}).check == "verifier_errors"
    solved = {"reward/mean": 1.0, "score/pass_at_1": 1.0, "groups/dead_all_correct": 32.0, "groups/dead_all_wrong": 0.0}
    assert found("solved", solved).severity == "warning"


def test_a_nearly_solved_task_has_no_groups_without_signal(make: Any, tmp_path: Path) -> None:
    def found(name: str, pass_at_1: float, right: float) -> list[str]:
        same = {"groups/signal_share": 0.1, "groups/dead_all_correct": right, "groups/dead_all_wrong": 28.8 - right}
        run_dir = make.run(tmp_path / name, lambda n: same | {"score/pass_at_1": pass_at_1})
        return [finding.check for finding in examine(read_stages(Run(run_dir)))]

    assert found("solved", 0.85, 26.0) == []
    assert found("split", 0.6, 16.0) == ["dead_groups"]


def test_a_loss_of_zero_is_right_only_where_a_gradient_flows(make: Any, tmp_path: Path) -> None:
    (stage,) = read_stages(Run(make.run(tmp_path / "still", lambda n: {"policy/grad_norm": 0.0})))
    assert "so is the gradient" in vital_signs(stage)[0]


def test_sharper_sampling_beside_a_greedy_score_is_no_hollow_reward(make: Any, tmp_path: Path) -> None:
    """The tutorial's case: greedy answers were right from the start, and sampled ones catch up with them."""

    def found(name: str, temperature: float, last: float) -> list[str]:
        recipe = make.recipe() | {"evaluation": {"temperature": temperature}}
        run_dir = make.run(
            tmp_path / name,
            lambda n: {"reward/mean": 0.1 + (last - 0.1) * n / 80, "score/pass_at_1": 0.1 + (last - 0.1) * n / 80},
            recipe=recipe,
            evals=lambda n: 0.8,
        )
        return [finding.check for finding in examine(read_stages(Run(run_dir)))]

    assert found("catches up", 0.0, 0.8) == []
    assert found("by heart", 0.0, 1.0) == ["hollow_reward"]
    assert found("sampled evaluation", 1.0, 0.8) == ["hollow_reward"]


def test_the_option_to_set_is_a_line_of_the_log_by_itself(
    make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make.run(tmp_path / "run", lambda n: {"rollouts/truncated_share": 0.9}, sinks=[LiveDoctor()])
    title, option, advice = caplog.messages[0].splitlines()
    assert title.startswith("problem: Completions are cut off (stage grpo, step 20): 90 %")
    assert option == "  --set stages.0.sampling.max_new_tokens=512"
    assert advice == "  let completions finish"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_word_and_no_command_is_split(
    columns: int, make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    run_dir = make.run(tmp_path / "run", lambda n: {"reward/mean": 0.2 + 0.01 * n})
    (finding,) = examine(read_stages(Run(run_dir)))
    cli.main(["doctor", str(run_dir)])
    lines = capsys.readouterr().out.splitlines()
    words = {word for line in lines for word in line.split()}
    assert {*finding.seen.split(), *finding.means.split(), *finding.change.advice.split()} <= words
    assert any("`groupwise audit RUN`" in line for line in lines)
    override = say_change(finding.change).split("  (")[0]
    assert any(line.strip().removeprefix("change").strip() == override for line in lines)
    assert max(map(len, lines)) <= columns


def test_a_healthy_run_gets_a_clean_bill(make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = make.run(tmp_path / "run", sinks=[LiveDoctor()])
    assert cli.main(["doctor", str(run_dir)]) == 0
    shown = capsys.readouterr().out
    assert "checks passed" in shown
    assert live_findings(run_dir) == []
    # The first screen answers the question that everybody asks.
    assert "The loss is 0 in 100 % of the steps. That is right" in shown


def test_the_exit_status_and_the_json_tell_of_problems(
    make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = make.run(tmp_path / "run", lambda n: {"rollouts/truncated_share": 0.9})
    assert cli.main(["doctor", str(run_dir), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["check"] == "truncation"
    assert finding["change"]["key"] == "stages.0.sampling.max_new_tokens"
    assert finding["change"]["value"] == 512
    assert cli.main(["doctor", str(run_dir)]) == 1
    assert "--set stages.0.sampling.max_new_tokens=512" in capsys.readouterr().out
    watched = make.run(tmp_path / "watched", lambda n: {"time/score_s": 6.0})
    assert cli.main(["doctor", str(watched)]) == 0
    assert "warning: A slow phase" in capsys.readouterr().out


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", str(tmp_path)]) == 2
    assert "is not a run" in capsys.readouterr().err


def test_a_run_without_recipe_rollouts_and_evals_is_still_examined(make: Any, tmp_path: Path) -> None:
    run_dir = make.run(tmp_path / "run", lambda n: {"rollouts/truncated_share": 0.9})
    for path in [run_dir / "recipe.toml", run_dir / "run.json", run_dir / "evals.jsonl"]:
        path.unlink()
    for path in (run_dir / "rollouts").iterdir():
        path.unlink()
    assert [finding.check for finding in examine(read_stages(Run(run_dir)))] == ["truncation"]


def test_a_policy_that_learns_is_let_be(make: Any, tmp_path: Path) -> None:
    """Few groups with signal, cut completions, falling length: all as in a base model that learns to stop."""
    learning = {"groups/signal_share": 0.1, "rollouts/truncated_share": 0.6}
    run_dir = make.run(
        tmp_path / "run",
        lambda n: {
            **learning,
            "reward/mean": 0.01 * n,
            "rollouts/length_mean_tokens": 300.0 - 3 * n,
            "score/pass_at_1": 0.01 * n,
        },
        evals=lambda n: 0.1 + 0.008 * n,
    )
    assert examine(read_stages(Run(run_dir))) == ()


def test_a_solved_task_may_look_collapsed(make: Any, tmp_path: Path) -> None:
    solved = {"score/pass_at_1": 0.99, "policy/entropy_nats": 0.01, "rollouts/identical_share": 0.87}
    run_dir = make.run(tmp_path / "run", lambda n: after(n, 45, solved | {"groups/signal_share": 0.0}))
    assert examine(read_stages(Run(run_dir))) == ()


def test_a_resumed_run_does_not_repeat_itself(make: Any, tmp_path: Path) -> None:
    run_dir = make.run(tmp_path / "run", lambda n: {"rollouts/truncated_share": 0.9})
    record = Run(run_dir).steps()[-1]
    for _ in range(2):
        # The first time there is no event of it in the log, so it is reported from the steps before.
        doctor = LiveDoctor()
        doctor.watch(RunLog(run_dir))
        doctor.write(record)
        assert live_findings(run_dir) == ["truncation"]


def test_a_finding_that_only_the_last_evaluation_shows_is_reported_when_the_stage_ends(
    make: Any, tmp_path: Path
) -> None:
    """The evaluation after the last step is written after that step: the next look is the end of the stage."""
    run_dir, doctor = tmp_path / "run", LiveDoctor()
    make.run(run_dir, lambda n: {"reward/mean": 0.2 + 0.01 * n})
    log = RunLog(run_dir)
    doctor.watch(log)
    for record in Run(run_dir).steps():
        doctor.write(record)
    before = live_findings(run_dir)
    doctor.write_event("stage_finished", {"name": "grpo", "step": record.step})
    assert before == live_findings(run_dir) == ["hollow_reward"]


def test_the_log_holds_nothing_that_a_terminal_obeys(make: Any, tmp_path: Path) -> None:
    broken = broken_runs(make)["verifier_errors"] | {"detail": "\x1b[2Jbad\nnews"}
    (finding,) = examine(read_stages(Run(make.run(tmp_path / "run", **broken))))
    assert "bad news" in log_message(finding)
    assert "\x1b" not in log_message(finding)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    length=st.floats(5, 2000),
    entropy=st.floats(0.02, 3),
    signal=st.floats(0.4, 1),
    kl=st.floats(1e-5, 0.2),
    gradient=st.floats(0.01, 50),
    wildness=st.floats(0.05, 0.5),
)
def test_noise_around_a_flat_run_never_alarms(
    seed: int, length: float, entropy: float, signal: float, kl: float, gradient: float, wildness: float
) -> None:
    noise = random.Random(seed)

    def wild(level: float) -> float:
        return level * noise.lognormvariate(0, wildness)

    steps = []
    for number in range(1, 201):
        metrics = {
            "reward/mean": noise.gauss(0.4, 0.1),
            "score/pass_at_1": noise.gauss(0.4, 0.1),
            "score/error_share": 0.05 if noise.random() < 0.02 else 0.0,
            "score/timed_out_share": 0.05 if noise.random() < 0.02 else 0.0,
            "groups/count": 16.0,
            "rollouts/count": 128.0,
            "groups/signal_share": min(1.0, wild(signal)),
            "rollouts/truncated_share": min(1.0, wild(0.15)),
            "rollouts/identical_share": min(0.8, wild(0.1)),
            "rollouts/length_mean_tokens": wild(length),
            "policy/entropy_nats": wild(entropy),
            "policy/grad_norm": wild(gradient),
            "policy/ratio_max": wild(2.0),
            "policy/clip_share": min(1.0, wild(0.03)),
            "kl/ref_k3": wild(kl),
            "engine/logprob_gap_mean": wild(0.01),
            "update/skipped": 1.0 if number == 100 else 0.0,
        }
        steps.append(StepRecord(number, "grpo", number, metrics))
    table = {"stages": [{"name": "grpo", "steps": 200}]}
    for end in (40, 100, 200):
        assert examine([StageHistory("grpo", tuple(steps[:end]), (), table, {}, lambda: ())]) == ()


def test_a_divergence_that_is_the_whole_loss_is_what_to_change(make: Any, tmp_path: Path) -> None:
    recipe = make.recipe()
    recipe["stages"][0].setdefault("kl", {})["coefficient"] = float("inf")
    run_dir = make.run(tmp_path / "run", lambda n: {"kl/ref_k3": 0.0, "policy/grad_norm": 0.0}, recipe=recipe)
    (finding,) = examine(read_stages(Run(run_dir)))
    assert finding.check == "kl_stuck_at_zero"
    assert (finding.change.key, finding.change.value) == ("stages.0.kl.coefficient", 0.02)
