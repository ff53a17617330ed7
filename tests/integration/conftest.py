"""Small runs of everything: recipes that take seconds, and how two runs are compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.config import Recipe
from groupwise.models.checkpoint_store import CheckpointStore
from tests.factories import tiny_recipe
from tests.integration.browser import Browser, running_browser


@pytest.fixture
def recipe_with() -> Callable[..., Recipe]:
    """A recipe of seconds: SFT, then GRPO with four updates a step, on a task whose rewards differ from the start."""

    return tiny_recipe


def metrics_lines(run_dir: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what depends on the clock or the machine."""
    lines = []
    for text in (run_dir / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        line["metrics"] = {
            name: value
            for name, value in line["metrics"].items()
            if not name.startswith(("time/", "memory/")) and name != "engine/tokens_per_s"
        }
        lines.append(line)
    return lines


def eval_lines(run_dir: Path) -> list[dict[str, Any]]:
    lines = [json.loads(text) for text in (run_dir / "evals.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def rollout_texts(run_dir: Path) -> dict[str, str]:
    """Rollouts with what each step did to their tokens."""
    paths = sorted(path for folder in ("rollouts", "tokens") for path in (run_dir / folder).iterdir())
    return {f"{path.parent.name}/{path.name}": path.read_text() for path in paths}


def newest_tensors(run_dir: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The newest checkpoint: weights, moments, reference, average."""
    store = CheckpointStore(run_dir / "checkpoints", keep_last=2)
    newest = store.newest_valid()
    assert newest is not None
    return store.load(newest)[0]


def state_digest(run_dir: Path) -> str:
    """The digest of every byte of every tensor in the newest checkpoint."""
    tensors = newest_tensors(run_dir)
    digest = hashlib.sha256()
    for group in sorted(tensors):
        for name in sorted(tensors[group]):
            digest.update(
                f"{group}/{name}".encode() + tensors[group][name].reshape(-1).view(torch.uint8).numpy().tobytes()
            )
    return digest.hexdigest()


def whole_result(run_dir: Path) -> tuple[Any, ...]:
    """Everything that a resumed run must have in common with an uninterrupted one."""
    return metrics_lines(run_dir), eval_lines(run_dir), rollout_texts(run_dir), state_digest(run_dir)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture
def tab(browser: Browser) -> Iterator[Browser]:
    """The browser as if new; a page that complains fails its test."""
    browser.size(1400, 1000)
    browser.prefer(prefers_color_scheme="light")
    browser.clear()
    yield browser
    problems = list(browser.problems)
    browser.leave()
    assert problems == []
