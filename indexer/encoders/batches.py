"""The batch plan: texts of like length together, under a budget of tokens, the same for any thread count."""

from collections.abc import Sequence


def plan_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Cut positions 0..n-1 into batches of at most `budget` tokens, padding included; longest texts first.

    A batch costs rows x longest. A text longer than the budget is a batch of its own. Ties keep their order,
    so the plan depends on the lengths alone.
    """
    order = sorted(range(len(lengths)), key=lambda position: -lengths[position])
    batches, start = [], 0
    while start < len(order):
        rows = max(1, budget // max(1, lengths[order[start]]))
        batches.append(order[start : start + rows])
        start += rows
    return batches
