"""Sessions of coding agents: their sub-agents, and ids that sessions share."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lpc_apps.logs.formats import open_trace
from lpc_apps.logs.records import TraceError
from lpc_apps.logs.traces import Trace

Json = dict[str, Any]


def call(at: float, *ids: int, **rest: object) -> Json:
    return {"t": at, "in": 64 * len(ids), "out": 8, "hash_ids": list(ids), "stop": "end", **rest}


def session(name: object, *requests: Json, **rest: object) -> Json:
    return {"id": name, "block_size": 64, "requests": list(requests), **rest}


def read(tmp_path: Path, *sessions: Json) -> Trace:
    path = tmp_path / "log.tar"
    with tarfile.open(path, "w") as archive:
        for at, one in enumerate(sessions):
            text = json.dumps(one).encode()
            member = tarfile.TarInfo(f"{at}.json")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return open_trace(path, "agents", active=1)


def test_requests_of_sub_agents_start_at_their_agents_time_and_share_the_sessions_blocks(tmp_path: Path) -> None:
    inner = {"t": 3, "type": "subagent", "requests": [call(1, 1, 4)]}
    helper = {"t": 10, "type": "subagent", "requests": [call(0, 1, 3), call(2, 1, 3, 5), inner]}
    trace = read(tmp_path, session("a", call(0, 1, 2), helper, call(20, 1, 2, 6), call(30), call(31, 1, **{"in": 0})))
    found = [(request.arrival, request.conversation, request.turn, request.blocks) for request in trace.requests]
    assert found == [
        (0.0, "a", 1, (0, 1)),
        (10.0, "a/1", 1, (0, 3)),
        (12.0, "a/1", 2, (0, 3, 4)),
        (14.0, "a/2", 1, (0, 5)),
        (20.0, "a", 2, (0, 1, 2)),
    ]
    assert trace.skipped.counts == {"request without blocks: a retry": 2}


def test_ids_are_the_sessions_own_unless_their_scope_is_global(tmp_path: Path) -> None:
    def distinct(**rest: object) -> int:
        trace = read(tmp_path, *(session(at, call(at, *range(10), 100 + at), **rest) for at in range(30)))
        return len({block for request in trace.requests for block in request.blocks})

    assert distinct() == distinct(hash_id_scope="local") == 330
    assert distinct(hash_id_scope="global") == 40


def test_a_session_that_is_there_twice_counts_once_and_another_with_its_id_is_another(tmp_path: Path) -> None:
    one, other = session(1, call(0, 1, 2)), session("1", call(0, 7, 8), call(5, 7, 8, 9))
    trace = read(tmp_path, one, one, other)
    assert sorted(request.conversation for request in trace.requests) == ["1", "1 (2)", "1 (2)"]
    assert trace.skipped.counts == {"session that is there twice": 1}


def test_a_damaged_sub_agent_or_an_unknown_scope_is_counted(tmp_path: Path) -> None:
    sound = session("a", call(0, 1))
    wrong = [session(at, {"t": 1, "requests": 7}) for at in range(2)]
    trace = read(tmp_path, sound, *wrong, session("c", call(0, 1), hash_id_scope="tenant"))
    assert len(trace.requests) == 1
    assert trace.skipped.counts == {
        "requests is not a list of objects": 2,
        "hash_id_scope is neither local nor global": 1,
    }


def test_the_block_size_of_most_sessions_counts_and_two_sizes_are_refused(tmp_path: Path) -> None:
    odd = [session(f"odd {at}", call(0, 1, 2), block_size=32) for at in range(4)]
    rest = [session(f"s{at}", call(0, 1, 2)) for at in range(6)]
    trace = read(tmp_path, odd[0], *rest)
    assert (trace.block_tokens, len(trace.requests)) == (64, 6)
    assert trace.skipped.counts == {"block_size is not that of most sessions": 1}
    with pytest.raises(TraceError, match="4 of 10 requests"):
        read(tmp_path, *odd, *rest)


def test_many_sessions_that_cannot_be_read_are_not_left_out(tmp_path: Path) -> None:
    rest = [session(f"s{at}", call(0, 1, 2)) for at in range(6)]
    timeless = [session(f"t{at}", call(0, 1, 2) | {"t": None}) for at in range(4)]
    assert len(read(tmp_path, timeless[0], {"manifest": 1}, *rest).requests) == 6
    with pytest.raises(TraceError, match="t is not a number from 0"):
        read(tmp_path, *timeless, *rest)


@pytest.mark.parametrize("field", ["requests", "turns", "subagents"])
def test_calls_inside_of_a_call_count_under_any_name_and_with_its_own(tmp_path: Path, field: str) -> None:
    inside = [call(1, 1, 3)] if field != "subagents" else [{"t": 1, "requests": [call(0, 1, 3)]}]
    trace = read(tmp_path, session("a", call(0, 1), call(5, 1, 2, **{field: inside}), call(9, 1, 2, 4)))
    assert [request.arrival for request in trace.requests] == [0, 5, 6, 9]
    assert len({request.conversation for request in trace.requests}) == 2
    assert trace.skipped.counts == {}


def test_ids_that_are_not_those_of_the_prompt_are_counted(tmp_path: Path) -> None:
    sound = [session(f"s{at}", call(0, at + 1, at + 2)) for at in range(20)]
    few = session("few", {**call(0, 1, 2), "in": 64 * 30})
    many = session("many", {**call(0, *range(30)), "in": 64})
    near = session("near", {**call(0, 1, 2, 3), "in": 64 * 4 + 1})
    trace = read(tmp_path, *sound, few, many, near)
    assert (len(trace.requests), trace.skipped.counts) == (21, {"hash_ids are not those of the prompt's tokens": 2})


@pytest.mark.parametrize("scope", ["global", "tenant", 1, ["local"]])
def test_a_call_or_sub_agent_with_ids_of_another_scope_is_counted(tmp_path: Path, scope: object) -> None:
    own, inside = call(5, 1, 2, hash_id_scope=scope), {"t": 1, "requests": [call(0, 1)], "hash_id_scope": scope}
    same = session("e", call(0, 1), call(5, 1, 2, hash_id_scope="local"), call(9, 1, 2, hash_id_scope=None), hash_id_scope=None)
    trace = read(tmp_path, session("a", call(0, 1)), session("b", call(0, 1), own), session("c", call(0, 1), inside), same)
    assert trace.skipped.counts == {"hash_id_scope of a request or a sub-agent is not its session's": 2}
    assert len(trace.requests) == 4
