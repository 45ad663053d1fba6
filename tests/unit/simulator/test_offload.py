"""vLLM's CPU offloading in the simulator: what is stored and when, whose order evicts, and what it is compared with."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eviction_client.ended import Ended, Run
from eviction_client.value_tier import ValueTier
from lpc.model.curve import KNOTS
from lpc_apps.commands.cli import app
from lpc_apps.simulator.engine import simulate
from lpc_apps.simulator.policies import REGISTRY, PolicySettings
from lpc_apps.simulator.tier import Offload, TierPolicy, TierSpec
from lpc_apps.simulator.workload import Workload
from lpc_apps.simulator.workloads import WORKLOADS
from tests import offload_course
from tests.unit.simulator.test_engine import SIZE, turn


class Alone:
    """A tier that requests use one after the other, without a cache before it."""

    def __init__(self, blocks: int) -> None:
        self.tier = Offload(TierSpec(blocks * SIZE), SIZE)

    def ask(self, *contents: int, had: int = 0) -> int:
        request = turn(contents)
        loaded, _ = self.tier.load(request, contents, had, 0.0)
        self.tier.end(request)
        return loaded


def test_what_a_request_loads_or_offers_goes_last_and_its_start_after_its_end() -> None:
    tier = Alone(6)
    tier.ask(1, 2)
    tier.ask(3, 4)
    assert tier.ask(1, 2) == 2
    tier.ask(5, 6, 7)  # takes the room of 4
    assert [tier.ask(3), tier.ask(1, 2)] == [1, 2]


def test_what_the_cache_had_is_offered_again_unless_something_was_loaded() -> None:
    tier = Alone(3)
    tier.ask(1, 2, had=2)
    tier.ask(3)
    tier.ask(1, 2, had=2)
    tier.ask(4)  # so 3 is what goes
    assert [tier.ask(1, 2), tier.ask(3)] == [2, 0]

    tier = Alone(3)
    tier.ask(1, 2)
    tier.ask(3)
    assert tier.ask(1, 2, had=1) == 1  # 2 is loaded, and used; 1 is not
    tier.ask(4)
    assert tier.ask(1) == 0


@pytest.mark.parametrize("enabled", [None, False, True])
def test_on_a_course_of_requests_it_is_what_vllms_manager_is(enabled: bool | None) -> None:
    """Stores, loads, refusals and ends, under vLLM's own LRU (None) and under either rule of the guard."""
    chunks, seen, now = offload_course.CHUNKS, offload_course.Seen(), 0.0
    tier = None
    if enabled is not None:
        tables = [[value / (1.0 + age) for age in KNOTS] for value in (1e-3, 1.0)]
        tier = ValueTier(
            *("sim", chunks),
            blocks=chunks,
            classes=2,
            prompts_only=True,
            guarded=False,
            named=lambda content: content,
            tables=lambda: tables,
            clock=lambda: now,
        )
        tier.wanted = enabled
        tier.step()
    offload = Offload(TierSpec(chunks), 1, tier)
    for number, now, chain, had in offload_course.steps():
        request = turn(chain)
        loaded, _ = offload.load(request, chain, had, now)
        if tier is not None:
            runs = (Run(len(chain), number % 2),)
            tier.ended(Ended(request, None, chain, len(chain), now, 0, runs))  # type: ignore[arg-type]
        offload.end(request)
        seen.add(loaded, offload.recent)
    assert seen.loaded > 300
    assert (seen.digest == offload_course.DIGEST) is (enabled is not True)


def drawn(requests: int = 1_500) -> Workload:
    return WORKLOADS["batch-scan"](0, requests=requests)


def counted(policy: str, tier_policy: TierPolicy, *, guard: bool = True) -> tuple[int, int]:
    found = drawn()
    settings = PolicySettings(guard=guard)
    capacity = found.working_set_tokens() // 50
    result = simulate(
        found,
        capacity,
        lambda blocks: REGISTRY[policy](blocks, found, settings),
        tier=TierSpec(2 * capacity, policy=tier_policy),
    )
    return result.hit_tokens, result.tier_tokens


def test_the_policy_that_ships_decides_behind_the_plug_in_and_nowhere_else() -> None:
    assert counted("lru", "value") == counted("lru", "lru")
    assert counted("value", "value", guard=False) != counted("value", "lru", guard=False)


def test_table_page_and_picture_show_what_the_tier_serves(tmp_path: Path) -> None:
    lines = []
    for n in range(100):
        chat, number = n % 20, n // 20
        blocks = [100 * chat + place for place in range(4 + number)]
        lines.append({"timestamp": 10_000 * n, "input_length": 512 * len(blocks), "output_length": 100, "hash_ids": blocks})
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out, page, picture = (tmp_path / name for name in ("out.json", "page.html", "picture.png"))
    options = [
        "--trace",
        str(log),
        "--policies",
        "lru,value",
        "--capacity",
        "10%",
        "--tier",
        "60%",
        "--tier-policy",
        "lru,value",
    ]
    done = CliRunner().invoke(app, ["simulate", *options, "--html", str(page), "--picture", str(picture), "--output", str(out)])

    assert done.exit_code == 0, done.output
    assert "A tier behind the cache" in done.output
    summary = json.loads(out.read_text())["summary"]
    assert [(row["policy"], row["tier_policy"]) for row in summary] == [
        (policy, order) for policy in ("lru", "value") for order in ("lru", "value")
    ]
    assert summary[0]["served_gain"] == 0.0
    assert "the tier behind the cache" in page.read_text()
    assert f"<td>{summary[0]['ttft_returning_mean_s']:.3f}</td>" in page.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
