"""Slots: who waits, who is ended, and that nothing is left over."""

import asyncio
import contextlib
import random

from predictor_service.rpc.slots import Slots
from tests.reachable import lengths


async def test_a_further_wait_ends_the_oldest_of_the_peer_that_has_most() -> None:
    slots, ended = Slots(3), []

    async def wait(peer: str, name: str) -> None:
        try:
            async with slots.hold(peer):
                await asyncio.sleep(60)
        except TimeoutError:
            ended.append(name)

    tasks = []
    for peer, name in (("a", "a1"), ("b", "b1"), ("b", "b2"), ("c", "c1"), ("d", "d1")):
        tasks.append(asyncio.create_task(wait(peer, name)))
        await asyncio.sleep(0.01)
    assert ended == ["b1", "a1"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_waits_that_end_soon_are_queued_and_peers_take_turns() -> None:
    slots, order = Slots(1, spared_s=30), []

    async def wait(peer: str) -> None:
        async with slots.hold(peer):
            order.append(peer)
            await asyncio.sleep(0)

    await asyncio.gather(*(wait(peer) for peer in "aaaabbc"))
    assert order == list("aabcaba") or sorted(order[1:4]) == ["a", "b", "c"]


async def test_cancelled_and_ended_waits_leave_all_slots_free() -> None:
    slots, draw = Slots(4, spared_s=0.001), random.Random(0)

    async def wait(peer: str, seconds: float) -> None:
        async with slots.hold(peer):
            await asyncio.sleep(seconds)

    tasks = [asyncio.create_task(wait(draw.choice("abc"), draw.random() / 100)) for _ in range(300)]
    for task in tasks:
        await asyncio.sleep(0.0002)
        if draw.random() < 0.3:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert set(lengths(slots).values()) == {0}
    async with contextlib.AsyncExitStack() as held, asyncio.timeout(10):
        for peer in "abcd":
            await held.enter_async_context(slots.hold(peer))
