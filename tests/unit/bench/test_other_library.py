"""The script for the other environment, with stand-ins for TRL and vLLM: what it asks of them, and what it counts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import transformers

from groupwise.bench import other_library
from groupwise.bench.other_library import peak_resident_bytes, sample_in_vllm, step_in_trl
from groupwise.bench.side_by_side import apart

PROMPTS = [[1, 2], [3], [4, 5], [6]]
PHASES = {"sample": 4.0, "score": 1.0, "logprobs": 2.0, "rest": 3.0, "update": 8.0}


class Clock:
    seconds = 0.0

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds


CLOCK = Clock()


class StandInTrainer:
    """Does what GRPOTrainer does in a step, in this order, with the time of each phase."""

    def __init__(self, **named: Any) -> None:
        self.__dict__.update(named)
        self.model_dtype = named["args"].model_init_kwargs["dtype"]
        self.seen: list[Any] = []

    def add_callback(self, callback: Any) -> None:
        self.callback = callback

    def train(self) -> None:
        per_step = len(self.train_dataset["prompt"]) // self.args.max_steps
        for step in range(self.args.max_steps):
            self.callback.on_step_begin()
            self._generate_and_score_completions(self.train_dataset["prompt"][step * per_step :][:per_step])
            self._get_per_token_logps_and_entropies(PHASES["update"])  # those of the loss are part of the update
            self.callback.on_step_end()
        LAST.append(self)

    def _generate_and_score_completions(self, prompts: list[str]) -> None:
        rows = [prompt for prompt in prompts for _ in range(self.args.num_generations)]
        _, completions, *_ = self._generate(rows)
        self._calculate_rewards(completions)
        self._get_per_token_logps_and_entropies(PHASES["logprobs"])
        CLOCK.pass_by(PHASES["rest"])

    def _generate(self, prompts: list[str]) -> tuple[Any, list[list[int]]]:
        ids, _, _ = self._tokenize_prompts(prompts)
        self.seen.append(ids)
        CLOCK.pass_by(PHASES["sample"])
        return ids, [[0] * self.args.generation_kwargs["min_new_tokens"] for _ in ids]

    def _tokenize_prompts(self, prompts: list[str]) -> Any:
        raise AssertionError("prompts are token ids already")

    def _calculate_rewards(self, completions: list[Any]) -> None:
        self.rewards = self.reward_funcs(completions=completions, prompts=None)
        CLOCK.pass_by(PHASES["score"])

    def _get_per_token_logps_and_entropies(self, seconds: float) -> None:
        CLOCK.pass_by(seconds)


LAST: list[StandInTrainer] = []


@pytest.fixture
def trl(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("trl")
    stand_in = {"GRPOTrainer": StandInTrainer, "GRPOConfig": SimpleNamespace, "__version__": "9.9"}
    module.__dict__.update(stand_in)
    data = ModuleType("datasets")
    data.__dict__["Dataset"] = SimpleNamespace(from_dict=dict)
    monkeypatch.setitem(sys.modules, "trl", module)
    monkeypatch.setitem(sys.modules, "datasets", data)
    monkeypatch.setattr(other_library, "now", lambda: CLOCK.seconds)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", str)
    return module


def trl_work() -> dict[str, Any]:
    arguments = {"max_steps": 2, "num_generations": 3, "max_completion_length": 5, "dtype": "bfloat16"}
    return {"model": "m", "folder": "f", "lora": None, "prompts": PROMPTS, "arguments": arguments}


def test_the_time_of_a_step_is_that_of_its_phases(trl: ModuleType) -> None:
    result = step_in_trl(trl_work())
    assert (result["version"], len(result["steps"])) == ("9.9", 2)
    timed = {phase: PHASES[phase] for phase in ("sample", "score", "logprobs", "update")}
    assert result["steps"] == 2 * [timed | {"step": sum(PHASES.values()), "tokens": 2 * 3 * 5}]


def test_trl_gets_the_prompts_as_token_ids_and_rewards_that_differ(trl: ModuleType) -> None:
    step_in_trl(trl_work())
    trainer = LAST.pop()
    assert trainer.seen == [[[1, 2]] * 3 + [[3]] * 3, [[4, 5]] * 3 + [[6]] * 3]
    assert trainer.rewards == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]
    assert trainer.model_dtype == "bfloat16"
    assert trainer.args.generation_kwargs == {"min_new_tokens": 5}


def test_a_trl_without_a_method_is_named(trl: ModuleType) -> None:
    trl.__dict__["GRPOTrainer"] = type("Other", (), dict.fromkeys(list(other_library.TRL_METHODS)[1:]))
    with pytest.raises(NotImplementedError, match=r"trl 9.9: GRPOTrainer has no _tokenize_prompts; install trl 1.16"):
        step_in_trl(trl_work())


class StandInLLM:
    def __init__(self, **named: Any) -> None:
        LLMS.append(self)
        self.settings = named
        self.calls: list[Any] = []
        self.resets = 0

    def reset_prefix_cache(self) -> None:
        self.resets += 1

    def generate(self, inputs: list[Any], params: list[Any], use_tqdm: bool) -> list[Any]:
        self.calls.append((inputs, params))
        completion = SimpleNamespace(token_ids=[0] * params[0].max_tokens)
        return [SimpleNamespace(outputs=[completion] * one.n) for one in params]


LLMS: list[StandInLLM] = []


def test_vllm_gets_the_prompts_and_is_timed_on_the_second_call(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm")
    module.__dict__.update({"LLM": StandInLLM, "SamplingParams": SimpleNamespace, "__version__": "9.9"})
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setenv("VLLM_CPU_NUM_OF_RESERVED_CPU", "1")
    batches = [
        [{"token_ids": [1, 2], "count": 2}],
        [{"token_ids": [1, 2], "count": 4}, {"token_ids": [3, 4], "count": 1}],
    ]
    work = {"model": "m", "new_tokens": 7, "batches": batches, "arguments": {"dtype": "float32"}}
    result = sample_in_vllm(work)
    (llm,) = LLMS
    assert [timing["tokens"] for timing in result["timings"]] == [2 * 7, 5 * 7]
    assert os.environ["VLLM_CPU_NUM_OF_RESERVED_CPU"] == "1"  # what is set stays
    assert llm.resets == len(llm.calls) == 4
    inputs, params = llm.calls[-1]
    assert inputs == [{"prompt_token_ids": [1, 2]}, {"prompt_token_ids": [3, 4]}]
    assert [(one.n, one.max_tokens, one.ignore_eos, one.temperature) for one in params] == [
        (4, 7, True, 1.0),
        (1, 7, True, 1.0),
    ]
    assert (llm.settings["dtype"], llm.settings["max_model_len"], llm.settings["max_num_seqs"]) == ("float32", 9, 5)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process begins with the peak of its parent")
def test_peak_memory_is_that_of_the_process_alone() -> None:
    held = b"x" * (256 << 20)
    assert len(held) < peak_resident_bytes()
    assert 1 << 20 < apart(peak_resident_bytes) < len(held)


def test_the_script_imports_nothing_of_groupwise() -> None:
    assert "groupwise" not in [line.split()[1].split(".")[0] for line in _imports()]


def _imports() -> list[str]:
    lines = Path(other_library.__file__).read_text().splitlines()
    return [line.strip() for line in lines if line.strip().startswith(("import ", "from "))]
