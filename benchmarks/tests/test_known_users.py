"""Bounds of what is known of users."""

from benchmarks import known_users
from lpc_apps.simulator.workloads import WORKLOADS
from lpc_apps.simulator.workloads.users import truth


def test_bounds_that_know_more_of_users_hit_more() -> None:
    workload = WORKLOADS["users"](1, requests=3_000)
    tokens = workload.working_set_tokens() // 20
    found = [known_users.simulated(name, workload, tokens, truth(1)).hit_rate for name in ("lru", *known_users.KNOWN)]

    assert found[0] + 0.005 < found[-1] - 0.05
    assert found[1] + 0.003 < found[4]  # laws of all, of each user
