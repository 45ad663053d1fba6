"""What a plug-in shows of its rules: the one in force, and what each would have hit."""

from pathlib import Path

import pytest

from eviction_client.observability.metrics import METRICS
from eviction_client.plugin_metrics import values_of_plugin
from eviction_client.policy.rules import RULES
from tests.unit.test_plugin import Bench


def in_force(bench: Bench, metric: str = "lpc_rule", tier: str = "") -> list[str]:
    values = values_of_plugin(bench.plugin)
    return [rule for rule in RULES if values[metric, f"{tier},{rule}" if tier else rule]]


@pytest.mark.parametrize("rule", RULES)
def test_a_forced_rule_is_in_force_except_in_a_dry_run_and_under_the_operators_file(rule: str, tmp_path: Path) -> None:
    switch = tmp_path / "lru"
    bench = Bench(rule=rule, lru_file=switch)
    bench.plugin.add_tier("cpu", 40, blocks=40, prompts_only=False)
    assert in_force(bench) == in_force(bench, "lpc_tier_rule", "cpu") == [rule]
    assert in_force(Bench(rule=rule, shadow=True)) == ["lru"]
    switch.touch()
    forced = Bench(rule=rule, lru_file=switch)
    forced.plugin.add_tier("cpu", 40, blocks=40, prompts_only=False)
    assert in_force(forced) == in_force(forced, "lpc_tier_rule", "cpu") == ["lru"]


@pytest.mark.parametrize("rule", RULES)
def test_hits_of_the_chosen_rule_are_shown_in_a_dry_run_too(rule: str) -> None:
    bench = Bench(rule=rule, shadow=True)
    bench.loop(suites=450, rounds=3)  # more than the cache holds
    values = values_of_plugin(bench.plugin)
    hits = {cache: count for (name, cache), count in values.items() if name == "lpc_ghost_blocks"}
    assert hits.keys() == {"asked", "chosen", *RULES}
    assert hits["chosen"] == hits[rule] and len({hits[name] for name in RULES}) > 1, hits
    assert max(hits.values()) == hits["asked"]


def test_each_value_has_a_metric_and_a_value_for_each_of_its_labels() -> None:
    bench = Bench(rule="auto")
    bench.plugin.add_tier("cpu", 40, blocks=40, prompts_only=False)
    bench.loop(suites=20, rounds=3)
    bench.serve("of a tenant", [], tenant="d8bb14d833d59559")
    for name, labels in values_of_plugin(bench.plugin):
        assert labels.count(",") == METRICS[name][2].count(","), (name, labels)
        assert bool(labels) == bool(METRICS[name][2]), (name, labels)
