"""The table of what engines read alike."""

import pytest

from lpc.requests.rules import ANY, RULES, sure


def test_a_rule_of_some_templates_is_never_sure() -> None:
    by_template = {rule.name for rule in RULES if rule.templates != "all"}
    assert by_template and not by_template & (sure("vllm") | sure("sglang") | ANY)


def test_any_engine_has_the_rules_that_hold_in_each() -> None:
    assert sure("vllm") & sure("sglang") == ANY == sure("any") != sure("vllm") != sure("sglang")


@pytest.mark.parametrize(
    ("version", "known"), [("0.32.0", True), ("0.33.1", True), ("0.3.2", False), ("0.320", False), ("1.0", False)]
)
def test_in_another_version_no_rule_holds(version: str, known: bool) -> None:
    assert sure("vllm", version) == (sure("vllm") if known else frozenset())


def test_names_are_unique() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
