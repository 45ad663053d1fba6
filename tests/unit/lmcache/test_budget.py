from lpc_apps.lmcache.fetching import MAX_NEEDED, MIN_NEEDED, PrefetchBudget


def test_fetches_stay_within_the_budget() -> None:
    budget = PrefetchBudget(100, 0.6)
    assert budget.reserve(50, 60)  # ten of them were in memory before
    assert not budget.reserve(50, 60)
    assert (budget.waiting, budget.held, budget.refused) == (50, 60, 1)
    budget.release(60)
    budget.settle(50, 0)
    assert budget.reserve(50, 60)


def test_useless_fetches_raise_the_needed_probability_and_used_ones_lower_it() -> None:
    budget = PrefetchBudget(10**9, 0.6)
    for _ in range(200):
        budget.reserve(1, 1)
        budget.settle(0, 1)
    assert budget.needed == MAX_NEEDED
    for _ in range(1000):
        budget.reserve(1, 1)
        budget.settle(1, 0)
    assert budget.needed == MIN_NEEDED


def test_the_needed_probability_falls_without_fetches() -> None:
    budget = PrefetchBudget(10**9, 0.6)
    for _ in range(200):
        budget.reserve(1, 1)
        budget.settle(0, 1)
    for _ in range(1000):
        budget.idle()
    assert budget.needed < 0.5
