"""Runs to look at, and a server that shows them."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from groupwise.runs import RunLog
from groupwise.types import Finish, Group, Message, Problem, Prompt, Rollout, Score, ScoredGroup, StepRecord, Verdict
from groupwise.web.dashboard.library import Library
from groupwise.web.dashboard.loopback_server import DashboardServer

HOSTILE_TEXTS = (
    "plain words",
    "ÉCOLE Straße ΟΔΟΣ 数学 \U0001f3b2 İstanbul \u212aelvin",
    '"token_ids":[1],"rollouts":[{"text":"x"}],"finish":"stop","scores":[',
    "ends in a backslash \\",
    'a quote " and \\" more, a ] and a }',
    "<script>alert(1)</script>\x1b[31m\x00\u2028\u202e \ud800 lone",
    "line\nbreak\tand tab \\n not one",
    "",
)

RECIPE = """name = "{name}"
seed = {seed}

[model]
path = "tiny-qwen3"

[task]
name = "countdown"

[[stages]]
algorithm = "grpo"
steps = 10
"""


def make_group(generator: random.Random, problem_id: str, *, size: int = 4) -> ScoredGroup:
    texts = [generator.choice(HOSTILE_TEXTS) + generator.choice(["", " Answer: 7", " wait"]) for _ in range(size)]
    verdicts = [generator.choice(list(Verdict)) for _ in range(size)]
    rewards = tuple(float(verdict is Verdict.CORRECT) + generator.choice([0.0, 0.25]) for verdict in verdicts)
    problem = Problem(
        problem_id,
        (
            Message("system", "Think."),
            Message("user", f"{generator.choice(HOSTILE_TEXTS)} of {problem_id} " + "y" * 250),
        ),
        generator.choice(HOSTILE_TEXTS),
        {"token_ids": [[1], "]"], "rollouts": [{"text": "trap", "finish": "stop"}], 'odd"token_ids': [1]},
    )
    rollouts = []
    for text in texts:
        num_tokens = generator.randint(0, 5)
        logprobs = tuple(generator.choice([-0.5, float("-inf"), -1e-300]) for _ in range(num_tokens))
        rollouts.append(Rollout(tuple(range(num_tokens)), logprobs, text, generator.choice(list(Finish)), 3))
    scores = tuple(
        Score(float("nan") if verdict is Verdict.ERROR else 1.0, verdict, {"a": 1.0}, "v/1", text)
        for verdict, text in zip(verdicts, texts, strict=True)
    )
    has_signal = max(rewards) != min(rewards)
    return ScoredGroup(Group(Prompt(problem, (1, 2, 3)), tuple(rollouts)), scores, rewards, (0.0,) * size, has_signal)


def write_run(path: Path, *, num_steps: int = 3, groups_per_step: int = 4, seed: int = 0) -> RunLog:
    """A run with rollouts at each step, not marked as finished."""
    generator = random.Random(seed)
    log = RunLog(path)
    log.write_recipe(RECIPE.format(name=path.name, seed=seed))
    log.write_info({"fingerprint": f"f{seed}", "verifier": "v/1"})
    log.write_event("started", step=0, pid=1)
    for step in range(1, num_steps + 1):
        groups = [make_group(generator, f"p{number}") for number in range(groups_per_step)]
        log.write_rollouts(step, "grpo" if step < 3 else "later", groups)
        log.write_step(make_step(step))
    return log


def make_step(step: int) -> StepRecord:
    return StepRecord(
        step, "grpo", step, {"reward/mean": step / 10, "time/sample_s": 1.0, "time/step_s": 2.0, "time/eval_s": 0.5}
    )


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body, parse_constant=refuse)


class Client:
    """A browser that sends what it is told to."""

    def __init__(self, server: DashboardServer) -> None:
        self.server = server
        self.port = server.port

    def get(self, path: str, /, **parameters: Any) -> Any:
        """JSON of an answer that has to be fine."""
        reply = self.request(path, **parameters)
        assert reply.status == 200, reply.body
        return reply.json

    def request(
        self, path: str, /, method: str = "GET", headers: dict[str, str] | None = None, **parameters: Any
    ) -> Reply:
        target = f"{path}?{urlencode(parameters, doseq=True)}" if parameters else path
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        try:
            connection.request(method, target, headers=headers or {})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())
        finally:
            connection.close()

    def run_id(self, name: str) -> str:
        (identity,) = [run["id"] for run in self.get("/api/runs")["runs"] if run["name"] == name]
        return str(identity)


@contextmanager
def serving(*roots: Path) -> Iterator[Client]:
    library = Library(roots)
    with DashboardServer(library, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Client(server)
        finally:
            server.shutdown()
            thread.join()
            library.close()


@pytest.fixture(autouse=True)
def without_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small runs are indexed and searched whole before the answer, however busy the machine."""
    monkeypatch.setattr("groupwise.web.dashboard.group_pages.WAIT_FOR_INDEX_S", 60.0)
    monkeypatch.setattr("groupwise.web.dashboard.group_pages.SEARCH_S", 60.0)


@pytest.fixture
def serve() -> Callable[..., Any]:
    return serving


@pytest.fixture
def sample() -> type:
    """The makers above, by name: importlib mode has no package to import them from."""

    class Sample:
        texts = HOSTILE_TEXTS
        group = staticmethod(make_group)
        step = staticmethod(make_step)
        run = staticmethod(write_run)

    return Sample
