"""A ghost cache of segments hits, evicts and keeps what one of their single blocks does."""

import random
from itertools import accumulate

import pytest

from eviction_client.policy.ghosts import GhostCache, sample_of
from lpc.model.curve import INTERVALS, interval_of, values
from lpc_apps.simulator.ghosts import Samples, SegmentGhostCache
from lpc_apps.simulator.policies.plugin import prompt_of
from lpc_apps.simulator.sidecar import block_hash
from tests.spans import spans_of
from tests.unit.simulator.test_segments import traffic

CLASSES = 3


def peaked(age: float) -> list[float]:
    """Return the table of a curve that returns about an age, seconds."""
    hazards = [0.01] * INTERVALS
    hazards[interval_of(age)] = 0.8
    return values(hazards)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("room", "every"), [(60, 1), (250, 1), (30, 4)])
def test_segments_are_hit_and_evicted_as_their_blocks_are(room: int, every: int, waits: bool) -> None:
    for seed in range(4):
        rng = random.Random(seed)
        workload = traffic(seed, 400)
        now = 0.0
        blocks: GhostCache[bytes] = GhostCache(room, CLASSES, clock=lambda: now)  # noqa: B023 (used within the round)
        segments = SegmentGhostCache(room, CLASSES, clock=lambda: now)  # noqa: B023
        samples = Samples()
        hit = hit_segments = requested = 0
        for number, turn in enumerate(workload.arrivals):
            now = turn.arrival
            if number % 60 == 30:
                tables = None if rng.random() < 0.3 else [peaked(rng.choice((3.0, 20.0, 130.0))) for _ in range(CLASSES)]
                blocks.queue.set_tables(tables)
                segments.queue.set_tables(tables)
            path = workload.paths.of(turn)
            chain = [[block_hash(content) for content in segment.contents] for segment in path]
            prompt = prompt_of(turn, path)
            asked = sample_of([block for piece in chain[: len(prompt)] for block in piece], every)
            asked_segments = samples.of(prompt, every)
            assert segments.count(asked_segments) == len(asked)
            hits = blocks.hits(asked)
            if not waits:
                assert segments.hits(asked_segments) == hits
            hit += hits
            hit_segments += segments.hits(asked_segments)
            requested += len(asked)
            if waits and rng.random() < 0.3:
                blocks.wait(number % 5, asked)
                segments.wait(number % 5, asked_segments)
            if waits and rng.random() < 0.3:
                served = rng.randrange(5)
                blocks.queue.release(served)
                segments.queue.release(served)
            cuts = sorted({rng.randrange(len(path) + 1), len(path)} - {0})
            classes = [rng.randrange(CLASSES) for _ in cuts]
            sampled = [sample_of(piece, every) for piece in chain]
            ends = [0, *accumulate(map(len, sampled))]
            nodes = [0, *accumulate(map(bool, sampled))]
            blocks.use(
                [block for piece in sampled for block in piece],
                spans_of(*zip((ends[cut] for cut in cuts), classes, strict=True)),
            )
            segments.use(samples.of(path, every), spans_of(*zip((nodes[cut] for cut in cuts), classes, strict=True)))
            assert len(segments) == len(blocks)
            assert waits or segments.evicted == blocks.evicted
        assert hit and blocks.evicted
        # What waits keeps a whole segment, and runs that follow a branch move at other moments.
        assert abs(hit_segments - hit) <= 0.01 * requested
        segments.clear()
        assert len(segments) == 0 and segments.hits(asked_segments) == 0
