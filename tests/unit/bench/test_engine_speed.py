"""`groupwise bench engine` on a tiny model: what it reports is what was done."""

from __future__ import annotations

import json

import pytest

from groupwise.bench.engine_speed import bench_engine, make_requests
from groupwise.cli import main


def test_requests_are_groups_that_add_up() -> None:
    requests = make_requests(19, 8, 5, 100)
    assert [len(request.seeds) for request in requests] == [8, 8, 3]
    assert all(len(request.prompt.token_ids) == 5 for request in requests)
    assert len({seed for request in requests for seed in request.seeds}) == 19


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_every_engine_does_the_same_work(engine: str) -> None:
    (timing,) = bench_engine("tiny-qwen3", engine, [6], prompt_tokens=7, new_tokens=5, group_size=4)
    assert (timing.engine, timing.sequences, timing.mean_tokens) == (engine, 6, 5.0)
    assert timing.tokens_per_s == pytest.approx(30 / timing.seconds)
    assert timing.ms_per_step == pytest.approx(1000 * timing.seconds / 5)
    assert timing.floor_share is None


def test_mixed_lengths_are_shorter() -> None:
    (timing,) = bench_engine("tiny-qwen3", "native", [64], prompt_tokens=7, new_tokens=30, mixed=True)
    assert 10 < timing.mean_tokens < 28


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "engine", "--model", "tiny-qwen3", "--sequences", "2,4", "--new-tokens", "3"]
    assert main([*arguments, "--prompt-tokens", "4", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["sequences"] for line in lines] == [2, 4]
    assert main([*arguments, "--prompt-tokens", "4"]) == 0
    assert "tokens/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model", "qwen9"], "expected one of qwen2.5-1.5b, smollm2-135m"),
        (["--model", "tiny-qwen3", "--engines", "vllm9"], "--engines 'vllm9': expected one of native, reference"),
        (["--model", "tiny-qwen3", "--sequences", "many"], "expected numbers"),
    ],
)
def test_bad_input_is_refused(more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "engine", *more]) == 2
    assert message in capsys.readouterr().err
