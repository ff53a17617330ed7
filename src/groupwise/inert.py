"""Foreign text made inert: for HTML, for a block of JSON in a page, for a spreadsheet.

What a model, a data set or a recipe wrote is evidence: it is shown as it is, with what a reader would not see (control
codes, terminal escapes, marks that reorder text) made visible as its code point. Nothing here decides what is shown.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from typing import Any

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufff9-\ufffb]"
)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def visible(text: str) -> str:
    """`text` with ⟨U+001B⟩ where a reader would see nothing. What comes out can be written as UTF-8."""
    return _UNSEEN.sub(lambda match: f"\u27e8U+{ord(match[0]):04X}\u27e9", text.replace("\r\n", "\n"))


def escape(text: str) -> str:
    """For HTML, inside an element or a quoted attribute."""
    return html.escape(visible(text), quote=True)


def json_block(value: Any) -> str:
    """JSON for an inert element of a page. Without "<" nothing in it can end the element or open a comment.

    What cannot be seen or cannot be written as UTF-8 travels as an escape.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text).replace("<", "\\u003c")


def policy_hash(text: str) -> str:
    """How a content policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def cell(value: object) -> object:
    """For a CSV file: a text that a spreadsheet would take for a formula gets a quote in front."""
    if isinstance(value, str):
        text = visible(value)
        return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
    return value
