"""What a node of SGLang's tree is given as its priority."""

import math
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eviction_client.engines.sglang.chain import BLOCK_TOKENS, TokenChain
from eviction_client.engines.sglang.priorities import HIGHEST, LOWEST, Priorities
from eviction_client.engines.sglang.versions import why_not
from eviction_client.score import Keys

NOW = 1.8e9


def test_under_least_recent_use_all_have_the_same() -> None:
    priorities = Priorities()
    assert {priorities.ended(Keys(NOW + i, NOW + i + 60 * i), NOW + i, 0.0) for i in range(100)} == {0}
    assert priorities.going_on(NOW + 1000) == 0


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(-14_400, 14_400)), min_size=2, unique=True))
def test_under_credit_the_order_is_that_of_the_keys(ended: list[tuple[float, float]]) -> None:
    priorities = Priorities()
    priorities.follow(True, NOW)
    keys = [Keys(NOW + t, NOW + t + credit) for t, credit in ended]
    given_ones = {key.key: priorities.ended(key, NOW, 0.0) for key in keys}
    assert [given_ones[key] for key in sorted(given_ones)] == sorted(given_ones.values())


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 500), st.floats(-14_400, 14_400)), min_size=1))
def test_what_ends_after_a_change_of_rule_lies_above_all_before(steps: list[tuple[bool, float, float]]) -> None:
    priorities, now = Priorities(), NOW
    before: list[int] = []
    for trusting, later, credit in steps:
        now += later
        if trusting != priorities.trusting:
            highest = max(before, default=-1)
            priorities.follow(trusting, now)
            assert priorities.ended(Keys(now, now), now, 0.0) > highest
        before.append(priorities.ended(Keys(now, now + credit), now, 0.0))
        assert LOWEST < before[-1] < HIGHEST


def test_retained_blocks_lie_above_the_floor_until_their_time_is_over() -> None:
    priorities = Priorities()
    long, short = (priorities.ended(Keys(NOW + s, NOW + s), NOW, s) for s in (600.0, 60.0))
    assert long > short > priorities.ended(Keys(NOW, NOW), NOW, 0.0)
    assert short > priorities.going_on(NOW + 59)
    assert long > priorities.going_on(NOW + 61) == short
    assert priorities.going_on(NOW + 601) == long


def test_what_is_to_go_first_lies_below_the_floor() -> None:
    priorities = Priorities()
    assert priorities.ended(Keys.done(NOW), NOW, -math.inf) < priorities.ended(Keys(NOW, NOW), NOW, 0.0)


def test_no_number_overflows_an_int64() -> None:
    priorities = Priorities()
    priorities.follow(True, NOW)
    assert priorities.ended(Keys(1e30, 1e30), NOW, 0.0) == HIGHEST
    assert priorities.ended(Keys(-1e30, -1e30), NOW, 0.0) == LOWEST + 1
    assert LOWEST > -(2**63) and HIGHEST < 2**63


def test_chains_that_begin_alike_have_the_same_first_blocks() -> None:
    shared = array("q", range(10 * BLOCK_TOKENS))
    one, other = (TokenChain(shared + array("q", range(start, start + 100))) for start in (0, 5_000))
    assert len(one) == 11 and list(one)[:10] == list(other)[:10] and one[10] != other[10]
    assert TokenChain(shared, b"tenant")[0] != one[0]
    assert TokenChain(array("q", [1, *list(shared)[1:]]))[9] != one[9], "a block's name tells all that is before it, too"
    assert len(TokenChain(array("q", range(BLOCK_TOKENS - 1)))) == 0
    assert one[:3] == [one[0], one[1], one[2]]


def sources(folder: Path, seam: str) -> Path:
    """The lines of SGLang's sources that the check looks for."""
    text = {
        "plugins/hook_registry.py": 'class HookRegistry:\n    AROUND = "around"\n',
        "mem_cache/registry.py": "def create_tree_cache(ctx: TreeCacheBuildContext) -> BasePrefixCache:\n",
        "mem_cache/unified_radix_cache.py": f"""
    def {seam}(self, req: Req, *, up_to: int, **kwargs) -> None:
    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
    def insert(self, params: InsertParams) -> InsertResult:
    def on_release(self, req: Req, *, checkpointed: bool) -> None:
    def path_device_indices(self, node: NodeId) -> torch.Tensor:
    def _apply_cache_actions(
    def _evict_device_leaf(
""",
        "mem_cache/unified_cache/unified_tree_core.py": """
        node.priority = max(node.priority, state.priority)
    def collect_path_info(
""",
        "mem_cache/evict_policy.py": "        return (node.priority, node.last_access_time)\n",
    }
    for name, lines in text.items():
        file = folder / "sglang/srt" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(lines)
    return folder / "sglang"


def test_a_release_without_the_hook_is_refused_with_its_name(tmp_path: Path) -> None:
    assert why_not(sources(tmp_path, "checkpoint_into_tree")) is None
    reason = why_not(sources(tmp_path, "insert_req"))
    assert reason is not None and "def checkpoint_into_tree" in reason and "unified_radix_cache.py" in reason
    (tmp_path / "sglang/srt/mem_cache/registry.py").unlink()
    assert why_not(tmp_path / "sglang") == "it has no sglang/srt/mem_cache/registry.py"


def test_where_there_is_no_sglang_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert why_not() == "SGLang is not installed"
