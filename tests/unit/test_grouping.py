"""Groups by how many tokens of a prompt are new."""

import pytest

from eviction_client.policy.grouping import COUNTED, GROUPS, NEW_TOKENS, ReplyEnds, group_of
from eviction_client.policy.reuse_monitor import REPLY_ENDS, GapSpan


@pytest.mark.parametrize(
    ("gap_spans", "group"),
    [
        ([], 0),
        ([GapSpan(1000, 2)], 0),
        ([GapSpan(63, 0)], 0),
        ([GapSpan(64, 0)], 1),
        ([GapSpan(256, 0)], 2),
        ([GapSpan(1024, 0)], 3),
        ([GapSpan(1024, 2), GapSpan(1087, 0)], 0),
        ([GapSpan(10, 1), GapSpan(1024, 2), GapSpan(1088, 0)], 1),
        ([GapSpan(1024, 0), GapSpan(1025, 3)], 0),
    ],
)
def test_what_is_new_at_the_end_of_a_prompt_makes_the_group(gap_spans: list[GapSpan], group: int) -> None:
    assert NEW_TOKENS == (1024, 4096, 16384)
    assert group_of(gap_spans, 16) == group < GROUPS


def test_the_frequent_ends_of_replies_get_numbers_and_keep_them() -> None:
    ends = ReplyEnds()
    for turn in range(20 * COUNTED):
        ends.number("</tool_call>" if turn % 2 else "." if turn % 4 else f"rare {turn}")
    tool, point = ends.number("</tool_call>"), ends.number(".")
    assert {tool, point} == {1, 2}
    for turn in range(20 * COUNTED):
        ends.number(f"later {turn % 5}")
    assert (ends.number("</tool_call>"), ends.number(".")) == (tool, point)
    assert 0 < max(ends.number(f"later {n}") for n in range(5)) < REPLY_ENDS
    assert ends.number("rare 0") == ends.number(None) == 0
