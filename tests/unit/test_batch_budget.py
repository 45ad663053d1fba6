"""How large a batch may be."""

from predictor_service.batching.budget import BATCH_TOKENS, TokenBudget


def test_the_budget_is_the_providers_unless_the_operator_sets_it() -> None:
    budget, set_by_operator = TokenBudget(), TokenBudget(4096)
    for each in (budget, set_by_operator):
        each.begin("cuda")
    assert budget.tokens == BATCH_TOKENS["cuda"]
    assert set_by_operator.tokens == 4096


def test_a_batch_that_does_not_fit_halves_the_budget() -> None:
    budget = TokenBudget(4096)
    budget.shrink(3000)
    assert budget.tokens == 1500
    budget.shrink(4000)
    assert budget.tokens == 1500
