"""Background tasks: a failed round is logged and counted and does not end the task; errors that nobody takes are logged too."""

import asyncio
import contextlib
import gc
import logging
import threading

import pytest
from prometheus_client import CollectorRegistry, Counter

from lpc.wire.background import Background, lost_errors
from tests.eventually import eventually, patiently
from tests.metric_values import counted

SECRET = "my secret prompt"


@pytest.fixture
def failures() -> Counter:
    return Counter("failures", "Of tasks.", ["task"], registry=CollectorRegistry())


def count(failures: Counter, task: str) -> float:
    return float(counted(failures.labels(task)))


async def test_a_failed_round_is_logged_and_counted_and_the_next_one_runs(
    failures: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = 0

    async def fails_twice() -> None:
        nonlocal rounds
        rounds += 1
        if rounds <= 2:
            raise KeyError(SECRET)

    background = Background(failures)
    background.every(0.01, "labels", fails_twice)
    await eventually(lambda: rounds > 3)
    await background.close()
    assert count(failures, "labels") == 2
    assert caplog.text.count("bug in the task 'labels'") == 1
    assert "in fails_twice" in caplog.text
    assert SECRET not in caplog.text


async def test_closing_ends_a_task_whose_round_swallows_the_cancellation(failures: Counter) -> None:
    background, begun = Background(failures), asyncio.Event()

    async def swallows() -> None:
        once = contextlib.suppress(asyncio.CancelledError) if not begun.is_set() else contextlib.nullcontext()
        begun.set()
        with once:
            await asyncio.Event().wait()

    background.every(0.001, "swallows", swallows)
    await begun.wait()
    async with asyncio.timeout(patiently(5.0)):
        await background.close()
    assert count(failures, "swallows") == 0


async def test_a_watched_task_that_ends_before_its_time_is_logged_and_counted(
    failures: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    async def returns() -> None: ...

    async def fails() -> None:
        raise KeyError(SECRET)

    background = Background(failures)
    background.watch("returns", asyncio.create_task(returns()))
    background.watch("fails", asyncio.create_task(fails()))
    await eventually(lambda: count(failures, "returns") and count(failures, "fails"))
    assert "the task 'returns' has ended unexpectedly" in caplog.text
    assert "bug in the task 'fails'" in caplog.text
    assert SECRET not in caplog.text
    await background.close()


async def test_an_unhandled_error_is_counted_and_logged_without_its_message(
    failures: Counter, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fails() -> None:
        raise KeyError(SECRET)

    def fails_in_thread() -> None:
        raise KeyError(SECRET)

    before = threading.excepthook
    with caplog.at_level(logging.DEBUG), lost_errors(failures):
        task = asyncio.create_task(fails())
        await asyncio.wait((task,))
        del task
        gc.collect(1)  # young objects only: what other tests have left behind is not looked at
        assert count(failures, "unawaited") == 1
        thread = threading.Thread(target=fails_in_thread, name="worker")
        thread.start()
        thread.join()
        assert count(failures, "unawaited") == 2
    assert threading.excepthook is before
    assert "bug in a task that is not awaited" in caplog.text and "bug in the thread worker" in caplog.text
    assert SECRET not in caplog.text + capsys.readouterr().err
