"""A day's changing traffic in two and a half hours: statistics of an hour ago are wrong.

Six phases of 25 minutes, each with its own users; users of earlier phases finish their conversations. Blocks of 64 tokens,
lengths as in the modules named. The phases are assumptions.

1. Night: a batch job that reads each document once (`batch_scan`), and API calls (`few_shot`).
2. Morning: fast chats (think times lognormal, median 25 s, sigma 1) that continue as often as ShareGPT's.
3. Noon: a translation page (prompts as long as a chat's first, 85% of the users never return), and a few documents.
4. Afternoon: slow chats (median 240 s, sigma 0.8).
5. Late afternoon: documents with several readers (`documents`).
6. Evening: coding agents (`agents`), and fast chats.

Conversations have names, except for jobs, API calls, and a third of the documents' readers.
"""

from typing import Final

from lpc_apps.simulator.workload import Workload
from lpc_apps.simulator.workloads.agents import versions, work
from lpc_apps.simulator.workloads.batch_scan import scan
from lpc_apps.simulator.workloads.chat import converse, lognormal
from lpc_apps.simulator.workloads.documents import read_documents
from lpc_apps.simulator.workloads.few_shot import call
from lpc_apps.simulator.workloads.timeline import Timeline

BLOCK_TOKENS: Final = 64
REQUESTS: Final = 11_000
PHASE_S: Final = 1_500.0
TRANSLATION_GOES_ON: Final = (0.15,)
"""Share of a translation page's users who send another request."""


def day(seed: int = 0, *, requests: int = REQUESTS) -> Workload:
    """Generate night jobs, fast chats, one-shot questions, slow chats, documents, and agents, for 25 minutes each."""
    timeline = Timeline(seed, BLOCK_TOKENS)
    random = timeline.random
    phase = PHASE_S * requests / REQUESTS
    night, morning, noon, afternoon, late, evening = (phase * number for number in range(6))
    system = timeline.text()

    scan(timeline, night, morning, every=1.5)
    call(timeline, night, morning, per_second=0.5, applications=30)
    converse(timeline, morning, noon, 4.0, lambda n: lognormal(random, 25.0, 1.0, n), system)
    converse(timeline, noon, afternoon, 1.0, lambda n: lognormal(random, 25.0, 1.0, n), system, goes_on=TRANSLATION_GOES_ON)
    read_documents(timeline, noon, afternoon, system, questions=0.2 * phase, number=60)
    converse(timeline, afternoon, late, 3.5, lambda n: lognormal(random, 240.0, 0.8, n), system)
    read_documents(timeline, late, evening, system, questions=1.2 * phase, number=150)
    work(timeline, evening, evening + phase, 30.0, versions(timeline))
    converse(timeline, evening, evening + 4 * phase, 4.0, lambda n: lognormal(random, 25.0, 1.0, n), system)
    return timeline.workload("day", requests)
