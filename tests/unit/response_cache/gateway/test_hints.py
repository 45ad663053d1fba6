"""How long clients ask to keep a prompt, in the fields of several APIs."""

from typing import Any

import pytest

from response_cache.gateway.request import retain_seconds

HOUR = {"type": "ephemeral", "ttl": "1h"}


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ({}, 0.0),
        ({"cache_control": {"type": "ephemeral"}}, 300.0),
        ({"cache_control": HOUR}, 3600.0),
        ({"system": [{"type": "text", "text": "You are", "cache_control": HOUR}]}, 3600.0),
        ({"tools": [{"name": "search", "cache_control": {"type": "ephemeral", "ttl": "5m"}}]}, 300.0),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": HOUR}]}]}, 3600.0),
        (
            {"cache_control": {"type": "ephemeral"}, "messages": [{"role": "user", "content": "a", "cache_control": HOUR}]},
            3600.0,
        ),
        ({"nvext": {"cache_control": {"type": "ephemeral", "ttl": "90s"}}}, 90.0),
        ({"prompt_cache_options": {"ttl": "30m"}}, 1800.0),
        ({"prompt_cache_retention": "24h"}, 86400.0),
        ({"prompt_cache_retention": "in_memory"}, 0.0),
        ({"prompt_cache_retention": "in_memory", "prompt_cache_options": {"ttl": "30m"}}, 1800.0),
    ],
)
def test_the_longest_time_in_a_body_counts(said: dict[str, Any], seconds: float) -> None:
    assert retain_seconds(said) == seconds


@pytest.mark.parametrize(
    "ttl",
    ["", "h", "1", "1w", "-1h", "1.5h", " 1h", "1h ", "١h", "9" * 8 + "d", 3600, None, ["1h"], {"ttl": "1h"}, True, "1h\n"],
)
def test_an_invalid_time_is_ignored(ttl: object) -> None:
    control = {"type": "ephemeral", "ttl": ttl}
    said = {"cache_control": control, "nvext": {"cache_control": control}, "prompt_cache_options": {"ttl": ttl}}
    assert retain_seconds({**said, "prompt_cache_retention": ttl}) == 0.0


@pytest.mark.parametrize("odd", [None, 1, "x", [], [1], ["x"], {}, {"type": "other", "ttl": "1h"}, [[{"cache_control": HOUR}]]])
def test_fields_of_any_type_are_accepted(odd: object) -> None:
    said = {"cache_control": odd, "nvext": odd, "tools": odd, "system": odd, "messages": odd}
    assert retain_seconds(said) == 0.0
    assert retain_seconds({"messages": [{"content": odd}], "prompt_cache_retention": odd}) == 0.0
