"""Format-following on a small general set: simple requests whose form can be checked by rule. Does not import torch.

Only the form is judged, not the content: a model that was trained on one task should still answer in one word, write a
list of three, or return JSON when it is asked to. It is a task like any other, so `groupwise eval` runs it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from groupwise.base.outside import json_value
from groupwise.rewards.extract import last_fenced
from groupwise.rewards.format import excerpt
from groupwise.types import Message, Problem, Score, Verdict

REQUESTS: tuple[tuple[str, str, Any], ...] = (
    # (request, rule, argument of the rule)
    ("What is the capital of France? Answer in one word.", "words", 1),
    ("Which colour do you get from blue and yellow? Answer in one word, with nothing else.", "words", 1),
    ("Name an animal that lives in the sea. Reply with a single word.", "words", 1),
    ("Name a fruit and a vegetable. Reply with exactly two words, separated by a space.", "words", 2),
    ("Describe winter in exactly three words.", "words", 3),
    ("Is water wet? Answer with yes or no and nothing else.", "one_of", ["yes", "no"]),
    ("Is Paris in Germany? Answer with yes or no and nothing else.", "one_of", ["yes", "no"]),
    ("True or false: the Sun is a star. Reply with true or false only.", "one_of", ["true", "false"]),
    ("Which is larger, a mouse (A) or a horse (B)? Answer with the letter alone.", "one_of", ["a", "b"]),
    ("How many days does a week have? Reply with the number in digits and nothing else.", "number", None),
    ("How many legs does a spider have? Give only the number, in digits.", "number", None),
    ("List three things that one takes to the beach, as three bullet points, each beginning with '- '.", "bullets", 3),
    ("Give four reasons to read books, as four bullet points that begin with '- '. No other text.", "bullets", 4),
    ("Write two tips for a good night's sleep as two bullet points, each starting with '- '.", "bullets", 2),
    ("List three European countries as a numbered list, with '1.', '2.' and '3.' and nothing else.", "numbered", 3),
    ("Write the steps for making tea as a numbered list of exactly four steps.", "numbered", 4),
    ("Write one sentence about the Moon in capital letters only.", "capitals", None),
    ("Say good morning in capital letters.", "capitals", None),
    ("Write one sentence about rain, using small letters only: no capital letters at all.", "small_letters", None),
    ("Return a JSON object with the keys name and age for some person. Only JSON.", "json", ["name", "age"]),
    ("Return a JSON object with the keys city and country for any city. Only JSON.", "json", ["city", "country"]),
    ("Reply with a JSON object that has one key, ok, set to true. Only JSON.", "json", ["ok"]),
    ("Return a JSON list of three colours. Only JSON.", "json_list", 3),
    ("List five animals on one line, separated by commas.", "commas", 5),
    ("Name three rivers on one line, separated by commas, with no other text.", "commas", 3),
    ("Write exactly one sentence about trains.", "sentences", 1),
    ("Write exactly two sentences about the sea.", "sentences", 2),
    ("Describe a forest in at most ten words.", "at_most_words", 10),
    ("Explain what a clock is for, in at most fifteen words.", "at_most_words", 15),
    ("Write the word hello between square brackets, like [this], and nothing else.", "inside", ["[", "]"]),
    ("Put the name of any planet between the tags <planet> and </planet>, and write nothing else.", "inside",
     ["<planet>", "</planet>"]),
    ("Write a short greeting that ends with the word END.", "ends_with", "END"),
    # Easier requests, so small models can regress too.
    ("Ask me a question about my weekend. Write the question only.", "ends_with", "?"),
    ("Write one short sentence about dogs.", "sentences", 1),
    ("Write a sentence with the word river in it.", "contains", "river"),
    ("Write a short sentence that contains the word music.", "contains", "music"),
    ("Write a numbered list of three fruits: 1., 2. and 3.", "numbered", 3),
    ("Complete the sentence, beginning with 'The sky is'.", "begins_with", "The sky is"),
    ("Write a sentence that begins with the word Tomorrow.", "begins_with", "Tomorrow"),
    ("Say thank you in at most twelve words.", "at_most_words", 12),
)  # fmt: skip

_BULLET = re.compile(r"[-*•] +\S")
_NUMBERED = re.compile(r"(\d+)[.)] +\S")
_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)?\.?")
_SENTENCE_END = re.compile(r"[.!?]+[\"')\]]*(?=\s|$)")


def is_followed(rule: str, argument: Any, completion: str) -> bool:
    """Return whether the whole completion, outer spaces aside, has the requested form."""
    text = completion.strip()
    return bool(text) and _RULES[rule](text, argument)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _is_numbered(text: str, count: int) -> bool:
    matches = [_NUMBERED.match(line) for line in _lines(text)]
    return [match and int(match[1][:4]) for match in matches] == list(range(1, count + 1))


def _json(text: str) -> Any:
    fenced = last_fenced(text, ("json",)) if text.startswith("```") and text.endswith("```") else None
    try:
        return json_value(text if fenced is None else fenced)
    except ValueError:
        return None


def _has_keys(text: str, keys: Sequence[str]) -> bool:
    value = _json(text)
    return isinstance(value, dict) and set(value) == set(keys)


def _is_json_list(text: str, count: int) -> bool:
    value = _json(text)
    return isinstance(value, list) and len(value) == count


def _num_sentences(text: str) -> int:
    """Count sentences. Text after the last sentence end counts as one more."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return len(ends) + (not ends or ends[-1] < len(text))


_RULES: Mapping[str, Callable[[str, Any], bool]] = {
    "words": lambda text, count: len(text.split()) == count,
    "at_most_words": lambda text, count: len(text.split()) <= count,
    "one_of": lambda text, allowed: text.lower().rstrip(".!") in allowed,
    "number": lambda text, _: _NUMBER.fullmatch(text) is not None,
    "bullets": lambda text, count: len(_lines(text)) == count and all(_BULLET.match(line) for line in _lines(text)),
    "numbered": _is_numbered,
    "capitals": lambda text, _: text.isupper(),
    "small_letters": lambda text, _: text.islower(),
    "json": _has_keys,
    "json_list": _is_json_list,
    "commas": lambda text, count: "\n" not in text and len([item for item in text.split(",") if item.strip()]) == count,
    "sentences": lambda text, count: "\n\n" not in text and _num_sentences(text) == count,
    "inside": lambda text, ends: (
        text.startswith(ends[0]) and text.endswith(ends[1]) and text.count(ends[0]) == text.count(ends[1]) == 1
    ),
    "begins_with": lambda text, words: text.startswith(words),
    "ends_with": lambda text, word: text.rstrip(".!").endswith(word),
    "contains": lambda text, word: word in text.lower(),
}


@dataclass(frozen=True)
class GeneralFormat:
    """Simple requests whose form is checked by rule, ignoring the content. A guard, not for training."""

    verifier: ClassVar[str] = "general-format/1"

    def problems(self, split: str) -> Sequence[Problem]:
        if split == "train":
            return ()
        return [
            Problem(f"general-format-{number:02d}", (Message("user", request),), json.dumps([rule, argument]),
                    {"rule": rule})
            for number, (request, rule, argument) in enumerate(REQUESTS, start=1)
        ]  # fmt: skip

    def score(self, problem: Problem, completion: str) -> Score:
        rule, argument = json_value(problem.answer)
        is_right = is_followed(rule, argument, completion)
        verdict = Verdict.CORRECT if is_right else Verdict.WRONG
        return Score(float(is_right), verdict, {}, self.verifier, f"{rule}: {excerpt(completion)}")
