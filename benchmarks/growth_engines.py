"""Engines' clients of benchmark `growth`: `python -m benchmarks.growth_engines JOB`, where JOB is a `Job` as JSON.

An engine here is the plug-in without an engine around it: `Plugin` with its background, `PredictorClient` and `RedisStore`. One
thread does what the schedulers of all engines would do. Requests arrive at random, and last `REQUEST_S`.

The process prints `ready` when the sidecar reads the prompts of each engine, waits for a line on its input, prints `measuring`
after the warm-up, and its figures as JSON at the end.
"""

import hashlib
import heapq
import itertools
import json
import random
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import BenchmarkError
from eviction_client.plugin import Plugin
from eviction_client.settings import ClientSettings
from eviction_client.stores import BlockHash
from eviction_client.stores.claims import SharedClaim
from eviction_client.stores.layout import Layout
from eviction_client.stores.namespace import Namespace
from eviction_client.stores.redis import RedisStore
from eviction_client.transport.client import PredictorClient
from eviction_client.transport.messages import SidecarPrediction
from eviction_client.transport.predictor import PredictorCounters
from eviction_client.transport.sidecar_curves import ReuseCurves
from eviction_client.transport.tokenizer_upload import TokenizerState
from lpc.wire.redis_connection import Connection

MODEL: Final = "tiny-llama"
BLOCK: Final = 16
USER, ASSISTANT, END = 2, 3, 5
"""Tokens of `lpc_apps.tiny_llama` that begin and end a message."""
FIRST_LETTER, SPACE = 70, 226
"""Its tokens of the letter a, behind which the others follow, and of a space."""
SYSTEM: Final = 1024
SYSTEMS: Final = 4
"""Tokens of a system prompt; number of system prompts, which all engines share."""
FIRST: Final = 4096
ASKED: Final = 512
REPLY: Final = 512
"""Tokens of the first user message, of each later one, and of a reply."""
TURNS: Final = 6.0
"""Mean number of turns of a conversation."""
ACTIVE_S: Final = 5.0
"""An engine has as many active conversations as requests in this time, and `LEAST_ACTIVE` more."""
LEAST_ACTIVE: Final = 20
REQUEST_S: Final = 2.0
"""Time from the start of a request to its end."""
POLL_S: Final = 0.001
READY_S: Final = 300.0


@dataclass(frozen=True)
class Job:
    """What a process does.

    Attributes:
        first: number of its first engine.
        rate: requests per second of an engine.
        capacity: blocks of an engine's cache.
        cluster: whether the Redis is a node of a Cluster.
        warm_s: seconds of load that are not measured; ``seconds``: those that are.
        shards: keys of the shared blocks.
        rule: rule of the plug-ins.
    """

    engines: int
    first: int
    rate: float
    seconds: float
    warm_s: float
    capacity: int
    predictor: str
    redis_url: str
    cluster: bool
    shards: int
    rule: str = "auto"


class Conversation:
    """The tokens of a conversation, and the hashes of its blocks.

    Attributes:
        blocks: names of the full blocks of `tokens`.
        cached: tokens of the next prompt that the turn before has computed.
    """

    def __init__(self, number: str, rng: random.Random, text: "array[int]") -> None:
        self.number, self._rng, self._text = number, rng, text
        self.tokens: array[int] = array("I", text[(rng.randrange(SYSTEMS)) * SYSTEM :][:SYSTEM])
        self.blocks: list[BlockHash] = []
        self._hash = b""
        self.turn = self.cached = 0

    def ask(self) -> None:
        """Append the next user message."""
        self.tokens += self._message(USER, FIRST if not self.turn else ASKED)
        self.tokens.append(ASSISTANT)
        self.turn += 1
        self._name()

    def reply(self) -> None:
        """Append the reply."""
        self.tokens += self._words(REPLY)
        self.tokens.append(END)
        self.cached = len(self.tokens)
        self._name()

    def _message(self, role: int, length: int) -> "array[int]":
        return array("I", [role]) + self._words(length) + array("I", [END])

    def _words(self, length: int) -> "array[int]":
        start = self._rng.randrange(SYSTEMS * SYSTEM, len(self._text) - length)
        return self._text[start : start + length]

    def _name(self) -> None:
        for start in range(len(self.blocks) * BLOCK, len(self.tokens) - BLOCK + 1, BLOCK):
            self._hash = hashlib.sha256(self._hash + self.tokens[start : start + BLOCK].tobytes()).digest()
            self.blocks.append(BlockHash(self._hash))


class Timed:
    """A predictor that notes when its answers arrive, since the plug-in takes them when requests end.

    Attributes:
        seconds: from each question to its answer, of those that were asked while `counting`.
    """

    def __init__(self, client: PredictorClient) -> None:
        self.client = client
        self.seconds: list[float] = []
        self.counting = False
        self._asked: dict[Hashable, float] = {}
        self._answers: dict[Hashable, SidecarPrediction] = {}

    def poll(self) -> None:
        """Take the answers that have arrived."""
        for name, asked in list(self._asked.items()):
            answer = self.client.take(name)
            if answer is not None:
                del self._asked[name]
                self._answers[name] = answer
                if self.counting:
                    self.seconds.append(time.perf_counter() - asked)

    def ask(
        self, request_id: Hashable, *, token_ids: Sequence[int], category: str = "", conversation_id: str = "", user: str = ""
    ) -> None:
        """See `Predictor`."""
        self._asked[request_id] = time.perf_counter()
        self.client.ask(request_id, token_ids=token_ids, category=category, conversation_id=conversation_id, user=user)

    def take(self, request_id: Hashable) -> SidecarPrediction | None:
        """See `Predictor`."""
        return self._answers.pop(request_id, None)

    def forget(self, request_id: Hashable) -> None:
        """See `Predictor`."""
        self._asked.pop(request_id, None)
        self.client.forget(request_id)

    def close(self) -> None:
        """See `Predictor`."""
        self.client.close()

    @property
    def reuse_curves(self) -> ReuseCurves | None:
        """See `Predictor`."""
        return self.client.reuse_curves

    @property
    def healthy(self) -> bool:
        """See `Predictor`."""
        return self.client.healthy

    @property
    def counters(self) -> PredictorCounters:
        """See `Predictor`."""
        return self.client.counters

    @property
    def tokenizer_state(self) -> TokenizerState:
        """See `Predictor`."""
        return self.client.tokenizer_state


class CountedStore(RedisStore):
    """A store that counts its look-ups, which statistics of Redis do not tell from those of its script.

    Attributes:
        lookups: commands that looked up claims.
    """

    def __init__(self, connection: Connection, namespace: Namespace, shards: int) -> None:
        super().__init__(connection, namespace, shards=shards)
        self.lookups = 0
        self._places = Layout(namespace.digest, shards)

    def claims(self, blocks: Sequence[BlockHash]) -> dict[BlockHash, SharedClaim]:
        """See `BlockStore`."""
        self.lookups += sum(1 for places in self._places.by_shard(blocks) if places)
        return super().claims(blocks)


class Engine:
    """The plug-in of one engine, and the conversations that it serves."""

    def __init__(self, job: Job, number: int, text: "array[int]") -> None:
        settings = ClientSettings(
            predictor_address=job.predictor,
            redis_url=job.redis_url,
            redis_cluster=job.cluster,
            redis_shards=job.shards,
            rule=job.rule,
        )
        self.predictor = Timed(PredictorClient(job.predictor, served_model=MODEL))
        namespace = Namespace("sha256_cbor", "0", BLOCK, MODEL)
        self.store = CountedStore(settings.redis_connection(), namespace, job.shards)
        self.plugin = Plugin(settings, capacity=job.capacity, block_tokens=BLOCK, predictor=self.predictor, store=self.store)
        self._number, self._text = number, text
        self._rng = random.Random(number)
        self._most_active = LEAST_ACTIVE + round(job.rate * ACTIVE_S)
        self._idle: list[Conversation] = []
        self._begun = itertools.count()
        self._requests = itertools.count()
        self.ended = 0

    def start(self) -> tuple[Hashable, Conversation, list[int]]:
        """Admit and start the next request."""
        rng = self._rng
        if self._idle and rng.randrange(self._most_active) < len(self._idle):
            place = rng.randrange(len(self._idle))
            self._idle[place], self._idle[-1] = self._idle[-1], self._idle[place]
            conversation = self._idle.pop()
        else:
            conversation = Conversation(f"{self._number}/{next(self._begun)}", rng, self._text)
        conversation.ask()
        name = next(self._requests)
        ids, cached = conversation.tokens.tolist(), conversation.cached
        self.plugin.admitted(name, ids, session=conversation.number)
        self.plugin.started(name, conversation.blocks[:], cached=cached)
        return name, conversation, ids

    def end(self, name: Hashable, conversation: Conversation, ids: list[int]) -> None:
        """End a request; its conversation may go on."""
        prompt_blocks = len(conversation.blocks)
        conversation.reply()
        self.plugin.finished(
            name,
            completed=True,
            blocks=conversation.blocks[:],
            prompt_blocks=prompt_blocks,
            session=conversation.number,
            token_ids=ids,
        )
        self.ended += 1
        if self._rng.random() >= 1 / TURNS:
            self._idle.append(conversation)

    @property
    def counts(self) -> Counter[str]:
        """What became of its requests and blocks so far."""
        counted = self.predictor.counters
        return Counter(
            requests=self.ended,
            predictions=counted.answered,
            failed=counted.late + counted.failed + counted.refused,
            unread=counted.unread,
            refused=counted.refused,
            late=counted.late,
            forgotten=counted.forgotten,
            **{f"cause_{cause}": count for cause, count in counted.causes.items()},
            exceptions=self.plugin.failures,
            store_failures=self.store.failures,
            blocks_written=self.store.written,
            blocks_dropped=self.store.dropped,
            lookups=self.store.lookups,
        )


def thread_seconds() -> Counter[str]:
    """Return the processor time of this process's threads so far, by their name; `grpc`: those that are not Python's."""
    named = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    found: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        try:
            nanoseconds = int((task / "schedstat").read_text().split()[0])
        except (OSError, IndexError):  # it has just ended
            continue
        found[named.get(task.name, "grpc")] += nanoseconds / 1e9  # type: ignore[assignment]
    return found


def rss_mib() -> float:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def _arrivals(job: Job) -> Iterator[tuple[float, int]]:
    """Yield the times of requests, seconds from the start, and the engine of each."""
    rng = random.Random(job.first)
    at = 0.0
    while True:
        at += rng.expovariate(job.rate * job.engines)
        yield at, rng.randrange(job.engines)


def serve(job: Job, engines: Sequence[Engine]) -> dict[str, Any]:
    """Run the load; return the figures of what is measured."""
    arrivals = _arrivals(job)
    ends: list[tuple[float, int, int, Any]] = []
    order = itertools.count()
    began = time.perf_counter()
    at, number = next(arrivals)
    before: Counter[str] | None = None
    threads: Counter[str] = Counter()
    late = 0.0
    while (now := time.perf_counter() - began) < job.warm_s + job.seconds:
        if before is None and now >= job.warm_s:
            before, threads = _counts(engines), thread_seconds()
            for engine in engines:
                engine.predictor.counting = True
            print("measuring", flush=True)
        while at <= now:
            late = max(late, now - at) if before is not None else 0.0
            heapq.heappush(ends, (now + REQUEST_S, next(order), number, engines[number].start()))
            at, number = next(arrivals)
            now = time.perf_counter() - began
        while ends and ends[0][0] <= now:
            _, _, place, started = heapq.heappop(ends)
            engines[place].end(*started)
        for engine in engines:
            engine.predictor.poll()
        time.sleep(POLL_S)
    took = time.perf_counter() - began - job.warm_s
    counts = _counts(engines)
    counts.subtract(before or {})
    used = thread_seconds()
    used.subtract(threads)
    return {
        **counts,
        "seconds": took,
        "latencies_s": [round(seconds, 5) for engine in engines for seconds in engine.predictor.seconds],
        "threads_s": used,
        "latest_s": late,
        "waiting": sum(engine.predictor.client.waiting for engine in engines),
    }


def _counts(engines: Sequence[Engine]) -> Counter[str]:
    total: Counter[str] = Counter()
    for engine in engines:
        total.update(engine.counts)
    return total


def wait_for_predictions(client: PredictorClient) -> None:
    """Wait until the sidecar reads prompts, for which it loads a tokenizer. Raises BenchmarkError after READY_S."""
    until = time.monotonic() + READY_S
    prompt = [USER, *range(FIRST_LETTER, FIRST_LETTER + 20), END, ASSISTANT]
    while True:
        client.ask("first", token_ids=prompt)
        while client.waiting and time.monotonic() < until:
            time.sleep(0.01)
        if client.take("first") is not None:
            return
        if time.monotonic() > until:
            raise BenchmarkError(f"the sidecar does not read the engines' prompts ({client.counters.causes}): see its log")
        time.sleep(0.2)


def run(job: Job) -> None:
    """Run a process's engines. Raises BenchmarkError if the sidecar does not answer."""
    rng = random.Random(0)
    words = ["".join(rng.choices("aeioulnrstdcmphg", k=rng.randrange(2, 9))) for _ in range(2000)]
    text = array(
        "I",
        [
            SPACE if letter == " " else FIRST_LETTER + ord(letter) - ord("a")
            for letter in " ".join(rng.choices(words, k=40_000))
        ],
    )
    empty_mib = rss_mib()
    engines = [Engine(job, job.first + number, text) for number in range(job.engines)]
    for engine in engines:
        wait_for_predictions(engine.predictor.client)
    idle_mib = rss_mib()
    print("ready", flush=True)
    sys.stdin.readline()
    figures = serve(job, engines)
    figures |= {"empty_mib": empty_mib, "idle_mib": idle_mib, "rss_mib": rss_mib()}
    print(json.dumps(figures), flush=True)
    for engine in engines:
        engine.plugin.close()


if __name__ == "__main__":
    run(Job(**json.loads(sys.argv[1])))
