"""Which requests are drawn for hit checks, which of them waits, and when a check begins and gives way."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx2
import pytest

from response_cache.gateway.checks import BODY_BYTES, Checks
from response_cache.gateway.engines import Engine, Engines
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.settings import Bounds, GatewaySettings
from response_cache.gateway.targets import CHAT
from tests.eventually import eventually

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'


class Checked:
    """Checks of one engine that nothing listens for."""

    def __init__(self, share: float = 1.0, drawn: float = 0.0) -> None:
        self.now, self.drawn, self.kind = 1000.0, drawn, "vllm"
        self.metrics = Metrics()
        engines = Engines(["http://127.0.0.1:1"], self.metrics)
        self.engine: Engine = engines.all[0]
        self.http = httpx2.AsyncClient(trust_env=False)
        self.checks = Checks(
            *(GatewaySettings(gateway_check_share=share), Bounds(), self.http, engines, self.metrics),
            *(lambda engine: self.kind or None, b"secret", lambda: self.drawn, lambda: self.now),
        )

    def draw(self, path: str = CHAT, body: object = BODY, *, store: bool = True) -> bool:
        """Return whether a request is drawn, and end its answer."""
        following = self.checks.following(self.engine, path, b"/", [], body, store=store)
        if following is not None:
            following.part(b'"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}')
            following.end()
        return following is not None

    @property
    def skipped(self) -> dict[str, float]:
        (family,) = self.metrics.checks_skipped.collect()
        return {
            sample.labels["reason"]: sample.value
            for sample in family.samples
            if sample.name.endswith("_total") and sample.value
        }

    @contextmanager
    def serving(self) -> Iterator[None]:
        with self.engine.serving():
            yield


@pytest.fixture
async def checked() -> AsyncIterator[Checked]:
    made = Checked()
    yield made
    await made.checks.close()
    await made.http.aclose()


@pytest.mark.parametrize(("drawn", "expected"), [(0.0, True), (0.2499, True), (0.25, False), (0.99, False)])
async def test_a_share_of_the_requests_is_drawn(drawn: float, expected: bool) -> None:
    made = Checked(0.25, drawn)
    assert made.draw() == expected
    assert not made.skipped
    await made.http.aclose()


async def test_paths_without_prompts_are_not_drawn_and_others_say_why_they_are_not_checked(checked: Checked) -> None:
    assert not checked.draw("/v1/embeddings")
    assert not checked.draw("/v1/models")
    assert not checked.skipped
    assert not checked.draw(store=False)
    assert not checked.draw(body=b" " * (BODY_BYTES + 1))
    assert not checked.draw(body=checked)
    assert checked.skipped == {"no_store": 1, "size": 2}


async def test_a_check_gives_way_before_it_has_begun_and_the_next_one_can_begin(checked: Checked) -> None:
    checked.draw()
    await checked.checks.run()
    with checked.serving():  # the task has not had its first turn
        await eventually(lambda: checked.skipped)
    assert checked.skipped == {"gave_way": 1}
    checked.draw()
    await checked.checks.run()
    await eventually(lambda: "failed" in checked.skipped)  # nothing listens there
    assert checked.skipped == {"gave_way": 1, "failed": 1}


async def test_after_a_check_an_engine_rests_for_49_times_as_long(checked: Checked) -> None:
    checked.draw()
    await checked.checks.run()
    checked.now += 2.0  # seconds that the check takes
    await eventually(lambda: checked.skipped)
    checked.draw()
    for seconds, waits in ((97.9, True), (0.2, False)):
        checked.now += seconds
        checked.draw()  # the one that waited is too old
        before = checked.skipped["failed"]
        await checked.checks.run()
        if waits:
            await asyncio.sleep(0)
            assert checked.skipped["failed"] == before
        else:
            await eventually(lambda: checked.skipped["failed"] == 2)


async def test_no_check_begins_before_the_kind_of_the_engine_is_known(checked: Checked) -> None:
    checked.kind = ""
    checked.draw()
    await checked.checks.run()
    checked.draw()
    assert checked.skipped == {"busy": 1}
    checked.kind = "any"
    await checked.checks.run()
    await eventually(lambda: "failed" in checked.skipped)


async def test_a_body_of_many_values_is_not_read(checked: Checked) -> None:
    checked.draw(body=b'{"messages": [' + b"{}," * 30_000 + b"{}]}")
    await checked.checks.run()
    await eventually(lambda: checked.skipped)
    assert checked.skipped == {"size": 1}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7", b'{"messages": [' + b"[" * 20_000, b'{"prompt": "\xff"}'])
async def test_a_body_that_cannot_be_read_is_a_form(checked: Checked, body: bytes) -> None:
    checked.draw(body=body)
    await checked.checks.run()
    await eventually(lambda: checked.skipped)
    assert set(checked.skipped) <= {"form", "size"}
