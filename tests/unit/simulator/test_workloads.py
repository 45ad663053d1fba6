"""Generated workloads: the same for a seed, consistent, and with something to win or lose at every capacity."""

from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path

import numpy as np
import pytest

from lpc.simulator.engine import simulate
from lpc.simulator.policies import REGISTRY, PolicySettings
from lpc.simulator.sessions import chain
from lpc.simulator.workload import Turn, Workload
from lpc.simulator.workloads import WORKLOADS, adversary, few_shot, herd, night
from lpc.simulator.workloads.lengths import FIRST_PROMPT, GOES_ON, REPLY, draw_lengths
from lpc.simulator.workloads.timeline import WARM_UP_REQUESTS, Timeline

NAMES = tuple(WORKLOADS)
OPEN = tuple(name for name in NAMES if name != "cliff")
"""Those whose requests come by the clock."""
REQUESTS = 1_200


@cache
def drawn(name: str, seed: int = 0, requests: int = REQUESTS) -> Workload:
    return WORKLOADS[name](seed, requests=requests)


def turns_of(workload: Workload) -> list[Turn]:
    if workload.loop is None:
        return workload.arrivals
    return [turn for first in workload.arrivals for turn in chain(first)]


def shown(workload: Workload) -> list[tuple[object, ...]]:
    return [
        (t.conversation, t.turn, t.category, t.input_tokens, t.output_tokens, tuple(t.all_contents), t.arrival, t.gap)
        for t in turns_of(workload)
    ]


def hit_rate(workload: Workload, policy: str, share: float) -> float:
    capacity = int(share * workload.working_set_tokens())
    return simulate(workload, capacity, lambda blocks: REGISTRY[policy](blocks, workload, PolicySettings())).hit_rate


def best_hit_rate(workload: Workload) -> float:
    """Return what an infinite cache hits, by counting: all but a prompt's last token can be served."""
    seen: set[int] = set()
    hits = tokens = 0
    for turn in workload.arrivals:
        servable = turn.contents[: (turn.input_tokens - 1) // workload.block_tokens]
        if turn.arrival >= workload.count_from:
            hits += workload.block_tokens * sum(1 for _ in takewhile(seen.__contains__, servable))
            tokens += turn.input_tokens
        seen.update(turn.all_contents)
    return hits / tokens


def followed(workload: Workload, start: float, end: float, category: str) -> float:
    turns = [
        t for t in workload.arrivals if start <= t.arrival < end and t.category == category and t.turn < adversary.MOST_TURNS
    ]
    return float(np.mean([t.next is not None for t in turns]))


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_one_workload(name: str) -> None:
    again = WORKLOADS[name](0, requests=REQUESTS)

    assert shown(again) == shown(drawn(name))
    assert shown(drawn(name, seed=1)) != shown(drawn(name))


@pytest.mark.parametrize("name", OPEN)
def test_requests_come_in_order_from_zero_on_and_are_counted_after_the_first_five_hundred(name: str) -> None:
    workload = drawn(name)
    turns = workload.arrivals

    assert len(turns) == REQUESTS and not workload.closed and workload.name == name
    assert turns[0].arrival == 0
    assert all(a.arrival <= b.arrival for a, b in pairwise(turns))
    assert [t.index for t in turns] == list(range(REQUESTS))
    assert workload.count_from == turns[WARM_UP_REQUESTS].arrival
    assert all(t.next is None or t.next.arrival > t.arrival for t in turns)


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_has_an_id_for_each_full_block_and_an_id_stands_for_all_before_it(name: str) -> None:
    workload = drawn(name)
    size = workload.block_tokens
    before: dict[int, int | None] = {}

    for turn in turns_of(workload):
        assert turn.input_tokens > 0 and turn.output_tokens > 0
        assert len(turn.contents) == turn.input_tokens // size
        assert len(turn.all_contents) == (turn.input_tokens + turn.output_tokens) // size
        assert tuple(turn.all_contents[: len(turn.contents)]) == tuple(turn.contents)
        for last, content in zip((None, *turn.all_contents), turn.all_contents, strict=False):
            assert before.setdefault(content, last) == last


@pytest.mark.parametrize("name", NAMES)
def test_the_trace_tells_policies_what_the_requests_are(name: str) -> None:
    workload = drawn(name)

    assert workload.trace is not None
    turns = sorted(turns_of(workload), key=lambda turn: turn.index)
    for turn, request in zip(turns, workload.trace.requests, strict=True):
        assert (turn.arrival, turn.conversation, turn.turn, turn.category) == (
            request.arrival,
            request.conversation,
            request.turn,
            request.category,
        )
        assert (turn.input_tokens, turn.output_tokens, tuple(turn.contents)) == (
            request.input_tokens,
            request.output_tokens,
            request.blocks,
        )


@pytest.mark.parametrize("name", NAMES)
def test_turns_of_a_conversation_are_numbered_and_what_cannot_be_linked_occurs_once(name: str) -> None:
    workload = drawn(name)
    assert workload.trace is not None
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for turn in turns_of(workload):
        numbers[turn.conversation].append(turn.turn)
    linked = {request.linkable for request in workload.trace.requests}

    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())
    assert all(len(numbers[r.conversation]) == 1 for r in workload.trace.requests if not r.linkable)
    assert linked == {"all": {True}, "some": {True, False}, "none": {False}}[WORKLOADS[name].linked]


@pytest.mark.parametrize("name", NAMES)
def test_at_its_own_size_one_percent_of_the_working_set_holds_any_request(name: str) -> None:
    workload = WORKLOADS[name](0)

    turns = turns_of(workload)
    assert 5_000 <= len(turns) <= 12_000
    assert max(t.input_tokens + t.output_tokens for t in turns) < 0.01 * workload.working_set_tokens()


@pytest.mark.parametrize("name", OPEN)
def test_a_cache_under_pressure_hits_less_than_an_infinite_one(name: str) -> None:
    workload = drawn(name)
    infinite = best_hit_rate(workload)
    rates = [hit_rate(workload, "lru", share) for share in (0.02, 0.05, 0.2)]

    assert 0 < rates[0] < rates[1] < rates[2] < infinite < 1


@pytest.mark.parametrize("name", OPEN)
def test_there_is_something_to_win_over_lru(name: str) -> None:
    assert hit_rate(drawn(name), "belady", 0.05) > hit_rate(drawn(name), "lru", 0.05) + 0.02


def test_lengths_are_those_of_sharegpt() -> None:
    random = np.random.default_rng(0)
    conversations = [draw_lengths(random) for _ in range(4_000)]
    lasts = np.array([len(prompts) for prompts, _ in conversations])

    assert np.mean(lasts > 1) == pytest.approx(GOES_ON[0], abs=0.03)
    assert np.mean(lasts[lasts > 1] > 2) == pytest.approx(GOES_ON[1], abs=0.03)
    assert lasts.mean() == pytest.approx(6.5, rel=0.15)
    assert np.median([prompts[0] for prompts, _ in conversations]) == pytest.approx(FIRST_PROMPT[10], rel=0.1)
    assert np.median([replies[0] for _, replies in conversations]) == pytest.approx(REPLY[10], rel=0.1)


def test_think_times_follow_their_laws() -> None:
    gaps = {}
    for name in ("chat-exponential", "chat-lognormal", "chat-bimodal"):
        # Of conversations that began early, so that the end of the workload cuts off few gaps.
        turns = [t for t in drawn(name, requests=4_000).arrivals if t.next is not None]
        turns = [t for t in turns if t.arrival < turns[-1].arrival / 4]
        gaps[name] = np.array([t.next.arrival - t.arrival - 0.01 * t.output_tokens for t in turns])

    assert gaps["chat-exponential"].mean() == pytest.approx(100, rel=0.1)
    assert np.median(gaps["chat-exponential"]) == pytest.approx(100 * np.log(2), rel=0.15)
    assert np.median(gaps["chat-lognormal"]) == pytest.approx(100 / np.exp(1.3**2 / 2), rel=0.15)
    assert 0.1 < np.mean(gaps["chat-bimodal"] > 1_000) < 0.3
    assert np.mean((gaps["chat-bimodal"] > 200) & (gaps["chat-bimodal"] < 1_000)) < 0.02


def test_documents_are_read_by_several() -> None:
    workload = drawn("documents")
    readers: defaultdict[int, set[str]] = defaultdict(set)
    for turn in workload.arrivals:
        readers[turn.contents[documents_first(workload)]].add(turn.conversation.split("?")[0])

    assert np.mean([len(users) > 1 for users in readers.values()]) > 0.3


def documents_first(workload: Workload) -> int:
    """Return the place of the first block that tells a document from the others."""
    return 512 // workload.block_tokens


def test_jobs_read_their_documents_exactly_once() -> None:
    workload = drawn("batch-scan")
    uses = Counter(content for turn in workload.arrivals for content in turn.contents)
    scans = [turn for turn in workload.arrivals if "?" in turn.conversation]

    assert scans
    assert all(uses[turn.contents[-1]] == 1 for turn in scans)


def test_no_few_shot_request_is_continued_and_yet_most_of_it_can_hit() -> None:
    workload = drawn("few-shot")

    assert all(turn.next is None for turn in workload.arrivals)
    assert len({turn.contents[0] for turn in workload.arrivals}) <= few_shot.APPLICATIONS * 1.2
    assert best_hit_rate(workload) > 0.75


def test_agents_come_back_in_seconds_after_a_tool_and_in_minutes_after_a_turn() -> None:
    gaps: defaultdict[str, list[float]] = defaultdict(list)
    for turn in drawn("agents").arrivals:
        if turn.next is not None:
            gaps[turn.reply_end].append(turn.next.arrival - turn.arrival)
            assert turn.next.category == turn.reply_end

    assert np.quantile(gaps["tool"], 0.9) < 30
    assert np.median(gaps["turn"]) > 120


def test_the_adversary_turns_around_what_foretold_returns() -> None:
    workload = drawn("adversary", requests=3_000)
    phase = adversary.PHASE_S

    for category, first, then in (("a", 0.95, 0.02), ("b", 0.02, 0.95)):
        # The phase at a turn's end decides; the ends of the phases are left out.
        assert followed(workload, 0, phase - 30, category) == pytest.approx(first, abs=0.05)
        assert followed(workload, phase, 2 * phase - 30, category) == pytest.approx(then, abs=0.1)
        assert followed(workload, 2 * phase, 3 * phase - 30, category) == pytest.approx(first, abs=0.1)


def test_lru_hits_nothing_of_a_loop_larger_than_the_cache() -> None:
    workload = drawn("loop", requests=6_000)
    uses = Counter(content for turn in workload.arrivals for content in turn.contents)
    last = {turn.contents[-1] for turn in workload.arrivals if "?" in turn.conversation}

    assert np.median([uses[content] for content in last]) >= 2
    # Even without a forecast, Belady's rule keeps a part of each round: far more than LRU's.
    assert hit_rate(workload, "belady", 0.1) > 1.3 * hit_rate(workload, "lru", 0.1)


def test_at_the_cliff_lru_falls_from_all_hits_to_hardly_any() -> None:
    workload = WORKLOADS["cliff"](0)
    rates = [hit_rate(workload, "lru", share) for share in (0.05, 0.2)]

    assert rates[0] < 0.35 and rates[1] > 0.9
    assert hit_rate(workload, "belady", 0.05) > rates[0] + 0.2


def test_the_agents_at_the_cliff_have_a_live_context_of_a_tenth_of_the_working_set() -> None:
    workload = WORKLOADS["cliff"](0)
    assert workload.loop is not None
    turns = turns_of(workload)
    live = workload.loop.sessions * float(np.mean([turn.input_tokens for turn in turns]))

    assert 0.08 < live / workload.working_set_tokens() < 0.13


def test_a_herd_returns_at_the_bell() -> None:
    turns = drawn("herd").arrivals
    returns = np.array([t.next.arrival - t.arrival for t in turns if t.next is not None and t.arrival > 0])
    first, *_ = herd.BELL_S

    assert np.mean(np.abs(returns - first) < herd.WITHIN_S) > 0.2


def test_the_night_is_silent_and_some_conversations_outlast_it() -> None:
    workload = drawn("night")
    gaps = np.diff([turn.arrival for turn in workload.arrivals])
    asleep: list[Turn] = [
        t for t in workload.arrivals if t.next is not None and t.next.arrival - t.arrival > night.NIGHT_S - night.LAST_S
    ]

    assert gaps.max() > 0.9 * night.NIGHT_S
    assert np.sort(gaps)[-2] < 600
    assert len(asleep) >= 10


def test_too_few_requests_are_refused_by_name() -> None:
    timeline = Timeline(0, 16)
    timeline.ask(0.0, timeline.user(), 1, timeline.text(), 100, 10)

    with pytest.raises(ValueError, match="sparse: 1 requests were drawn where 2 are needed"):
        timeline.workload("sparse", 2)


def test_the_page_names_and_describes_every_workload() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/policies.md").read_text()

    for name, generator in WORKLOADS.items():
        assert f"| `{name}` | {generator.description} | {generator.linked} |" in page
