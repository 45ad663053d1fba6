"""Whatever prompts share, every log replays under every policy: content ids are numbers from 0, chained by prefix."""

import json
import tarfile
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lpc_apps.logs.formats import open_trace
from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.run import SimulationRun, WorkloadSpec, build, run_one
from lpc_apps.simulator.segments import Paths
from lpc_apps.simulator.sessions import PAUSE_S, ROUND, closed_loop
from lpc_apps.simulator.sidecar import block_hash
from lpc_apps.simulator.sources import Sources
from lpc_apps.simulator.waiting import Queueing
from lpc_apps.simulator.workload import Turn, from_trace

TEXTS = [f"{word} " * 16 for word in ("red", "green", "blue")]
"""Each has at least a block of tokens."""
IDS = [-(2**63), -4, -1, 0, 1, 7, 2**63, 2**70]
"""Ids of publishers are any whole numbers: counters, signed and unsigned hashes."""
Prompts = list[list[int]]
PROMPTS = st.lists(st.lists(st.integers(0, len(IDS) - 1), min_size=1, max_size=5), min_size=2, max_size=8)


def _lines(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _messages(prompt: list[int]) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": "system", "content": TEXTS[prompt[0] % len(TEXTS)]}] + [
        {"role": roles[at % 2], "content": TEXTS[part % len(TEXTS)]} for at, part in enumerate(prompt)
    ]


def _conversations(folder: Path, prompts: Prompts) -> Path:
    return _lines(folder / "log.jsonl", [{"messages": _messages(prompt)} for prompt in prompts])


def _chat(folder: Path, prompts: Prompts) -> Path:
    return _lines(
        folder / "log.jsonl",
        [{"time": 10.0 * at, "messages": _messages(one), "response": TEXTS[0]} for at, one in enumerate(prompts)],
    )


def _mooncake(folder: Path, prompts: Prompts) -> Path:
    return _lines(
        folder / "log.jsonl",
        [
            {
                "timestamp": 100 * at,
                "input_length": 16 * len(one),
                "output_length": 8,
                "block_size": 16,
                "hash_ids": [IDS[part] for part in one],
            }
            for at, one in enumerate(prompts)
        ],
    )


def _qwen(folder: Path, prompts: Prompts) -> Path:
    return _lines(
        folder / "log.jsonl",
        [
            {
                "chat_id": at,
                "parent_chat_id": at - 1,
                "timestamp": at,
                "type": "text",
                "turn": 1,
                "output_length": 8,
                "input_length": 16 * len(one),
                "hash_ids": [IDS[part] for part in one],
                "block_size": 16,
            }
            for at, one in enumerate(prompts)
        ],
    )


def _agents(folder: Path, prompts: Prompts) -> Path:
    path = folder / "log.tar"
    with tarfile.open(path, "w") as archive:
        for at, prompt in enumerate(prompts):
            calls = [
                {"t": turn, "in": 16 * turn, "out": 8, "hash_ids": [IDS[part] for part in prompt[:turn]], "stop": ""}
                for turn in range(1, len(prompt) + 1)
            ]
            session = {"id": IDS[at] if at % 2 else "", "block_size": 16, "requests": calls}
            content = json.dumps(session).encode()
            member = tarfile.TarInfo(f"{at}.json")
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    return path


LOGS = {"conversations": _conversations, "chat": _chat, "mooncake": _mooncake, "qwen": _qwen, "agents": _agents}


def _chained(spec: WorkloadSpec) -> None:
    workload, _ = build(spec)
    before: dict[int, int | None] = {}
    for turn in workload.turns():
        contents = list(turn.all_contents)
        assert all(content >= 0 for content in contents)
        for earlier, content in pairwise([None, *contents]):
            assert content is not None
            assert before.setdefault(content, earlier) == earlier, "a content id follows two different blocks"


@pytest.mark.parametrize("format", LOGS)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompts=PROMPTS, keep=st.booleans())
def test_every_log_replays_under_every_policy(tmp_path: Path, format: str, prompts: Prompts, keep: bool) -> None:  # noqa: A002
    spec = WorkloadSpec(LOGS[format](tmp_path, prompts), format, active=1, think_time=300.0)
    _chained(spec)
    for policy in REGISTRY:
        row = run_one(SimulationRun(spec, policy, 256, Queueing(keep=keep, in_turn=keep)))
        assert 0.0 <= row["whole_hit_rate"] < 1.0


def test_conversations_that_share_their_system_prompt_with_the_first_one_replay(tmp_path: Path) -> None:
    path = _conversations(tmp_path, [[0, 1], [0, 2], [0, 1, 2]])
    row = run_one(SimulationRun(WorkloadSpec(path, "conversations", active=4), "plugin", 4_096))
    assert row["sources"]["shared"] > 0


def test_blocks_of_sessions_that_were_repeated_many_times_have_a_hash() -> None:
    often = 7 + (1 << 20) * ROUND
    assert block_hash(often) != block_hash(7)


def test_a_session_with_an_empty_name_has_a_history_of_its_own() -> None:
    sources = Sources(16)
    turn = Turn("", 1, "", 32, 0, (0, 1), (0, 1))
    paths = Paths([turn], 16)
    for hits in (0, 2):
        sources.start(turn, paths.of(turn), hits, 2, 0.0, counted=True)
    assert (sources.tokens["own"], sources.tokens["shared"]) == (32, 0)


def test_a_closed_loop_that_counts_from_its_first_second_has_its_whole_duration(tmp_path: Path) -> None:
    log = from_trace(open_trace(_chat(tmp_path, [[0, 1], [1, 2, 0]]), "chat"))
    result = simulate(closed_loop(log, 1, 3, warm_up=0), 4_096, lambda blocks: REGISTRY["lru"](blocks, log, PolicySettings()))
    # The first answer ends after its prefill, and a session begins PAUSE_S after the end of another.
    assert result.seconds > 2 * PAUSE_S
