"""The whole policy on generated traffic: results to the last block."""

import pytest

from tests.golden_replay import TRAFFIC, differences


@pytest.mark.parametrize("name", TRAFFIC)
def test_hits_rules_classes_and_evictions_are_those_recorded(name: str) -> None:
    assert not differences(name), "if the change is meant to alter results, write them again: python -m tests.golden_replay"
