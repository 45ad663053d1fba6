"""The patches that docs/contributing/upstream-vllm.md proposes, on the files of vLLM's released wheel."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.versions import unpack
from tests.upstream.side import PATCH, RELEASE, WARM_FIRST, Side, patched

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def release() -> Path:
    folder = Path(os.environ["LPC_TEST_UPSTREAM"]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return unpack(RELEASE, folder)


@pytest.fixture(scope="module")
def stock(release: Path) -> Iterator[Side]:
    side = Side(release)
    yield side
    side.close()


@pytest.fixture(scope="module")
def ours(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    side = Side(patched(release, tmp_path_factory.mktemp("vllm") / "patched", PATCH))
    yield side
    side.close()


COMPARED = ("outputs", "evicted", "cached", "preempted")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_without_the_option_tokens_and_evictions_are_stocks(stock: Side, ours: Side, asynchronous: bool) -> None:
    before, after = (side.ask("serve", "stock", asynchronous=asynchronous) for side in (stock, ours))
    assert before["evicted"]
    assert [after[name] for name in COMPARED] == [before[name] for name in COMPARED]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_factory_and_hook_carry_the_plug_in_without_replaced_methods(stock: Side, ours: Side, asynchronous: bool) -> None:
    lru, attached = (stock.ask("serve", mode, asynchronous=asynchronous) for mode in ("stock", "attached"))
    factory = ours.ask("serve", "factory", asynchronous=asynchronous)
    counted = "_maybe_evict_cached_block"  # by the harness
    assert factory["replaced"] == [counted]
    assert len(attached["replaced"]) > 1
    assert factory["plugin"] == attached["plugin"]
    assert factory["plugin"]["failures"] == 0
    assert factory["plugin"]["hinted"]["retain"] > 0
    assert [factory[name] for name in COMPARED] == [attached[name] for name in COMPARED]
    assert factory["evicted"] != lru["evicted"]
    assert factory["cached"] > lru["cached"]


def test_kv_retain_is_clipped_and_what_is_malformed_is_ignored(ours: Side) -> None:
    cases = {
        ("kv.retain", "1.0"): [({"seconds": 30}, 30.0), ({"seconds": 1e9}, 86400.0), ({"seconds": -1}, 0.0), ({}, 0.0)],
        ("kv.retain", "1.7"): [({"seconds": 0.5}, 0.5), ({"seconds": True}, 0.0), ({"seconds": "30"}, 0.0)],
        ("kv.retain", "2.0"): [({"seconds": 30}, 0.0)],
        ("kv.fetch", "1.0"): [({"seconds": 30}, 0.0)],
    }
    asked = [(*kind, payload) for kind, rows in cases.items() for payload, _ in rows]
    expected = [seconds for rows in cases.values() for _, seconds in rows]
    assert ours.ask("retain", cases=asked)["seconds"] == [*expected, 0.0]


@pytest.fixture(scope="module")
def warm(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    side = Side(patched(release, tmp_path_factory.mktemp("vllm") / "warm", WARM_FIRST))
    yield side
    side.close()


def test_both_patches_apply_together(release: Path, tmp_path: Path) -> None:
    patched(release, tmp_path / "both", PATCH, WARM_FIRST)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_with_the_default_policy_tokens_and_evictions_are_stocks(stock: Side, warm: Side, asynchronous: bool) -> None:
    before, after = (side.ask("serve", "stock", asynchronous=asynchronous) for side in (stock, warm))
    assert [after[name] for name in COMPARED] == [before[name] for name in COMPARED]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_warm_first_gives_stocks_tokens_in_the_plug_ins_order(stock: Side, warm: Side, asynchronous: bool) -> None:
    fcfs, attached = (stock.ask("busy", mode, asynchronous=asynchronous) for mode in ("stock", "attached"))
    policy = warm.ask("busy", "policy", asynchronous=asynchronous)
    assert policy["outputs"] == fcfs["outputs"]
    assert policy["started"] == attached["started"] != fcfs["started"]
    assert policy["cached"] == attached["cached"]
    assert policy["held"] == [0, 0, 0, 0], "nothing is held of requests that have ended"


def test_with_a_bound_of_0_the_order_is_first_come_first_served(stock: Side, warm: Side) -> None:
    assert warm.ask("busy", "policy", overtake_s=0.0)["started"] == stock.ask("busy", "stock")["started"]


@pytest.mark.parametrize(("rounds", "first"), [(1, "cold"), (4, "warm")])
def test_requests_overtake_only_while_the_cache_thrashes(warm: Side, rounds: int, first: str) -> None:
    found = warm.ask("rounds", count=rounds)
    assert found["first"] == first and (found["repeated"] >= 0.5) is (rounds > 1)


def test_an_endless_stream_of_warm_requests_overtakes_by_no_more_than_the_bound(warm: Side) -> None:
    for bound in (400, 800):
        overtook = warm.ask("stream", bound=bound)["overtook"]
        assert overtook > 10 and 2 * overtook <= bound, bound
