"""Which tenants' gates stay in memory when there are too many."""

from collections.abc import Sequence
from typing import Any

from response_cache.service.scopes_in_use import TenantTier, surplus_of


def tenants(owner: bytes, used_at: Sequence[float]) -> list[TenantTier]:
    rules: Any = None
    return [TenantTier("semantic", owner, "", rules, used_at=at) for at in used_at]


def test_the_parts_of_one_client_push_out_no_other_clients_gates() -> None:
    quiet, loud = tenants(b"quiet", [1.0, 2.0]), tenants(b"loud", range(10, 30))
    assert surplus_of([*quiet, *loud], 12) == set(loud[:10])


def test_the_least_recently_used_gates_of_each_owner_are_dropped() -> None:
    one, other = tenants(b"one", [1.0, 9.0, 5.0]), tenants(b"other", [2.0, 3.0])
    assert surplus_of([*one, *other], 3) == {one[0], other[0]}


def test_nothing_is_dropped_below_the_limit() -> None:
    assert surplus_of(tenants(b"one", [1.0, 2.0]), 2) == set()
