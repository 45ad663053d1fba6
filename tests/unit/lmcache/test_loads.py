"""What LMCache's node loads for a look-up: learned from its events, all or nothing, and all until it is measured."""

import random

import pytest

from eviction_client.policy.loading import MEASURED_LOADS, PROBE_AFTER, PROBE_S
from lpc_apps.lmcache.loads import MEASURED_PREFILLS, MOST_REQUESTS, Loads

PREFILL_S = 1e-4
"""Seconds per token."""


class Node:
    """A node and its engine, one request at a time: prefill, a fixed part of each load, and a part per token."""

    def __init__(self, *, fixed_s: float = 0.0, token_s: float = 0.0, workers: int = 1) -> None:
        self.now = 0.0
        self.fixed_s, self.token_s = fixed_s, token_s
        self.workers = workers
        self.loads = Loads(clock=lambda: self.now)
        self.count = 0

    def request(self, missing: int, stored: int, *, queued_s: float = 0.0, after_s: float = 1.0) -> bool:
        """Serve a request of which the node has ``stored`` of ``missing`` tokens; return whether it was to load."""
        self.count += 1
        name, loads = f"r{self.count}", self.loads
        self.now += after_s
        chosen = loads.should_load(name, missing)
        hit = stored if chosen else 0
        if hit:
            self.now += 0.7 * (self.fixed_s + hit * self.token_s)
        loads.looked_up(name, hit, missing - hit)
        self.now += queued_s
        if hit:
            for worker in range(self.workers):
                loads.copying(name, f"{worker}")
            self.now += 0.3 * (self.fixed_s + hit * self.token_s)
            for worker in range(self.workers):
                loads.copied(name, f"{worker}", hit)
        left = missing - hit
        while left > 0:
            step = min(left, 2048)
            self.now += queued_s + step * PREFILL_S
            for worker in range(self.workers):
                loads.storing(name, f"{worker}")
                loads.stored(name, f"{worker}", step)
            left -= step
        loads.ended(name)
        return chosen

    def learn(self) -> None:
        """Fresh prompts, and loads of many lengths."""
        for at in range(max(MEASURED_LOADS, MEASURED_PREFILLS)):
            assert self.request(4096, 0)
            assert self.request(256 * (1 + at % 8), 256 * (1 + at % 8))


def test_everything_is_loaded_until_loads_and_prefill_are_measured() -> None:
    node = Node(token_s=50 * PREFILL_S)
    assert all(node.request(4096, 4096) for _ in range(4 * MEASURED_LOADS)), "no prefill is measured"
    node = Node(token_s=50 * PREFILL_S)
    assert all(node.request(4096, 0) for _ in range(4 * MEASURED_PREFILLS)), "no load is measured"


def test_a_slow_tier_is_left_aside_and_a_fast_one_loads() -> None:
    slow, fast = Node(token_s=3 * PREFILL_S), Node(token_s=PREFILL_S / 3)
    slow.learn()
    fast.learn()
    assert not slow.request(4096, 4096)
    assert fast.request(4096, 4096)
    assert slow.loads.choice.transfers.token_s == pytest.approx(3 * PREFILL_S)
    assert slow.loads.prefill_s == pytest.approx(PREFILL_S)


def test_short_prefixes_are_computed_and_long_ones_loaded_if_a_load_has_a_fixed_part() -> None:
    node = Node(fixed_s=0.1, token_s=PREFILL_S / 3)
    node.learn()
    assert not node.request(512, 512)
    assert node.request(16_384, 16_384)


@pytest.mark.parametrize("workers", [1, 4])
def test_time_in_the_engines_queue_is_not_prefill_and_workers_count_once(workers: int) -> None:
    node = Node(token_s=3 * PREFILL_S, workers=workers)
    draw = random.Random(4)
    for _ in range(40):
        node.request(4096, 0, queued_s=draw.choice([0.0, 0.2, 0.5, 3.0]))
        node.request(2048, 2048)
    assert node.loads.prefill_s == pytest.approx(PREFILL_S, rel=0.01)
    assert not node.request(4096, 4096)


def test_a_declined_tier_is_tried_again_and_used_once_it_is_fast() -> None:
    node = Node(token_s=5 * PREFILL_S)
    node.learn()
    assert not node.request(4096, 4096)
    node.token_s = PREFILL_S / 10
    node.now += PROBE_S
    tried = [node.request(4096, 4096) for _ in range(40 * PROBE_AFTER)]
    assert not any(tried[: PROBE_AFTER - 1])
    assert all(tried[-PROBE_AFTER:])


def test_a_part_is_never_chosen() -> None:
    node = Node(token_s=1.5 * PREFILL_S)
    node.learn()
    for _ in range(400):
        node.request(16_384, 0)
        node.request(16_384, 16_384, after_s=0.1)
    assert node.loads.choice.chosen["loaded"] and not node.loads.choice.chosen["part"]


def test_a_prompt_that_the_engine_has_is_not_decided() -> None:
    node = Node(token_s=5 * PREFILL_S)
    node.learn()
    assert node.loads.should_load("all", 0)
    assert node.loads.should_load("more", -256)


def test_events_out_of_order_of_unknown_requests_and_failed_copies_teach_nothing() -> None:
    node = Node(token_s=PREFILL_S / 3)
    node.learn()
    loads = node.loads
    measured = loads.choice.transfers.measured, loads.prefill_s
    for name in ("unknown", "r1"):
        loads.copied(name, "0", 512)
        loads.stored(name, "0", 512)
        loads.copying(name, "0")
        loads.storing(name, "0")
        loads.looked_up(name, 512, 9)
        loads.ended(name)
    assert loads.should_load("failed", 4096)
    loads.looked_up("failed", 4096, 0)
    loads.copying("failed", "0")
    loads.copied("failed", "0", 0)
    loads.copied("failed", "0", 4096)
    loads.storing("failed", "0")
    loads.stored("failed", "0", 1 << 40)
    loads.stored("failed", "0", -1)
    loads.ended("failed")
    loads.ended("failed")
    assert (loads.choice.transfers.measured, loads.prefill_s) == measured


def test_the_oldest_of_requests_that_never_end_are_forgotten() -> None:
    node = Node()
    for at in range(MOST_REQUESTS + MEASURED_PREFILLS):
        node.loads.should_load(f"{at}", 512)

    def serve(first: int) -> float | None:
        for at in range(first, first + MEASURED_PREFILLS):
            node.loads.looked_up(f"{at}", 0, 512)
            node.now += 512 * PREFILL_S
            node.loads.storing(f"{at}", "0")
            node.loads.stored(f"{at}", "0", 512)
        return node.loads.prefill_s

    assert serve(0) is None
    assert serve(MOST_REQUESTS) == pytest.approx(PREFILL_S)
