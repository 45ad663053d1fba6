from lpc.lmcache.fetching import LEAST, MOST, PrefetchBudget


def test_the_budget_of_bytes_is_kept() -> None:
    budget = PrefetchBudget(100, 0.6)
    assert budget.take(50, 60)  # ten of them were in memory before
    assert not budget.take(50, 60)
    assert (budget.waiting, budget.held, budget.refused) == (50, 60, 1)
    budget.release(60)
    budget.settle(50, 0)
    assert budget.take(50, 60)


def test_useless_fetches_raise_what_is_needed_and_used_ones_lower_it() -> None:
    budget = PrefetchBudget(10**9, 0.6)
    for _ in range(200):
        budget.take(1, 1)
        budget.settle(0, 1)
    assert budget.needed == MOST
    for _ in range(1000):
        budget.take(1, 1)
        budget.settle(1, 0)
    assert budget.needed == LEAST


def test_a_probability_that_nothing_reaches_falls_until_something_does() -> None:
    budget = PrefetchBudget(10**9, 0.6)
    for _ in range(200):
        budget.take(1, 1)
        budget.settle(0, 1)
    for _ in range(1000):
        budget.idle()
    assert budget.needed < 0.5
