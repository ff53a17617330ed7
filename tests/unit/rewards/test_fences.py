import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.rewards.fences import last_block, last_fenced

SQL = frozenset(("sql",))


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("```sql\nSELECT 1\n```", "\nSELECT 1\n"),
        ("so\n```sql\na\n```\nno:\n```sql\nb\n```\nyes", "\nb\n"),
        ("```sql\na\n```\n```python\nb\n```", "\na\n"),
        ("```SQL\na\n```\n```\nb\n```", "\na\n"),
        ("```python\na\n```\n```\nb\n```", "\nb\n"),
        ("```sql\na\n```\n```sql\ncut off", "\na\n"),
        ("```sql\nforgotten\n```sql\nb\n```", "\nb\n"),
        ("```sql\na;```\nText", "\na;"),
        ("use ```sql a``` here", " a"),
        ("  ```sql\n  a\n  ```", "\n  a\n"),
        ("````sql\na\n````", "\na\n"),
        ("```SELECT 1```", "SELECT 1"),
        ("```a b```c", "a b"),
        ("```\nSELECT 1\n```and so on", "\nSELECT 1\n"),
        ("```python \na\n``` \n", " \na\n"),
        ("```sql\n```", "\n"),
        ("```sql\r\na\r\n```\r\n", "\r\na\r\n"),
        ("```sql", None),
        ("``a``", None),
        ("", None),
    ],
)
def test_last_fenced(completion: str, expected: str | None) -> None:
    assert last_fenced(completion, SQL) == expected


def test_a_fence_in_a_string_is_part_of_the_string() -> None:
    document = '{"code": "```py\\nx = \\"1\\"\\n```", "n": 1}'
    completion = f"```json\n{document}\n```"
    assert last_fenced(completion, frozenset(("json",)), skip_strings=True) == f"\n{document}\n"
    assert last_fenced(completion, frozenset(("json",))) != f"\n{document}\n"


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from(["```", "```sql", "```json", "\n", "`", "x", " ", '"', "\\", "é"]), max_size=12).map(
        "".join
    ),
    st.booleans(),
)
def test_the_short_way_agrees_with_the_long_one(completion: str, skip_strings: bool) -> None:
    short = last_fenced(completion, SQL, skip_strings=skip_strings)
    assert short == last_block(completion, SQL, skip_strings=skip_strings)


@pytest.mark.parametrize("unit", ["```", "```sql\n", "```sql ", "```\n", " ", "\n", '```json\n"\\"', '```json\n"', "`"])
def test_linear_time(unit: str) -> None:
    started = time.process_time()
    last_fenced(unit * (200_000 // len(unit)), SQL, skip_strings=True)
    last_fenced("```json\n" + unit * (200_000 // len(unit)), SQL, skip_strings=True)
    assert time.process_time() - started < 10.0
