"""How many runs go at once, and what the terminal shows of them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from groupwise.config import ConfigError, Recipe
from groupwise.sweeps import machine
from groupwise.sweeps.arms import resolve
from groupwise.sweeps.display import Display, runs_table
from groupwise.sweeps.folder import SweepJob, jobs_of
from groupwise.sweeps.machine import (
    ArmPlan,
    Machine,
    auto_jobs,
    place,
    plan_recipes,
    shared_cores,
    shared_memory,
    visible_devices,
)
from groupwise.sweeps.run_jobs import JobProgress
from groupwise.sweeps.spec import parse_spec
from groupwise.sweeps.sweep_records import Arm, Sweep

GIB = 2**30
SPEC = 'name = "small"\nrecipe = "demo"\n[[arms]]\nname = "one"\n'


@pytest.fixture
def sweep() -> Sweep:
    return resolve(parse_spec(SPEC), Path())


@pytest.mark.parametrize(
    ("found", "cores", "expected", "words"),
    [
        (Machine(0, 0), 8, 4, "half of the 8 cores"),
        (Machine(0, 0), 1, 1, "half of the 1 cores"),
        (Machine(1, 100 * GIB, (ArmPlan(9, 10 * GIB, True), ArmPlan(9, 20 * GIB, True))), 16, 4, "largest needs 20.0"),
        (Machine(2, 100 * GIB, (ArmPlan(9, 20 * GIB, True),)), 16, 8, "as many as fit"),
        (Machine(1, 100 * GIB, (ArmPlan(9, 1 * GIB, True),)), 4, 4, "as many as cores (90 would fit"),
        (Machine(1, 10 * GIB, (ArmPlan(9, 20 * GIB, False),)), 4, 1, "as many as fit"),
        (
            Machine(2, 10 * GIB, (ArmPlan(9, GIB, True), "no such model")),
            4,
            2,
            "one per GPU, because there is no plan",
        ),
    ],
)
def test_as_many_as_fit(found: Machine, cores: int, expected: int, words: str) -> None:
    count, reason = auto_jobs(found, cores)
    assert count == expected
    assert words in reason


def test_vllm_gets_its_part_of_the_gpu(sweep: Sweep, tmp_path: Path) -> None:
    (job,) = jobs_of(sweep, tmp_path, sweep.arms)
    assert shared_memory(sweep, job, 4) == ()

    def with_engine(**engine: str | float) -> SweepJob:
        return replace(job, arm=Arm("x", "", "", "", {f"engine.{key}": value for key, value in engine.items()}))

    assert shared_memory(sweep, with_engine(name="vllm"), 4) == ("engine.memory_share=0.1",)
    assert shared_memory(sweep, with_engine(name="vllm", memory_share=0.6), 2) == ("engine.memory_share=0.3",)
    assert shared_memory(sweep, with_engine(name="vllm", url="http://127.0.0.1:8000"), 2) == ()
    assert shared_memory(sweep, with_engine(name="vllm"), 1) == ()


def test_runs_that_share_the_cores_share_those_of_their_verifiers(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = jobs_of(sweep, tmp_path, sweep.arms)
    given = replace(job, arm=Arm("x", "", "", "", {"verifier.workers": 5}))
    assert shared_cores(sweep, job, 3, 24) == ("verifier.workers=4",)
    assert shared_cores(sweep, given, 3, 24) == ()
    monkeypatch.setattr(machine, "look_apart", lambda recipes: Machine(0, 0))
    monkeypatch.setattr(machine, "num_cores", lambda: 12)
    placement, _ = place(sweep, [sweep.recipe(arm) for arm in sweep.arms], 2)
    assert placement.overrides(job) == ("verifier.workers=3",)


def test_runs_are_spread_over_the_gpus(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[Recipe]] = []

    def look(recipes: Sequence[Recipe]) -> Machine:
        asked.append(recipes)
        return Machine(2, 100 * GIB, tuple(ArmPlan(9, 40 * GIB, True) for _ in recipes))

    monkeypatch.setattr(machine, "look_apart", look)
    monkeypatch.setattr(machine, "num_cores", lambda: 16)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    recipes = [sweep.recipe(arm) for arm in sweep.arms]
    placement, reason = place(sweep, recipes, "auto")
    assert (placement.at_once, placement.devices) == (4, ("4", "6"))
    assert "at once: 4" in reason
    assert place(sweep, recipes, 3)[0].at_once == 3
    assert place(sweep, recipes, 1)[0].devices == ()
    assert [len(given) for given in asked] == [1, 0]  # one run at a time asks nobody
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert visible_devices(3) == ("0", "1", "2")


def test_a_plan_is_the_planners_and_a_model_that_is_not_here_has_none(sweep: Sweep) -> None:
    recipe = sweep.recipe(sweep.arms[0])
    away = replace(recipe, model=replace(recipe.model, path="/no/such/folder", tiny={}))
    total, (plan, reason) = plan_recipes([recipe, away], "h200")
    assert total > 100 * GIB
    assert isinstance(plan, ArmPlan)
    assert plan.fits
    assert 0.75 * GIB < plan.peak_bytes < 10 * GIB
    assert isinstance(reason, str)
    assert "/no/such/folder" in reason
    with pytest.raises(ConfigError, match="unknown"):
        plan_recipes([recipe], "h2000")


def progress(sweep: Sweep, folder: Path) -> JobProgress:
    (job,) = jobs_of(sweep, folder, sweep.arms)
    return JobProgress(job, "failed", 3, 0.25, "Error: [red]odd\x1b[31m")


def test_a_file_gets_plain_lines(sweep: Sweep, tmp_path: Path) -> None:
    stream = io.StringIO()
    display = Display(2, stream)
    run = progress(sweep, tmp_path)
    display.changed(replace(run, status="running", error=""))
    display.changed(run)
    display.changed(replace(run, status="finished", error=""))
    display.passed([run])
    display.close()
    assert stream.getvalue().splitlines() == [
        "one, seed 0: running step 3/390",
        "one, seed 0: failed at step 3/390: Error: [red]odd [1/2]",
        "one, seed 0: finished held-out 0.250 [2/2]",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_table_that_fits_it(sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("LINES", "10")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    display = Display(40, stream)
    waiting = replace(progress(sweep, tmp_path), status="waiting", error="")
    running = replace(waiting, status="running", step=7)
    display.passed([*[waiting] * 39, running])
    display.close()
    text = stream.getvalue()
    assert "1 running, 39 waiting (34 not shown)" in text
    assert "step 7/390" in text


def test_a_stream_that_is_gone_silences_the_display(sweep: Sweep, tmp_path: Path) -> None:
    stream = io.StringIO()
    display = Display(1, stream)
    stream.close()
    display.changed(progress(sweep, tmp_path))
    display.say("unheard")
    display.close()


def test_foreign_text_is_shown_as_it_is(sweep: Sweep, tmp_path: Path) -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(runs_table([progress(sweep, tmp_path)]))
    assert "at step 3/390: Error: [red]odd" in console.export_text()
