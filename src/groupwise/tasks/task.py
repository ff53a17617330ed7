"""What a task is, and the base classes of tasks: generated problems, your own rows, published data sets.

A task is a frozen dataclass whose fields are the keys of `[task.options]` in a recipe. `Task` is what training needs;
the other protocols are optional abilities.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from groupwise.config.build import Config, ConfigError, Count, Seed, Within
from groupwise.rewards.extract import AnswerMark, check_marks, mark_answer
from groupwise.tasks.rows import Row, load_rows, share_of, stable_id
from groupwise.types import Message, Problem, Score

logger = logging.getLogger(__name__)

T = TypeVar("T")
Split = Literal["train", "held_out"]
ShareBelowOne = Annotated[float, Within("[0, 1)")]


@runtime_checkable
class Task(Protocol):
    """Where problems come from and how a completion is scored."""

    @property
    def verifier(self) -> str:
        """Name and version of the scoring rule, as in "countdown/1"; a changed rule needs a new version."""

    def problems(self, split: Split) -> Sequence[Problem]:
        """Return all problems of a split in a fixed order. The two splits share no problem."""

    def score(self, problem: Problem, completion: str) -> Score:
        """Judge one completion. Raise only when the verifier itself fails: the caller turns that into an error."""


@runtime_checkable
class Demonstrator(Protocol):
    """A task that can write correct completions, for supervised fine-tuning without a data set."""

    def demonstrate(self, problem: Problem) -> str: ...


@runtime_checkable
class RowScorer(Protocol):
    """A task whose verifier can score rows of a file without the task's own data (`groupwise verify`)."""

    def bare_problem(self, row: Row) -> Problem:
        """Build a problem from a row with the fields that scoring needs; the prompt is optional."""


@runtime_checkable
class GoldWriter(Protocol):
    """A task that can write its gold answer as a completion, to test the verifier (`groupwise validate`)."""

    def gold_completion(self, problem: Problem) -> str | None:
        """Return a completion that must be judged correct; None for a problem without a gold answer."""


@runtime_checkable
class ProgramRunner(Protocol):
    """A task that runs programs within limits of its own, whose verdict on a slow program is `wrong`."""

    @property
    def max_wall_seconds(self) -> float:
        """Longest wall-clock time of one completion; the scorer waits at least as long."""


@dataclass(frozen=True)
class GeneratedTask(Config):
    """Generated problems: the same seed gives the same problems, and the splits share none.

    Distinct problems are drawn one after another from one stream. The first `num_held_out` are held out and the next
    `num_train` are for training, so a recipe that asks for more training problems keeps its held-out ones.
    """

    num_train: Count = 2000
    num_held_out: Count = 200
    seed: Seed = 0
    """Seed of the problems; independent of the run's seed."""

    fix: ClassVar[str] = "change the task's options"
    """How a recipe gets more distinct problems; ends an error message."""

    @property
    def num_possible(self) -> int:
        """An upper bound on the number of distinct problems."""
        raise NotImplementedError

    def draw(self, generator: random.Random) -> tuple[Hashable, Problem] | None:
        """Make one attempt: the key that makes the problem distinct, and the problem; None if the attempt failed."""
        raise NotImplementedError

    def problems(self, split: Split) -> Sequence[Problem]:
        total = self.num_train + self.num_held_out
        wanted = self.num_held_out if split == "held_out" else total
        max_draws = 10_000 + 200 * wanted
        generator = random.Random(f"groupwise/{self.seed}")
        found: dict[Hashable, Problem] = {}
        if total <= self.num_possible:
            for _ in range(max_draws):
                if len(found) == wanted:
                    break
                drawn = self.draw(generator)
                if drawn is not None:
                    found.setdefault(*drawn)
        if len(found) < wanted:
            is_too_many = total > self.num_possible
            limit = f"there are at most {self.num_possible}" if is_too_many else f"{max_draws} draws gave {len(found)}"
            raise ConfigError(
                f"task.options: num_train + num_held_out = {self.num_train} + {self.num_held_out} = {total}, but "
                f"{limit} distinct problems; lower the counts, or {self.fix}"
            )
        problems = list(found.values())
        return problems if split == "held_out" else problems[self.num_held_out :]


class TaggedInteger:
    """Problems whose answer is an integer in `<answer>`."""

    verifier: ClassVar[str]

    def bare_problem(self, row: Row) -> Problem:
        """Read a row {answer} with an integer."""
        answer = row.whole_number("answer")
        return Problem(stable_id(self.verifier.partition("/")[0], answer), (), str(answer))

    def demonstrate(self, problem: Problem) -> str:
        return f"<answer>{problem.answer}</answer>"


@dataclass(frozen=True)
class DataTask(Config):
    """Your own rows; held-out problems come from a second source or are a share of `train`."""

    train: str = ""
    """A .jsonl path or hub name to train on; empty to score only rows from elsewhere."""
    held_out: str | None = None
    """A .jsonl path or hub name of held-out problems; or set held_out_share."""
    held_out_share: ShareBelowOne = 0.0
    """Share of `train` to hold out, chosen by a hash of the problem: adding rows moves no other row."""

    def check(self) -> None:
        super().check()
        has_own_share = self.held_out_share != type(self).held_out_share
        has_neither = bool(self.train) and self.held_out is None and not self.held_out_share
        if has_neither or (self.held_out is not None and has_own_share):
            raise ConfigError("set either held_out (a separate file) or held_out_share (as in 0.1), not both")

    def problems(self, split: Split) -> Sequence[Problem]:
        is_held_out = split == "held_out"
        if not self.train:
            raise ConfigError("task.options.train: missing; set it to a .jsonl path or hub name with your problems")
        if is_held_out and self.held_out is not None:
            return self.load(self.held_out, "test", "task.options.held_out", is_held_out)
        problems = self.load(self.train, "train", "task.options.train", is_held_out)
        if self.held_out is not None:
            return problems
        return take_share(problems, self.held_out_share, split, self.split_key)

    def load(self, source: str, hub_split: str, key: str, is_held_out: bool) -> list[Problem]:
        """Return all problems of a source; `key` is the recipe's key that names it."""
        return [self.problem(row, is_held_out) for row in load_rows(source, hub_split, key=key)]

    def problem(self, row: Row, is_held_out: bool) -> Problem:
        raise NotImplementedError

    def split_key(self, problem: Problem) -> str:
        """Return the key that held_out_share hashes: equal keys are always in the same split."""
        return problem.id


@dataclass(frozen=True)
class PublishedTask(Config):
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

    def check(self) -> None:
        check_marks(self.answer_marks)

    def rows(self, split: Split, hub_config: str | None = None) -> list[Row]:
        is_train = split == "train"
        source, hub_split = (self.train, self.train_split) if is_train else (self.held_out, self.held_out_split)
        return load_rows(source, hub_split, hub_config, key=f"task.options.{split}")

    def messages(self, question: str) -> tuple[Message, ...]:
        return (Message("user", f"{question.strip()}\n{self.instruction}".strip()),)

    def gold_completion(self, problem: Problem) -> str:
        return mark_answer(self.answer_marks[0], problem.answer)


def drop_held_out(source: str, train: Sequence[T], held_out: Sequence[T], key: Callable[[T], str]) -> list[T]:
    """Return what is not also held out, by its key: some published splits share problems. The log counts the rest."""
    held_out_keys = {key(one) for one in held_out}
    kept = [one for one in train if key(one) not in held_out_keys]
    if len(kept) < len(train):
        logger.warning("%s: dropped %d problems that are held out", source, len(train) - len(kept))
    return kept


def take_share(
    problems: Sequence[Problem], share: float, split: Split, key: Callable[[Problem], str] = attrgetter("id")
) -> list[Problem]:
    """Return the problems of one split, decided by a hash of each one's key, whatever else is in the data."""
    return [problem for problem in problems if (share_of(key(problem)) < share) == (split == "held_out")]
