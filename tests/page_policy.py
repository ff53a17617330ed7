"""A check of the content security policy of a page."""

from __future__ import annotations

import base64
import hashlib
import re


def assert_policy_names_code(text: str) -> None:
    """Assert that the policy allows exactly the script and the style of the page, by their digests."""
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    for element, directive in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(f"<{element}>(.*?)</{element}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
