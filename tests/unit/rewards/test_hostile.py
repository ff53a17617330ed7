"""Model text is hostile: whatever it is, each verifier answers soon, does not raise and does not say correct."""

import time
from pathlib import Path

import pytest

from groupwise.rewards.expression import score_countdown
from groupwise.rewards.extract import final_answer, last_boxed, last_number, last_tag
from groupwise.rewards.format import score_copy
from groupwise.rewards.math.score_math import score_math
from groupwise.rewards.numbers import one_number
from groupwise.types import Verdict

SIZE = 100_000
MARK = Path("/tmp/groupwise-model-text-was-run")
CONTENTS = {
    "power tower": "9**9**9**9",
    "latex power tower": "9^{9^{9^{9}}}",
    "factorial": "(10^9)!",
    "exponent": "1e999999999",
    "negative exponent": "1e-999999999",
    "long number": "9" * SIZE,
    "long decimal": "0." + "3" * SIZE,
    "long fraction": "1/" + "7" * SIZE,
    "thousands": "1" + ",000" * (SIZE // 4),
    "nested parentheses": "(" * SIZE + "1" + ")" * SIZE,
    "open parentheses": "(" * SIZE,
    "nested fractions": "\\frac{1}{" * (SIZE // 10) + "1" + "}" * (SIZE // 10),
    "dollars": "$ " * (SIZE // 2),
    "spaces": " " * SIZE,
    "spaces between": "1" + " " * SIZE + "2",
    "minuses": "-" * SIZE + "1",
    "products": "9*" * (SIZE // 2) + "9",
    "sums": "1+" * (SIZE // 2) + "1",
    "commas": "," * SIZE,
    "list": "1," * (SIZE // 2) + "1",
    "NUL": "\x00" * 1000 + "7",
    "lone surrogates": "\ud800\udfff" * 1000,
    "other digits": "٣٤",
    "code": f"__import__('os').system('touch {MARK}')",
    "entities": '<!DOCTYPE a [<!ENTITY b "c">]>&b;',
    "text macros": "\\text{" * (SIZE // 6),
    "right-to-left": "\u202e5\u202c",
}
WHOLE = {
    "open boxes": "\\boxed{" * (SIZE // 7),
    "open boxes and closing braces": "\\boxed{" * (SIZE // 14) + "}" * (SIZE // 14),
    "box and spaces": ("\\boxed" + " " * 1000) * (SIZE // 1000),
    "open tags": "<answer>" * (SIZE // 8),
    "close tags": "</answer>" * (SIZE // 9),
    "both tags": "<answer></answer>" * (SIZE // 17),
    "tags crossed": "</answer><answer>" * (SIZE // 17),
    "hashes": "#" * SIZE,
    "hash lines": "####\n" * (SIZE // 5),
    "backslashes": "\\" * SIZE,
    "digits and dots": "1." * (SIZE // 2),
    "digits and slashes": "1/" * (SIZE // 2),
    **{
        f"many {piece!r}": piece * (SIZE // len(piece)) for piece in ("1e", "1{,}", "2 1/", "1 000", "\\frac{1}{", "1^")
    },
    "empty": "",
}
COMPLETIONS = {
    **WHOLE,
    **{
        f"{name} in {marker}": form.format(content)
        for name, content in CONTENTS.items()
        for marker, form in {"tag": "<answer>{}</answer>", "box": "\\boxed{{{}}}", "hashes": "#### {}"}.items()
    },
}


@pytest.mark.parametrize("completion", COMPLETIONS.values(), ids=COMPLETIONS.keys())
def test_hostile_completions(completion: str) -> None:
    started = time.process_time()
    scores = [
        score_copy("1", completion, ""),
        score_countdown([9, 9, 9], 27, completion, ""),
        score_math("42", completion, ""),
        score_math("\\frac{1}{2}", completion, ""),
        score_math("(1,2)", completion, ""),
    ]
    for found in (final_answer(completion), last_boxed(completion), last_tag(completion)):
        if found is not None:
            one_number(found.text)
    last_number(completion)
    assert time.process_time() - started < 10.0
    assert not MARK.exists()
    for score in scores:
        assert score.verdict in (Verdict.WRONG, Verdict.UNPARSED)
        assert 0.0 <= score.reward < 1.0
        assert len(score.detail) < 200
        score.detail.encode()
