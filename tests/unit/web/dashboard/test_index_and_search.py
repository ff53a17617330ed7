"""The index as files come, change and go; searches against brute force over parsed groups."""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groupwise.runs import Run, RunReadError
from groupwise.types import ScoredGroup
from groupwise.web.dashboard import index as index_module
from groupwise.web.dashboard import text_search
from groupwise.web.dashboard.group_outline import GroupOutline, outline_of
from groupwise.web.dashboard.index import Kind, RunIndex, nth_line, read_file, read_line
from groupwise.web.dashboard.text_search import SORTS, Searches, Wanted, find_match

FOREVER_S = 60.0
Place = tuple[int, int]
"""Step and line of a group."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[RunIndex]:
    made = RunIndex(tmp_path / "run")
    yield made
    made.close()


def fresh(index: RunIndex) -> None:
    index.refresh(FOREVER_S)


def places(index: RunIndex, kind: Kind = "train") -> set[Place]:
    return {(file.step, entry.line) for file in index.files(kind) for entry in file.entries}


def choose(
    index: RunIndex, wanted: Wanted, sort: text_search.Sort = "newest", budget_s: float = FOREVER_S
) -> list[Place]:
    found = Searches().choose(index, wanted, sort, budget_s).groups
    return [(group.file.step, group.entry.line) for group in found]


def test_the_index_follows_the_files(index: RunIndex, tmp_path: Path, sample: Any) -> None:
    before = index.progress
    assert (before.is_begun, before.is_complete) == (False, False)
    log = sample.run(tmp_path / "run", num_steps=2, groups_per_step=3)
    fresh(index)
    assert places(index) == set(itertools.product((1, 2), range(3)))
    assert index.progress.share == 1.0
    assert (index.progress.num_groups, index.progress.num_rollouts) == (6, 24)
    log.write_rollouts(3, "grpo", [sample.group(random.Random(9), "new")])
    fresh(index)
    assert (3, 0) in places(index)
    log.rewind(1)
    fresh(index)
    assert {step for step, _ in places(index)} == {1}
    log.write_rollouts(1, "grpo", [sample.group(random.Random(5), "again")])
    fresh(index)
    (file,) = index.files("train")
    assert [entry.outline.problem_id for entry in file.entries] == ["again"]


def test_a_file_of_evals_is_another_kind(index: RunIndex, tmp_path: Path, sample: Any) -> None:
    sample.run(tmp_path / "run", num_steps=1)
    (tmp_path / "run/eval_rollouts/000001.jsonl").write_bytes((tmp_path / "run/rollouts/000001.jsonl").read_bytes())
    (tmp_path / "run/rollouts/notes.txt").write_text("not ours")
    (tmp_path / "run/rollouts/000007.jsonl").mkdir()
    fresh(index)
    assert places(index, "eval") == places(index, "train")
    folder, file = index.files("train")
    assert (folder.entries, len(file.entries)) == ((), 4)
    assert "000007.jsonl is a folder, not a regular file" in folder.warnings[0]


def test_damage_keeps_its_number_and_a_half_line_waits(tmp_path: Path, sample: Any) -> None:
    sample.run(tmp_path / "run", num_steps=1)
    path = tmp_path / "run/rollouts/000001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"damage\n\n" + lines[2] + lines[3][:-100])
    file = read_file("train", 1, path)
    assert file is not None
    assert [entry.line for entry in file.entries] == [0, 2]
    assert file.warnings == ("rollouts/000001.jsonl, group 1 is damaged and was left out",)
    for entry in file.entries:
        assert json.loads(read_line(file, entry)) == json.loads(lines[entry.line])
    assert nth_line(path, 2) == lines[2]
    assert nth_line(path, 9) is None
    path.write_bytes(b"bad\n" * 10)
    broken = read_file("train", 1, path)
    assert broken is not None
    assert broken.warnings[-1] == "7 more damaged groups in rollouts/000001.jsonl"
    with pytest.raises(RunReadError, match="rewritten"):
        read_line(file, file.entries[0])


def test_one_step_is_read_before_the_index_is_there(index: RunIndex, tmp_path: Path, sample: Any) -> None:
    log = sample.run(tmp_path / "run", num_steps=2)
    file = index.file_of("train", 2)
    assert file is not None
    assert index.file_of("train", 2) is file
    assert index.file_of("train", 3) is None
    assert index.file_of("eval", 2) is None
    log.write_rollouts(2, "grpo", [sample.group(random.Random(1), "other")])
    changed = index.file_of("train", 2)
    assert changed is not None
    assert len(changed.entries) == 1


def texts_of(group: ScoredGroup) -> list[str]:
    problem = group.group.prompt.problem
    completions = [rollout.text for rollout in group.group.rollouts]
    return [*completions, *(message.content for message in problem.messages), problem.answer, problem.id]


def brute_force(run: Run, wanted: Wanted) -> set[Place]:
    """Every group parsed whole, and asked each question in turn."""
    found = set()
    for step in run.rollout_steps():
        for line, group in enumerate(run.rollouts(step)):
            scores = zip(group.scores, group.rewards, strict=True)
            rewards = [reward for score, reward in scores if not score.is_error]
            mean = sum(rewards) / len(rewards) if rewards else None
            is_wanted = (
                any(wanted.text.lower() in text.lower() for text in texts_of(group)),
                wanted.problem_id in ("", group.group.prompt.problem.id),
                not wanted.verdicts or any(score.verdict in wanted.verdicts for score in group.scores),
                not wanted.finishes or any(rollout.finish in wanted.finishes for rollout in group.group.rollouts),
                wanted.has_signal in (None, group.has_signal),
                not wanted.stages or ("grpo" if step < 3 else "later") in wanted.stages,
                (wanted.first_step or 0) <= step <= (wanted.last_step or 1000),
                wanted.min_reward is None or (mean is not None and mean >= wanted.min_reward),
                wanted.max_reward is None or (mean is not None and mean <= wanted.max_reward),
            )
            if all(is_wanted):
                found.add((step, line))
    return found


QUERIES = (
    *(
        "plain",
        "PLAIN WORDS",
        "école",
        "ÉCOLE",
        "strasse",
        "STRASSE",
        "straße",
        "οδος",
        "数学",
        "学",
        "\U0001f3b2",
        "kelvin",
    ),
    *(
        "i̇stanbul",
        "İ",
        "stanbul",
        'token_ids":[',
        "trap",
        "\\",
        "\\n",
        '"',
        "\n",
        "\t",
        "00e9",
        "u2028",
        "\u2028",
        "<SCRIPT",
    ),
    *("backslash \\", "nowhere", "p1", "think", "answer: 7", "finish", "content", "wait", "]", "\x00", "\x1b[31m"),
)


@pytest.mark.parametrize("ensure_ascii", [True, False], ids=["ours", "utf-8"])
def test_text_search_is_brute_force(index: RunIndex, tmp_path: Path, sample: Any, ensure_ascii: bool) -> None:
    sample.run(tmp_path / "run", num_steps=4, groups_per_step=3, seed=3)
    if not ensure_ascii:
        for path in (tmp_path / "run/rollouts").iterdir():
            tables = [json.loads(line) for line in path.read_bytes().splitlines()]
            lines = [json.dumps(table, ensure_ascii=False) + "\n" for table in tables]
            path.write_bytes("".join(lines).encode("utf-8", "surrogatepass"))
    run = Run(tmp_path / "run")
    fresh(index)
    num_some = 0
    for query in QUERIES:
        expected = brute_force(run, Wanted(text=query))
        assert set(choose(index, Wanted(text=query))) == expected, query
        num_some += 0 < len(expected) < 12
    assert num_some > 10, "most queries should tell groups apart"


def test_filters_are_brute_force(index: RunIndex, tmp_path: Path, sample: Any) -> None:
    sample.run(tmp_path / "run", num_steps=4, groups_per_step=8, seed=4)
    run = Run(tmp_path / "run")
    fresh(index)
    generator = random.Random(0)
    sizes = set()
    for _ in range(150):
        wanted = Wanted(
            text=generator.choice(["", "", "wait", "école"]),
            problem_id=generator.choice(["", "", "", "p1"]),
            verdicts=generator.choice([(), (), ("correct",), ("error", "timed_out")]),
            finishes=generator.choice([(), (), ("length",)]),
            has_signal=generator.choice([None, None, True, False]),
            stages=generator.choice([(), (), ("later",), ("grpo", "later")]),
            first_step=generator.choice([None, None, 2]),
            last_step=generator.choice([None, None, 3]),
            min_reward=generator.choice([None, None, 0.2]),
            max_reward=generator.choice([None, None, 0.5]),
        )
        expected = brute_force(run, wanted)
        assert set(choose(index, wanted)) == expected, wanted
        sizes.add(len(expected))
    assert len(sizes) > 10


def test_orders(index: RunIndex, tmp_path: Path, sample: Any) -> None:
    sample.run(tmp_path / "run", num_steps=3, groups_per_step=6, seed=5)
    fresh(index)
    newest = choose(index, Wanted())
    assert newest == sorted(newest, key=lambda place: (-place[0], place[1]))
    assert choose(index, Wanted(), "oldest") == sorted(newest)
    outlines = {(file.step, entry.line): entry.outline for file in index.files("train") for entry in file.entries}
    orders: tuple[tuple[text_search.Sort, str, int], ...] = (
        *(("spread", "spread", -1), ("highest", "mean_reward", -1), ("lowest", "mean_reward", 1)),
    )
    for sort, name, sign in orders:
        values = [getattr(outlines[place], name) for place in choose(index, Wanted(), sort)]
        known = [sign * value for value in values if value is not None]
        assert known == sorted(known)
        assert values[len(known) :] == [None] * (len(values) - len(known))
    assert all(len(choose(index, Wanted(), sort)) == 18 for sort in SORTS)


def test_a_search_that_runs_out_of_time_goes_on(
    index: RunIndex, tmp_path: Path, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample.run(tmp_path / "run", num_steps=4, groups_per_step=2, seed=6)
    fresh(index)
    read: list[int] = []
    now = [0.0]
    real = text_search.search_file

    def slow(file: Any, text: str) -> Iterator[int]:
        read.append(file.step)
        now[0] += 2.0
        return real(file, text)

    monkeypatch.setattr(text_search, "search_file", slow)
    searches, wanted = Searches(clock=lambda: now[0]), Wanted(text="think")
    for number in range(1, 5):
        chosen = searches.choose(index, wanted, "newest", budget_s=1.0)
        assert len(chosen.groups) == 2 * number, "a file a call: each takes longer than the budget"
        assert (chosen.searched_share == 1.0) is (number == 4)
    assert read == [4, 3, 2, 1], "the newest first, each once"
    assert len(searches.choose(index, wanted, "newest", budget_s=1.0).groups) == 8
    assert len(read) == 4


def test_a_rewritten_file_is_searched_again(index: RunIndex, tmp_path: Path, sample: Any) -> None:
    log = sample.run(tmp_path / "run", num_steps=1)
    fresh(index)
    searches = Searches()
    assert not searches.choose(index, Wanted(text="fresh id"), "newest", FOREVER_S).groups
    log.write_rollouts(1, "grpo", [sample.group(random.Random(1), "a Fresh Id")])
    assert not searches.choose(index, Wanted(text="fresh id"), "newest", FOREVER_S).groups
    fresh(index)
    assert len(searches.choose(index, Wanted(text="fresh id"), "newest", FOREVER_S).groups) == 1


def outline(line: bytes) -> GroupOutline:
    made = outline_of(line)
    assert made is not None
    return made


def test_where_it_was_found(tmp_path: Path, sample: Any) -> None:
    sample.run(tmp_path / "run", num_steps=1)
    line = (tmp_path / "run/rollouts/000001.jsonl").read_bytes().splitlines()[0]
    table = json.loads(line)
    table["rollouts"][1]["text"] = "İİ" + "x" * 100 + "ÉCOLE" + "y" * 100
    changed = json.dumps(table).encode()
    found = find_match(changed, outline(changed), "xéco")
    assert found is not None
    assert (found.where, found.rollout, found.text) == ("completion", 1, "xÉCO")
    assert (found.before, found.after) == ("x" * 60, "LE" + "y" * 58)
    prompt = find_match(line, outline(line), "thINk.")
    assert prompt is not None
    assert (prompt.where, prompt.rollout, prompt.text) == ("prompt", None, "Think.")
    assert find_match(line, outline(line), "nowhere") is None


def test_closing_ends_the_thread(tmp_path: Path, sample: Any) -> None:
    sample.run(tmp_path / "run", num_steps=3)
    index = RunIndex(tmp_path / "run")
    index.refresh(0.0)
    index.close()
    assert index._thread is None
    os.rename(tmp_path / "run", tmp_path / "moved")
    index.refresh(0.0)
    assert index._thread is None


def test_whoever_waits_sees_the_first_file_and_does_not_wait_for_all(
    tmp_path: Path, sample: Any, index: RunIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample.run(tmp_path / "run", num_steps=3)
    may_go_on = threading.Event()
    seen: list[int] = []

    def slow(kind: Kind, step: int, path: Path) -> Any:
        if seen:
            assert may_go_on.wait(FOREVER_S)
        else:
            time.sleep(0.05)  # longer than the reader would wait
        seen.append(step)
        return read_file(kind, step, path)

    monkeypatch.setattr(index_module, "read_file", slow)
    index.refresh(0.001)
    assert len(index.files("train")) + len(index.files("eval")) == 1
    assert not index.progress.is_complete
    may_go_on.set()
    fresh(index)
    assert len(index.files("train")) == 3
