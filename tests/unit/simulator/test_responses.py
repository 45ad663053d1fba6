"""A response cache before the engines: who is answered, and what the prefix cache makes of the rest."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lpc.model.conversation import Message
from lpc_apps.commands.cli import app
from lpc_apps.simulator.engine import Result
from lpc_apps.simulator.responses import ResponseCache, of_messages
from lpc_apps.simulator.workload import Turn
from tests.unit.simulator.test_engine import closed_workload, open_workload, replay, turn


def asked(name: str, arrival: float, contents: list[int], **rest: object) -> Turn:
    found = turn(contents, arrival, output=10, **rest)
    found.named = name.encode()
    return found


def answers() -> ResponseCache:
    return ResponseCache(100.0)


def run(*turns: Turn, responses: ResponseCache | None = None, blocks: int = 20, reuse: bool = True) -> Result:
    return replay(open_workload(*turns), blocks, responses=responses, reuse=reuse)


def test_what_was_asked_before_is_not_computed_again_until_its_time_is_up() -> None:
    turns = [asked("q", at, [1, 2]) for at in (0.0, 50.0, 99.0, 150.0)]
    result = run(*turns, responses=answers(), reuse=False)

    # The first ends after 1.033 s and is there until 101.033; the hits at 50 and 99 do not prolong that.
    assert (result.turns, result.requests) == (4, 2)
    assert result.engine_tokens == 2 * (33 + 10)


def test_chats_are_equal_when_all_of_their_messages_are() -> None:
    chats = (
        [Message("user", "Hello there!")],
        [Message("user", "hello  there")],
        [Message("system", "be brief"), Message("user", "Hello there!")],
    )
    assert len({of_messages(chat) for chat in chats}) == 3
    assert of_messages(chats[0]) == of_messages([Message("user", "Hello there!")])


def test_an_answer_touches_no_block_and_the_next_turn_computes_this_ones_reply() -> None:
    def chain() -> list[Turn]:
        first = Turn("a", 1, "", 33, 15, [1, 2], [1, 2, 3])
        second = Turn("a", 2, "", 65, 15, [1, 2, 3, 4], [1, 2, 3, 4], gap=10.0)
        first.named, second.named = b"q", b"a2"
        return [first, second]

    def before() -> Turn:
        return asked("q", 0.0, [7, 8], conversation="b")

    both = replay(closed_workload([before()], chain()), 20, responses=answers())
    prefix = replay(closed_workload([before()], chain()), 20)
    # With the answer at hand nothing of the conversation is cached when its second turn comes, with the reply's block among it.
    assert prefix.engine_tokens == (33 + 10) + (33 + 15) + (65 - 48 + 15)
    assert both.engine_tokens == (33 + 10) + (65 + 15)
    assert both.turns == prefix.turns == 3


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gateway's log: 120 users ask two of ten questions after one system prompt, some with wide spaces, and go on."""
    path = tmp_path_factory.mktemp("chats") / "log.jsonl"
    lines = []
    for user in range(120):
        messages = [{"role": "system", "content": "You answer questions about a product. " * 20}]
        for number in range(2):
            question = f"How do I do step {(user * 7 + number) % 10} of the manual, in a few words?" + " Thank you." * 20
            messages.append({"role": "user", "content": question.replace(" ", " " * user, 1) if user % 3 == 0 else question})
            reply = f"Like this, {question[:30]}. " * 10
            line = {"time": 1e9 + 30.0 * user + 400.0 * number, "messages": list(messages), "response": reply}
            lines.append({**line, "session_id": f"s{user}"})
            messages.append({"role": "assistant", "content": reply})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def tokens_of(chats: Path, tmp_path: Path, *options: str) -> list[dict[str, float]]:
    out = tmp_path / "out.json"
    base = ["simulate", "--trace", str(chats), "--format", "chat", "--policies", "lru,value", "--capacity", "5%,30%"]
    done = CliRunner().invoke(app, [*base, *options, "--output", str(out)])
    assert done.exit_code == 0, done.output
    assert "Engine tokens per user turn" in done.output
    return [row["engine_tokens_per_turn"] | {"answered": row["answered"]} for row in json.loads(out.read_text())["rows"]]


def test_with_both_caches_engines_compute_less_than_with_the_better_of_the_two(chats: Path, tmp_path: Path) -> None:
    exact, brief = (tokens_of(chats, tmp_path, "--responses", "exact", "--ttl", ttl) for ttl in ("3600", "60"))
    for row in exact + brief:
        assert row["both"] <= min(row["prefix"], row["response"]) <= max(row["prefix"], row["response"]) <= row["none"]
    assert exact[0]["answered"] > brief[0]["answered"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--responses", "exact"), "equal requests are found in a log"),
        (("--workload", "documents", "--responses", "exact"), "no text of which two could be equal"),
        (("--responses", "exact", "--ttl", "0"), "--ttl is seconds above 0"),
        (("--responses", "exact", "--tier", "5%"), "give --responses or --tier"),
        (("--tier-policy", "value"), "give one with --tier"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_what_to_do(options: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(app, ["simulate", "--policies", "lru", *options])

    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
