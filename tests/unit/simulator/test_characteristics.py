"""Skew by user, turns, next turns and hits by position, on a log whose figures are known."""

import json
from pathlib import Path

import pytest

from lpc_apps.logs.formats import open_trace
from lpc_apps.logs.traces import Trace, TracedRequest
from lpc_apps.simulator.characteristics import characteristics
from lpc_apps.simulator.workload import from_trace

HOUR = 3600.0


def request(
    arrival: float, conversation: str, turn: int, blocks: tuple[int, ...], user: str = "", reply: int = 16
) -> TracedRequest:
    return TracedRequest(arrival, 16 * len(blocks), reply, blocks, conversation, turn, "chat", user=user)


def of(*requests: TracedRequest, start: float | None = 0.0) -> dict[str, object]:
    trace = Trace("log", 16, list(requests), start=start)
    return characteristics(trace, from_trace(trace))


def test_the_busiest_users_and_the_hits_within_a_user_are_found() -> None:
    # Of ten users one has eleven requests. His hits are his own, except the first, which another user left.
    first = [request(float(n), f"c{n}", 1, (1,) if n == 8 else (100 + n,), f"u{n}") for n in range(9)]
    busy = [request(10.0 + n, f"b{n}", 1, (1,), "busy") for n in range(11)]
    users = of(*first, *busy)["users"]
    assert users == {
        "count": 10,
        "turns_of_top_tenth": 11 / 20,
        "top_tenth_by_mean": pytest.approx(11 / 2),
        "with_90_percent_of_hits": 1 / 10,
        "hits_of_same_user": 10 / 11,
    }


def test_a_log_without_users_has_no_figures_of_users() -> None:
    assert of(request(0.0, "a", 1, (1,)), request(1.0, "b", 1, (1,)), request(2.0, "c", 1, (2,), "u"))["users"] == {}


def test_users_without_hits_have_no_shares_of_hits() -> None:
    users = of(request(0.0, "a", 1, (1,), "u"), request(1.0, "b", 1, (2,), "v"))["users"]
    assert isinstance(users, dict)
    assert (users["count"], users["with_90_percent_of_hits"], users["hits_of_same_user"]) == (2, None, None)


def test_turns_per_conversation() -> None:
    turns = [request(float(n), "long", n + 1, (n,)) for n in range(4)]
    single = [request(10.0 + n, f"s{n}", 1, (50 + n,)) for n in range(3)]
    found = of(*turns, *single)["turns_per_conversation"]
    assert found == {"mean": 7 / 4, "p50": 1.0, "p90": pytest.approx(3.1), "most": 4, "single": 3 / 4}


def test_the_share_of_turns_with_a_next_one_is_by_hour_of_the_day_and_by_turn() -> None:
    at_23 = 23 * HOUR
    found = of(
        *(request(0.0, "a", 1, (1,)), request(60.0, "b", 1, (2,)), request(HOUR, "a", 2, (1, 3))),
        # The end of the log: whether these have a next turn is unknown.
        *(request(8 * HOUR, "c", 1, (4,)), request(8 * HOUR + 1, "d", 1, (5,))),
        start=at_23,
    )["next_turn"]
    assert found == {"by_turn": {"1": 1 / 2, "2": 0.0}, "by_hour": {"23": 1 / 2, "0": 0.0}}


def test_hits_by_position_are_those_of_an_infinite_cache() -> None:
    # The second prompt has the first one's first five blocks of ten, and then others; its tail was used, but not its prefix.
    prompt = tuple(range(10))
    found = of(request(0.0, "a", 1, prompt), request(1.0, "b", 1, (*prompt[:5], 20, *prompt[6:])))["hits_by_position"]
    assert found == [1 / 2] * 5 + [0.0] * 5


def test_a_reply_in_the_next_prompt_is_a_hit() -> None:
    first, second = request(0.0, "a", 1, (1, 2), reply=17), request(1.0, "a", 2, (1, 2, 3, 4))
    assert of(first, second)["hits_by_position"] == [1 / 2, 0.0, 1.0, 0.0, 0.0, 1 / 2, 0.0, 0.0, 0.0, 0.0]


def test_a_prompt_without_a_full_block_and_a_single_request_are_described(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"time": 5, "user": "u", "messages": [{"role": "user", "content": "hi"}]}))
    trace = open_trace(path, "chat")
    found = characteristics(trace, from_trace(trace))
    assert found["hits_by_position"] == [0.0] * 10
    assert found["turns_per_conversation"]["single"] == 1.0
