"""A second sidecar starts while one is asked for more than it can do: it must carry its share, and nothing may fail.

One engine's real client knows both addresses, as of a headless service; the second one's sidecar is not there yet. It offers
FACTOR times what one sidecar answers, at a steady rate, whatever becomes of it.
"""

import itertools
import math
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, get_args
from urllib.request import urlopen

from benchmarks.processes import Sidecar, free_port
from benchmarks.tiny_llama import build
from eviction_client.predictor_client import Fate, PredictorClient
from tests.faults.outages import SERVED_MODEL, prompts, until

FACTOR: Final = 1.5
IN_FLIGHT: Final = 16
"""Requests in flight while saturation is measured."""
WINDOW_S: Final = 5.0
"""Time over which shares are taken."""
SHARE: Final = 0.4
WITHIN_S: Final = 60.0


class Load:
    """Asks at a steady rate, in a thread of its own. ``asked``: requests so far."""

    def __init__(self, client: PredictorClient, per_second: float) -> None:
        self._client = client
        self._per_second = per_second
        self.asked = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        for number, ids in enumerate(itertools.cycle(prompts())):
            while number > (time.monotonic() - began) * self._per_second:
                if self._stop.wait(0.005):
                    return
            self._client.ask(("load", number), token_ids=ids)
            self.asked += 1


def saturation(client: PredictorClient, seconds: float) -> float:
    """Return answers per second with IN_FLIGHT requests in flight; the first third is not counted."""
    numbers = itertools.count()
    requests = itertools.cycle(prompts())
    began = time.monotonic()
    counted_from = math.nan
    while (now := time.monotonic() - began) < seconds:
        if math.isnan(counted_from) and now > seconds / 3:
            counted_from, since = client.counters.answered, now
        while client.waiting < IN_FLIGHT:
            client.ask(("saturation", next(numbers)), token_ids=next(requests))
        time.sleep(0.002)
    return (client.counters.answered - counted_from) / (now - since)


def answered(sidecar: Sidecar, port: int) -> float:
    """Return the conversations that a sidecar has answered; 0 while it cannot be asked."""
    if not sidecar.running:
        return 0.0
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith("lpc_batch_items_sum ")), 0.0)


def second_sidecar(folder: Path, models: Path, model: str, *, seconds: float) -> dict[str, Any]:
    """Overload a sidecar, start a second one, and watch both for ``seconds``, at least WINDOW_S. Raises BenchmarkError."""
    served = {SERVED_MODEL: str(build(folder / "llama"))}
    ports = [free_port(), free_port()]
    sidecars = [
        # A core each, of two: with more threads the second would only take the first one's.
        Sidecar(folder / str(n), models, model, served_models=served, threads=1, metrics_port=port)
        for n, port in enumerate(ports)
    ]
    target = "ipv4:" + ",".join(sidecar.address for sidecar in sidecars)
    with ExitStack() as stack:
        stack.enter_context(sidecars[0])
        client = stack.enter_context(closing(PredictorClient(target, served_model=SERVED_MODEL)))
        until(lambda: client.healthy)
        most = saturation(client, max(seconds / 6, 2.0))
        first = client.counters.ended + client.waiting
        load = stack.enter_context(closing(Load(client, FACTOR * most)))
        until(lambda: client.counters.refused > 0)
        refused_by_one = client.counters.refused
        stack.enter_context(sidecars[1])
        shares, within = watch(sidecars, ports, seconds)
        load.close()
        until(lambda: not client.waiting, 15)
        counters = client.counters
    fates = {fate: getattr(counters, fate) for fate in get_args(Fate)}
    figures = {
        "saturation_of_one_per_second": round(most, 1),
        "asked": load.asked,
        **{fate: count for fate, count in fates.items() if count or fate == "failed"},
        "both_above_40_percent_after_s": round(within, 1),
        "share_of_the_second": round(shares[1] / sum(shares), 3) if sum(shares) else math.nan,
        "unaccounted": load.asked + first - counters.ended,
    }
    figures["passed"] = (
        within <= WITHIN_S
        and refused_by_one > 0
        and fates["failed"] == figures["unaccounted"] == 0
        and bool(figures["share_of_the_second"] > SHARE and 1 - figures["share_of_the_second"] > SHARE)
    )
    return figures


def watch(sidecars: list[Sidecar], ports: list[int], seconds: float) -> tuple[list[float], float]:
    """Return what each answered in the second half of so many seconds, and after how many the shares were first right."""

    def counts() -> list[float]:
        return [answered(sidecar, port) for sidecar, port in zip(sidecars, ports, strict=True)]

    began = time.monotonic()
    within, half, before = math.inf, counts(), counts()
    halfway = False
    while time.monotonic() - began < seconds:
        time.sleep(min(WINDOW_S, seconds / 4))
        now = counts()
        found = [b - a for a, b in zip(before, now, strict=True)]
        if min(found) > SHARE * sum(found):
            within = min(within, time.monotonic() - began)
        before = now
        if not halfway and time.monotonic() - began >= seconds / 2:
            halfway, half = True, now
    return [b - a for a, b in zip(half, before, strict=True)], within
