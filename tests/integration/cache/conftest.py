import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.engine_double import EngineDouble, served


@pytest.fixture
def engine() -> Iterator[EngineDouble]:
    """An engine on an event loop in another thread, so that tests can use blocking clients."""
    ready, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    made: list[EngineDouble] = []

    async def run() -> None:
        async with served(EngineDouble()) as one:
            made.append(one)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    assert ready.wait(20)
    yield made[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()
