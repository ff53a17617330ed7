"""Surface signs of reasoning: words with which a completion checks itself, goes back, tries another way or starts over.

Each sign is a list of word patterns, matched in lower case with straight apostrophes. They find words, not thought:
"let me check" may not be followed by a check, and a model may check silently. So they only show how a policy's habits
change over training. Linear time; no verifier is called.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

REACH = 48
"""Number of characters: more than any pattern needs, so that no match ends at the edge of a window."""
_APOSTROPHES = str.maketrans("\u2019\u2018\u02bc", "'''")


@dataclass(frozen=True)
class Behaviour:
    name: str
    title: str
    meaning: str
    anchors: tuple[str, ...]
    """Each match of `patterns` contains one of these and extends at most `REACH` beyond it on either side."""
    patterns: tuple[str, ...]

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile("|".join(self.patterns))

    def is_in(self, normal_text: str) -> bool:
        """Return whether `normal_text` (made by `normal`) shows the sign.

        The same as `regex.search(normal_text)`, but searches only around the anchors: ten times as fast on long texts.
        """
        for anchor in self.anchors:
            position = normal_text.find(anchor)
            while position >= 0:
                start, end = max(0, position - REACH), min(position + len(anchor) + REACH, len(normal_text))
                match = self.regex.search(normal_text, start, end)
                # The end of a window looks like the end of a word; a real match there is in a later window too.
                if match is not None and (match.end() < end or end == len(normal_text)):
                    return True
                position = normal_text.find(anchor, position + 1)
        return False


BEHAVIOURS: tuple[Behaviour, ...] = (
    Behaviour(
        "verifies",
        "verifies itself",
        '"let me check", "double-check", "verify", "plugging back in", "check:"',
        anchors=("check", "verif", "plug"),
        patterns=(
            r"\b(?:let me|let's|let us|i'll|i will|i should|we should|we can|to|now) (?:just |quickly |also )?check\b",
            r"\bdouble[- ]check",
            r"\bverif(?:y|ying|ication)\b",
            r"\bplug(?:ging)? (?:it|this|that|these|them)? ?back\b",
            r"(?:^|[.!?\n]\s{0,3})check(?:ing)?:",
        ),
    ),
    Behaviour(
        "backtracks",
        "backtracks",
        '"wait,", "hold on", "hmm", "on second thought", "that\'s wrong", "I made a mistake", "that doesn\'t work"',
        anchors=(
            "wait",
            "hold on",
            "hmm",
            "thought",
            "wrong",
            "mistake",
            "correct",
            "not right",
            "t work",
            "scratch",
            "error",
        ),
        patterns=(
            # The bare word is often part of a story: "they wait for an hour".
            r"(?:^|[.!?\n>]\s{0,3}|\b(?:but|no|oh),? )wait\b|\bwait[,.!?:\u2026\u2014-]",
            r"\bhold on\b",
            r"\bhmm",
            r"\bon second thought\b",
            r"\b(?:that|this|it)(?:'s| is| was| seems) (?:wrong|incorrect|not right)\b",
            r"\bi(?: have|'ve)? (?:made|make) (?:a|an) (?:mistake|error)\b",
            r"\b(?:does not|doesn't|did not|didn't|won't|will not) work\b",
            r"\bscratch that\b",
        ),
    ),
    Behaviour(
        "explores",
        "tries another way",
        '"alternatively", "another way", "let\'s try a different", "what if", "or maybe"',
        anchors=("alternatively", "another", "different", "something else", "what if", "or maybe"),
        patterns=(
            r"\balternatively\b",
            r"\banother (?:way|approach|method|option|possibility|idea)\b",
            r"\b(?:let me|let's|let us|i'll|i will|we can|we could) (?:try|use|consider) "
            r"(?:a different|another|something else)\b",
            r"\bwhat if\b",
            r"\bor maybe\b",
        ),
    ),
    Behaviour(
        "restarts",
        "starts over",
        '"start over", "from scratch", "let me try again", "begin again"',
        anchors=("over", "again", "scratch", "afresh"),
        patterns=(
            r"\b(?:re)?start(?:ing)? (?:over|again|afresh)\b",
            r"\bfrom scratch\b",
            r"\b(?:let me|let's|let us|i'll|i will) (?:try|redo|do) (?:it |this |that )?(?:over|again|once again)\b",
            r"\bbegin(?:ning)? again\b",
        ),
    ),
)


def normal(text: str) -> str:
    return text.lower().translate(_APOSTROPHES)


def behaviours_in(text: str) -> frozenset[str]:
    """Return the names of the signs that a completion shows."""
    normal_text = normal(text)
    return frozenset(behaviour.name for behaviour in BEHAVIOURS if behaviour.is_in(normal_text))
