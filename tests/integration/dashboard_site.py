"""Runs made up for the dashboard, its server over them, and expressions to ask its page with."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import random
import threading
from collections.abc import Iterator
from pathlib import Path

from groupwise.runs import Run, RunLog
from groupwise.types import GroupTrace, ScoredGroup, StepRecord, TokenTrace
from groupwise.web.dashboard.library import Library, run_id
from groupwise.web.dashboard.loopback_server import DashboardServer
from tests.integration.browser import Browser
from tests.integration.synthetic_run import RECIPE, write_synthetic_run

TOKEN_STEP = 60
"""The step of `write_watched_runs` whose tokens are kept; the first of its groups has a long completion."""
LONG_TOKENS = 30_000
EVERY_MARK = (
    "a".join(map(chr, [*range(0x2100), 0xD800, 0xDBFF, 0xDC00, 0xDFFF, 0xFEFF, 0xFFF9, 0xFFFD, 0x1F600])) + "\r\n"
)
"""Completion of the third held-out problem at step 0: what a reader sees and what not, and halves of characters."""


@contextlib.contextmanager
def serving(root: Path, port: int = 0) -> Iterator[str]:
    """The address of a server over the runs below `root`."""
    library = Library([root])
    with DashboardServer(library, port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()
            library.close()


def id_of(path: Path) -> str:
    return run_id(path.resolve())


def write_watched_runs(root: Path) -> Path:
    """`first`, with tokens at TOKEN_STEP and hostile text; `second`, of another recipe."""
    first = write_synthetic_run(root / "first", num_steps=TOKEN_STEP + 1, groups_per_step=3)
    second = write_synthetic_run(root / "second", num_steps=50, groups_per_step=1, seed=1, hostile=False)
    recipe = second / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("seed = 0", "seed = 7") + "[stages.optimizer]\nlearning_rate = 3e-6\n")
    groups = [_with_advantages(scored) for scored in Run(first).rollouts(TOKEN_STEP)]
    traces = [_trace(scored) for scored in groups]
    # A verifier that failed on the last completion; a completion far longer than a screen.
    (one, *rest) = traces[0].rollouts
    assert one is not None
    copies = LONG_TOKENS // len(one.pieces) + 1
    long = TokenTrace(one.pieces * copies, one.logprobs * copies, one.ratios * copies, None, one.entropies * copies)
    traces[0] = GroupTrace(traces[0].problem_id, (long, *rest[:-1], None))
    _replace_completion(first / "eval_rollouts" / "000000.jsonl", 2, EVERY_MARK)
    log = RunLog(first)
    log.write_rollouts(TOKEN_STEP, "grpo", groups)
    log.write_tokens(TOKEN_STEP, "grpo", traces)
    log.close()
    return root


def _replace_completion(path: Path, index: int, text: str) -> None:
    lines = path.read_text().splitlines()
    table = json.loads(lines[index])
    table["rollouts"][0]["text"] = text
    lines[index] = json.dumps(table)
    path.write_text("\n".join(lines) + "\n")


def write_long_run(path: Path, *, num_steps: int, spike_step: int) -> Path:
    """Metrics alone: rewards below 1, but for one step of 10; a share of clipped tokens that is small."""
    path.mkdir(parents=True)
    (path / "recipe.toml").write_text(RECIPE)
    generator = random.Random(0)
    with (path / "metrics.jsonl").open("w") as file:
        for step in range(1, num_steps + 1):
            reward = 10.0 if step == spike_step else generator.random()
            metrics = {"reward/mean": reward, "policy/clip_share": 0.0015 * step / num_steps}
            table = {"step": step, "stage": "grpo", "stage_step": step, "metrics": metrics}
            file.write(json.dumps(table) + "\n")
    return path


def _with_advantages(scored: ScoredGroup) -> ScoredGroup:
    center = sum(scored.rewards) / len(scored.rewards)
    return dataclasses.replace(scored, advantages=tuple(reward - center for reward in scored.rewards))


def _trace(scored: ScoredGroup) -> GroupTrace:
    generator = random.Random(scored.group.prompt.problem.id)
    rows = []
    for rollout, advantage in zip(scored.group.rollouts, scored.advantages, strict=True):
        words = rollout.text.split(" ")
        pieces = (words[0], *(f" {word}" for word in words[1:]))
        logprobs = tuple(-3 * generator.random() ** 4 for _ in pieces)
        ratios = tuple(math.exp(0.05 * advantage * generator.random()) for _ in pieces)
        entropies = tuple(-value * generator.random() for value in logprobs)
        rows.append(TokenTrace(pieces, logprobs, ratios, tuple(value / 10 for value in entropies), entropies))
    return GroupTrace(scored.group.prompt.problem.id, tuple(rows))


def write_large_run(path: Path, *, num_steps: int, groups_per_step: int) -> Path:
    """Groups of 8 completions of 60 tokens: at 196 steps of 64 groups over 100,000 rollouts. Lines are cut from one."""
    seed = write_synthetic_run(path / "seed", num_steps=41, groups_per_step=1, hostile=False)
    (line,) = (seed / "rollouts" / "000041.jsonl").read_text().splitlines()
    table = json.loads(line)
    for rollout in table["rollouts"]:
        rollout.update(token_ids=rollout["token_ids"][:60], rollout_logprobs=rollout["rollout_logprobs"][:60])
    table.update(step="STEP", stage="grpo")
    table["problem"]["id"] = "PROBLEM"
    head, rest = json.dumps(table, separators=(",", ":")).split('"STEP"')
    between, tail = rest.split("PROBLEM")
    run = path / "large"
    log = RunLog(run)
    log.write_recipe(RECIPE.replace("steps = 160", f"steps = {num_steps}"))
    for step in range(1, num_steps + 1):
        lines = (f"{head}{step}{between}train-{step}-{number}{tail}\n" for number in range(groups_per_step))
        (run / "rollouts" / f"{step:06d}.jsonl").write_text("".join(lines))
        log.write_step(StepRecord(step, "grpo", step, {"reward/mean": step / num_steps, "policy/loss": 0.0}))
    log.close()
    return run


def count(selector: str) -> str:
    return f"document.querySelectorAll({json.dumps(selector)}).length"


def text(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)}).textContent"


def click(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)}).click()"


def curve(panel: str) -> str:
    return f'[data-panel="{panel}"] .curve'


def type_into(tab: Browser, name: str, value: str) -> None:
    field = f"document.getElementById('filters').elements[{json.dumps(name)}]"
    tab.evaluate(f"{field}.value = {json.dumps(value)}")
    tab.evaluate(f"{field}.dispatchEvent(new Event('input', {{ bubbles: true }}))")
