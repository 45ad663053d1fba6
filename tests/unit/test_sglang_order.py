"""The order in which SGLang's tree evicts, on nodes that have nothing but a time of last access."""

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eviction_client.engines.sglang.chain import BLOCK_TOKENS, TokenChain
from eviction_client.engines.sglang.order import RuleStrategy, classes_of
from eviction_client.engines.sglang.versions import find_incompatibility
from eviction_client.plugin import Plugin
from eviction_client.policy.queue.free_queue import DONE, PREEMPTED, Table
from eviction_client.policy.request import TrackedRequest
from eviction_client.policy.rules.base import RESUMED_S
from eviction_client.policy.rules.lpc import lpc_tables
from eviction_client.policy.rules.mq import mq_tables
from eviction_client.policy.rules.ttl import ttl_tables
from eviction_client.settings import ClientSettings
from eviction_client.transport.scripted_predictor import ScriptedPredictor
from lpc.model.curve import KNOTS, value_at
from tests.spans import spans_of

NOW = 1.8e9
TABLES = [
    [1.0 / (1.0 + age) for age in KNOTS],
    [0.01 + age / 1000.0 for age in KNOTS],
    [0.2] * len(KNOTS),
]


class Order(RuleStrategy):
    """At a time that stands. ``errors``: reported failures."""

    def __init__(self, tables: Sequence[Table] | None = TABLES) -> None:
        self.errors: list[Exception] = []
        super().__init__(self.errors.append)
        self.now = NOW
        self.set_tables(tables)


class OnCall:
    """A background that runs a round when the test calls ``work``."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


def node(last_access: int) -> SimpleNamespace:
    return SimpleNamespace(last_access_time=last_access)


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 20_000)), min_size=1), st.floats(0, 5000))
def test_nodes_are_ordered_by_their_classs_value_at_their_present_age(nodes: list[tuple[int, float]], later: float) -> None:
    order = Order()
    for number, (reuse_class, age) in enumerate(nodes):
        one = node(number)
        order.now = NOW
        order.used([one], [reuse_class], NOW - age)
        order.now = NOW + later
        assert order.get_priority(one) == (0, value_at(TABLES[reuse_class], NOW + later - (NOW - age)))
    assert not order.errors


def test_under_lru_the_order_is_that_of_the_last_access() -> None:
    order = Order()
    nodes = [node(access) for access in (5, 3, 9)]
    order.used(nodes, [1, 0, 2], NOW - 100)
    order.set_tables(None)
    assert [order.get_priority(one) for one in nodes] == [(0, 5), (0, 3), (0, 9)]
    order.set_tables(TABLES)
    assert [order.get_priority(one)[1] for one in nodes] == [value_at(TABLES[n], 100.0) for n in (1, 0, 2)]


@pytest.mark.parametrize("rule", ["ttl", "mq", "lpc"])
def test_a_preempted_request_resumes_under_every_rule(rule: str) -> None:
    """Its nodes are above all others for a minute, on the scale of the rule's own tables."""
    tables = {"ttl": ttl_tables(), "mq": mq_tables(150.0), "lpc": lpc_tables(100.0)}[rule]
    order = Order(tables)
    preempted, others = node(0), [node(number) for number in range(len(tables))]
    order.used([preempted], [PREEMPTED], NOW)
    order.used(others, range(len(tables)), NOW)
    assert order.get_priority(preempted) > max(map(order.get_priority, others))
    order.now = NOW + RESUMED_S + 60.0
    assert order.get_priority(preempted) < max(map(order.get_priority, others))
    assert not order.errors


@pytest.mark.parametrize("tables", [TABLES, None])
def test_done_goes_first_and_what_is_retained_last_until_its_time_is_over(tables: Sequence[Table] | None) -> None:
    order = Order(tables)
    plain, done, kept = node(2), node(3), node(1)
    order.used([plain], [0], NOW)
    order.used([done], [DONE], NOW, until=NOW + 60)
    order.used([kept], [0], NOW, until=NOW + 60)
    assert sorted([plain, done, kept], key=order.get_priority) == [done, plain, kept]
    order.now = NOW + 61
    assert order.get_priority(kept) == (0, value_at(TABLES[0], 1.0) if tables else 1), "as if just used"
    assert order.get_priority(done) < order.get_priority(plain)


def test_a_failure_is_logged_and_leaves_the_order_of_last_access() -> None:
    order = Order()
    one = node(7)
    order.used([one], [99], NOW)
    assert order.get_priority(one) == (0, 7)
    assert [type(error) for error in order.errors] == [IndexError]


def ended(*spans: tuple[int, int], newest: int = 0) -> TrackedRequest[bytes]:
    return TrackedRequest("id", at=NOW, spans=spans_of(*spans), newest=newest)


def test_a_node_has_the_class_of_its_deepest_whole_block() -> None:
    two = ended((2, 4), (5, 8))
    assert classes_of(two, [2 * BLOCK_TOKENS, 3 * BLOCK_TOKENS]) == [4, 8]
    assert classes_of(two, [2 * BLOCK_TOKENS + 63, BLOCK_TOKENS, 900]) == [4, 8, 8], "a part of a block decides nothing"
    assert classes_of(two, [BLOCK_TOKENS - 1]) == [0]
    assert classes_of(ended(newest=33), [30]) == [33], "too short for a block: used once"


def sources(folder: Path, seam: str) -> Path:
    """The lines of SGLang's sources that the check looks for."""
    text = {
        "plugins/hook_registry.py": 'class HookRegistry:\n    AROUND = "around"\n',
        "mem_cache/registry.py": "def create_tree_cache(ctx: TreeCacheBuildContext) -> BasePrefixCache:\n",
        "mem_cache/cache_init_params.py": "    tree_core_backend: Optional[str] = None\n",
        "mem_cache/unified_radix_cache.py": f"""
    def {seam}(self, req: Req, *, up_to: int, **kwargs) -> None:
    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
    def on_release(self, req: Req, *, checkpointed: bool) -> None:
""",
        "mem_cache/unified_cache/unified_tree_core.py": """
        self.eviction_strategy = get_eviction_strategy(
    def node_by_id(self, node_id: NodeId) -> UnifiedTreeNode:
    def evict_device_start(
    def full_protected_size(self) -> int:
""",
        "mem_cache/unified_cache/components/full.py": "                self.tree_core.eviction_strategy.get_priority\n",
    }
    for name, lines in text.items():
        file = folder / "sglang/srt" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(lines)
    return folder / "sglang"


def test_a_release_without_the_hook_is_refused_with_its_name(tmp_path: Path) -> None:
    assert find_incompatibility(sources(tmp_path, "checkpoint_into_tree")) is None
    reason = find_incompatibility(sources(tmp_path, "insert_req"))
    assert reason is not None and "def checkpoint_into_tree" in reason and "unified_radix_cache.py" in reason
    (tmp_path / "sglang/srt/mem_cache/registry.py").unlink()
    assert find_incompatibility(tmp_path / "sglang") == "it has no sglang/srt/mem_cache/registry.py"


def test_no_token_is_hashed_in_the_schedulers_thread() -> None:
    """The background looks at the prompts of two turns, and not at the last reply."""
    background: list[OnCall] = []

    def start(work: Callable[[], None]) -> OnCall:
        background.append(OnCall(work))
        return background[-1]

    plugin = Plugin(ClientSettings(), capacity=64, block_tokens=BLOCK_TOKENS, predictor=ScriptedPredictor(), background=start)
    for name, blocks in (("first", 2), ("next", 5)):
        tokens = array("q", range(blocks * BLOCK_TOKENS))
        plugin.started(name, TokenChain(tokens))
        background[0].work()
        chain = TokenChain(array("q", range((blocks + 1) * BLOCK_TOKENS)) if name == "next" else tokens)
        found = plugin.finished(name, completed=True, blocks=chain, prompt_blocks=blocks)
        assert chain._hashes is None
    assert [span.end for span in found.spans] == [2, 6]
    assert plugin.failures == 0


def test_chains_that_begin_alike_have_the_same_first_blocks() -> None:
    shared = array("q", range(10 * BLOCK_TOKENS))
    one, other = (TokenChain(shared + array("q", range(start, start + 100))) for start in (0, 5_000))
    assert len(one) == 11 and list(one)[:10] == list(other)[:10] and one[10] != other[10]
    assert TokenChain(shared, b"tenant")[0] != one[0]
    assert TokenChain(array("q", [1, *list(shared)[1:]]))[9] != one[9], "a block's name tells all that is before it, too"
    assert len(TokenChain(array("q", range(BLOCK_TOKENS - 1)))) == 0
    assert one[:3] == [one[0], one[1], one[2]]
