"""A silent night: chats for an evening, eight hours without a request, then the next day with other habits.

What an operator's clock does to everything that decays with time: statistics forget, shadow caches see nothing, and every key
is eight hours old. One in three conversations of the last half hour is taken up in the morning, within twenty minutes, and
these are the ones whose users had been away longest.

- Evening, 50 minutes: chats as ShareGPT's, one every 4 s, think times lognormal, median 45 s, sigma 1.2.
- Morning: one every 3 s, but half of the users ask once (goes on with 0.3), and who is back is back after 150 s (median, sigma
  0.7).
- Blocks of 16 tokens. Every conversation has a name, the same in the morning. Assumed, but for ShareGPT's lengths.
"""

from typing import Final

from lpc.simulator.workload import Workload
from lpc.simulator.workloads.chat import MOST_TOKENS, SYSTEM_PROMPT, converse
from lpc.simulator.workloads.lengths import draw_lengths, lognormal, poisson_times
from lpc.simulator.workloads.timeline import Timeline

BLOCK_TOKENS: Final = 16
REQUESTS: Final = 7_000
EVENING_S: Final = 3_000.0
NIGHT_S: Final = 8 * 3600.0
LAST_S: Final = 1_800.0
TAKEN_UP: Final = 1 / 3
EVERY_S: Final = 4.0
SELDOM: Final = (0.3,)


def night(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """An evening of chats, eight silent hours, a morning in which some are taken up and others behave otherwise."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    random = timeline.random
    system = timeline.text()
    evening = EVENING_S * requests / REQUESTS
    morning = evening + NIGHT_S
    for at in poisson_times(random, 0.0, evening, EVERY_S):
        prompts, replies = draw_lengths(random)
        gaps = lognormal(random, 45.0, 1.2, len(prompts))
        clock, taken_up = at, bool(random.random() < TAKEN_UP)
        for turn, gap in enumerate(gaps.tolist()):
            clock += gap
            if clock < evening:
                continue
            # The next turn would fall into the night: it waits for the morning, or is never asked.
            if taken_up and clock - gap > evening - LAST_S:
                gaps[turn] += morning - clock + 1_200.0 * random.random()
            else:
                prompts, replies, gaps = prompts[: turn + 1], replies[: turn + 1], gaps[: turn + 1]
            break
        timeline.converse(at, prompts, replies, gaps.tolist(), after=system, tokens=SYSTEM_PROMPT, most_tokens=MOST_TOKENS)
    for every, goes_on in ((6.0, None), (6.0, SELDOM)):
        converse(
            timeline, morning, morning + 3 * evening, every, lambda n: lognormal(random, 150.0, 0.7, n), system, goes_on=goes_on
        )
    return timeline.workload("night", requests)
