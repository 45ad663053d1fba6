"""The list of rules: what settings, the command line and the documentation make of it."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from eviction_client.policy.request import Features
from eviction_client.policy.rules import AUTO, CHOOSABLE, HOMES, RULES
from eviction_client.settings import ClientSettings

PAGE = Path(__file__).parents[2] / "docs/reference/rules.md"


def test_a_setting_takes_each_rule_and_no_other_name() -> None:
    for name in (AUTO, *RULES):
        assert ClientSettings(rule=name).rule == name
    *others, last = map(repr, (AUTO, *RULES))
    with pytest.raises(ValidationError, match=f"{', '.join(others)} or {last}"):
        ClientSettings(rule="best")


def test_lru_is_the_first_and_the_guard_may_choose_it_and_its_home_rules() -> None:
    assert next(iter(RULES)) == CHOOSABLE[0] == "lru"
    assert HOMES and set(HOMES) < set(CHOOSABLE)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_has_a_number_for_all_features_and_a_row_in_the_reference(name: str) -> None:
    rule = RULES[name]
    most = Features(gap=5, new=3, turn=4, reply_end=3, tenant=9, level=3, group=1, odds=7, category=7)
    for features in (Features(), most):
        for log_odds in (-100.0, 0.0, 100.0):
            assert 0 <= rule.class_of(features, log_odds) < rule.classes
    assert rule.source and re.search(rf"^\| `{name}` \|", PAGE.read_text(), re.MULTILINE)
