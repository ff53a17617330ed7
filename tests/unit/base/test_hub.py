"""Hub names: what is taken for one, and what happens when the hub does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from groupwise.base import hub
from groupwise.base.hub import hub_or_cache, is_hub_name


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "openai/gsm8k", "squad", "a_b/c.d-e"])
def test_names(name: str) -> None:
    assert is_hub_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "./a/b",
        "../a",
        "/a/b",
        "~/a",
        "a/b/c",
        "data.jsonl",
        "data/train.jsonl",
        "q.gguf",
        "x/y.GGUF",
        "a b/c",
        "a\\b",
        "",
    ],
)
def test_paths(name: str) -> None:
    assert not is_hub_name(name)


def test_the_cache_is_read_alone_where_the_hub_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def answers(address: str) -> bool:
        asked.append(address)
        return len(asked) > 1

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "_answers", answers)
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    for name, is_offline in [("mine", False), ("./mine", False), ("a/b", True), ("a/b", False)]:
        with hub_or_cache(name):
            assert constants.HF_HUB_OFFLINE is is_offline
        assert constants.HF_HUB_OFFLINE is False
    assert asked == [constants.ENDPOINT] * 2


def test_no_answer_takes_no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert not hub._answers("https://127.0.0.1:9")
