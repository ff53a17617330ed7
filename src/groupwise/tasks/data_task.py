"""Base classes of tasks that read their problems from a file or from the hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from groupwise.config.build import ConfigError
from groupwise.rewards.extract import AnswerMark, check_marks, mark_answer
from groupwise.tasks.rows import Row, load_rows, share_of
from groupwise.tasks.task import Split
from groupwise.types import Message, Problem


@dataclass(frozen=True)
class DataTask:
    """Your own rows; held-out problems come from a second source or are a share of `train`."""

    train: str = ""
    """A .jsonl path or hub name to train on; empty to score only rows from elsewhere."""
    held_out: str | None = None
    """A .jsonl path or hub name of held-out problems; or set held_out_share."""
    held_out_share: float = 0.0
    """Share of `train` to hold out, chosen by a hash of the problem: adding rows moves no other row."""

    def __post_init__(self) -> None:
        check_share("held_out_share", self.held_out_share)
        has_share = self.held_out_share != type(self).held_out_share
        if self.held_out is not None and has_share:
            raise ConfigError("set either held_out (a separate file) or held_out_share (as in 0.1), not both")
        if self.train and self.held_out is None and not self.held_out_share:
            raise ConfigError("set either held_out (a separate file) or held_out_share (as in 0.1)")

    def problems(self, split: Split) -> Sequence[Problem]:
        is_held_out = split == "held_out"
        if not self.train:
            raise ConfigError("task.options.train: missing; set it to a .jsonl path or hub name with your problems")
        if is_held_out and self.held_out is not None:
            return self.load(self.held_out, "test", "task.options.held_out", is_held_out)
        problems = self.load(self.train, "train", "task.options.train", is_held_out)
        if self.held_out is not None:
            return problems
        return take_share(problems, self.held_out_share, is_held_out, [self.split_key(each) for each in problems])

    def load(self, source: str, hub_split: str, key: str, is_held_out: bool) -> list[Problem]:
        """All problems of a source; `key` is the recipe's key that names it."""
        return [self.problem(row, is_held_out) for row in load_rows(source, hub_split, key=key)]

    def problem(self, row: Row, is_held_out: bool) -> Problem:
        raise NotImplementedError

    def split_key(self, problem: Problem) -> str:
        """Return the key that held_out_share hashes: equal keys are always in the same split."""
        return problem.id


@dataclass(frozen=True)
class PublishedTask:
    """Published questions whose answer is marked, as in a box; both splits are on the hub."""

    train: str
    held_out: str
    """The same for held-out problems."""
    train_split: str = "train"
    """Split of the hub data set to train on."""
    held_out_split: str = "test"
    """Split of the hub data set to hold out."""
    instruction: str = "Reason step by step, and put your final answer within \\boxed{}."
    """Follows the question in the prompt."""
    answer_marks: tuple[AnswerMark, ...] = ("boxed",)
    """Where to look for the answer; the first of these found in the completion decides. `boxed`: the last
    `\\boxed{}`. `hashes`: the line after `####`. `final`: the line after `FINAL:` or `Final answer:`. `tag`: the last
    `<answer>`. `number`: the last number."""

    def __post_init__(self) -> None:
        check_marks(self.answer_marks)

    def rows(self, split: Split, hub_config: str | None = None) -> list[Row]:
        is_train = split == "train"
        source, hub_split = (self.train, self.train_split) if is_train else (self.held_out, self.held_out_split)
        return load_rows(source, hub_split, hub_config, key=f"task.options.{split}")

    def messages(self, question: str) -> tuple[Message, ...]:
        return (Message("user", f"{question.strip()}\n{self.instruction}".strip()),)

    def gold_completion(self, problem: Problem) -> str:
        return mark_answer(self.answer_marks[0], problem.answer)


def check_share(key: str, share: float, *, may_be_zero: bool = True) -> None:
    if not 0.0 <= share < 1.0 or not (share or may_be_zero):
        raise ConfigError(f"{key} = {share}: expected {'at least' if may_be_zero else 'above'} 0 and below 1")


def take_share(problems: Sequence[Problem], share: float, is_held_out: bool, keys: Sequence[str]) -> list[Problem]:
    """Return the problems of one split, decided by a hash of each key, whatever else is in the data."""
    return [each for each, key in zip(problems, keys, strict=True) if (share_of(key) < share) == is_held_out]
