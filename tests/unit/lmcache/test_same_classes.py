"""LMCache's controller and an engine's plug-in have one policy: equal chains, times and predictions give equal classes."""

import random

import pytest

from eviction_client import SidecarPrediction
from eviction_client.background import AtOnce
from eviction_client.plugin import Plugin
from eviction_client.settings import ClientSettings
from eviction_client.transport.scripted_predictor import ScriptedPredictor
from lpc_apps.lmcache.service import END_AFTER_S
from tests.unit.lmcache.nodes import CHUNK, Prompt, words
from tests.unit.lmcache.test_service import MEMORY, World

THINK_S = (2.5, 4.0, 20.0, 100.0, 292.5)
"""From the end of a turn to the next look-up, 6.5 s more: close to both sides of a bound of the gap classes."""


class Both:
    """A controller whose node keeps everything, and an engine that serves the same requests."""

    def __init__(self, rule: str) -> None:
        self.world = World(rule=rule, chunks=40_000)
        self.prediction: SidecarPrediction | None = None
        self.plugin = Plugin(
            ClientSettings(rule=rule),
            capacity=2500,
            block_tokens=CHUNK,
            predictor=ScriptedPredictor(lambda _: self.prediction),
            clock=lambda: self.world.now,
            background=AtOnce,
        )
        self.classes: set[int] = set()

    def turn(self, tokens: list[int], known: int, prediction: SidecarPrediction | None) -> None:
        """Serve a turn of which ``known`` chunks were served before, in both; compare the classes of its chunks."""
        world, prompt, self.prediction = self.world, Prompt(*tokens), prediction
        if known:
            world.look_up(prompt, known)
        looked_up_at = world.now
        world.pass_(2.0)
        world.serve(prompt, first=known)
        ended_at = world.now
        world.pass_(2.0)
        world.service.plan()
        conversation = world.conversation(prompt)
        world.service.answered(conversation, conversation.turns, prediction)
        odds = world.service.policy.continuation.by_turn  # both fit at other times; requests without a prediction have these
        world.service.plan()
        world.refit()
        chain, after = conversation.chunks(), world.now + END_AFTER_S

        blocks = [chunk.block for chunk in chain]
        world.now = looked_up_at if known else ended_at  # without a look-up, the store is the first that LMCache reports
        self.plugin.started(str(ended_at), blocks)
        world.now = ended_at
        self.plugin.policy.continuation.by_turn = odds
        finished = self.plugin.finished(str(ended_at), completed=True, blocks=blocks, prompt_blocks=known + 1)
        world.now = after
        ends, classes = [0, *(span.end for span in finished.spans)], [span.reuse_class for span in finished.spans]
        expected = [number for start, end, number in zip(ends, ends[1:], classes, strict=False) for _ in range(start, end)]
        residents = [world.service.caches[MEMORY].find(chunk) for chunk in chain]
        assert [resident and resident.reuse_class for resident in residents] == expected
        assert len(expected) == len(prompt.objects)
        self.classes.update(expected)


@pytest.mark.parametrize(("rule", "classes"), [("auto", 30), ("lpc", 10), ("wa", 5)])
def test_the_same_turns_have_the_same_classes(rule: str, classes: int) -> None:
    both, draw = Both(rule), random.Random(5)
    systems = [words(90_000 + n, 2) for n in range(2)]
    conversations: list[list[int]] = []
    for number in range(100):
        if number < 6 or draw.random() < 0.2:
            tokens = [*systems[number % 2], *words(number, draw.choice((1, 3)))]
            known = 2 if number >= 2 else 0
            conversations.append(tokens)
        else:
            tokens = draw.choice(conversations)
            known = len(tokens) // CHUNK
            tokens += words(number, 300 if number % 40 == 9 else draw.choice((1, 2)))
        prediction = SidecarPrediction(draw.uniform(0.05, 0.95), "v", 1, group=draw.choice((0, 1, 2)))
        both.turn(list(tokens), known, prediction if rule == "lpc" or draw.random() < 0.6 else None)
        both.world.pass_(draw.choice(THINK_S))
    assert len(both.classes) >= classes
    assert both.world.service.policy.reused == both.plugin.policy.reused > 100
    assert both.plugin.failures == 0
