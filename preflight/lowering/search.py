"""Which plan changes least and keeps every budget? The search is exact over the rungs, not greedy.

Every combination of levels is a candidate, with the largest micro-batch that fits it, up to the asked one: so the batch
goes back up when something else makes room, and a smaller batch is never taken for hours or money. Candidates come in
the order of how little they change, the gravest rung compared first. Two things are left out because they cannot be an
answer: what is too slow before memory is even looked at, and what does not fit with the smallest batch. Every result is
kept, so that asking for one budget, or for more rungs, works nothing out twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from preflight.estimate import Estimate, estimate
from preflight.lowering.levels import BATCH, SLOWER_ONLY, levels, order_of
from preflight.plan import RunPlan, valid_micro_batch_sizes
from preflight.sharing import can_share
from preflight.verdict.fitting import at_micro_batch_size, largest_fitting
from preflight.verdict.needs import ROOM_BUDGETS, broken_budgets

Key = tuple[int, ...]  # a level for each rung, the gravest rung first; the batch's is the number of sizes given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan that fits in memory, worked out, with the budgets that it breaks."""

    key: Key
    plan: RunPlan
    estimate: Estimate
    broken: frozenset[str]


class Search:
    """All lowerings of one plan."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.gravest_first = tuple(reversed(order_of(plan)))
        asked = plan.trainer.micro_batch_size
        valid = valid_micro_batch_sizes(plan.trainer, plan.hw.world_size)
        self.sizes = [*(size for size in valid if size < asked), asked]
        self._candidates: dict[tuple[Key, bool], Candidate | None] = {}
        self._too_slow: dict[Key, frozenset[str]] = {}

    def first(self, rungs: frozenset[str], goal: frozenset[str]) -> Candidate | None:
        """The least lowering over these rungs that keeps the budgets of the goal; the asked plan is a candidate too."""
        return next((one for one in self.candidates(rungs, goal) if not goal & one.broken), None)

    def candidates(self, rungs: frozenset[str], goal: frozenset[str] = frozenset()) -> Iterator[Candidate]:
        """Least lowering first; without those that cannot reach the goal."""
        found = self._all(rungs, goal)
        in_order = self.gravest_first[-1] == BATCH or BATCH not in rungs
        yield from found if in_order else sorted(found, key=lambda one: one.key)

    def _all(self, rungs: frozenset[str], goal: frozenset[str]) -> Iterator[Candidate]:
        for plan, key in self._combinations(self.plan, 0, rungs):
            if not can_share(plan.trainer) or goal & self._surely_broken(plan, key):
                continue
            one = self._candidate(plan, key, may_lower_batch=BATCH in rungs)
            if one is not None:
                yield one

    def _combinations(self, plan: RunPlan, place: int, rungs: frozenset[str]) -> Iterator[tuple[RunPlan, Key]]:
        if place == len(self.gravest_first):
            yield plan, ()
            return
        rung = self.gravest_first[place]
        choices = levels(plan, rung) if rung in rungs and rung != BATCH else (plan,)
        for level, chosen in enumerate(choices):
            for whole, rest in self._combinations(chosen, place + 1, rungs):
                yield whole, (level, *rest)

    def _surely_broken(self, plan: RunPlan, key: Key) -> frozenset[str]:
        """Of hours, money and energy: with the asked batch and nothing made again it would be no faster than this."""
        named = zip(self.gravest_first, key, strict=True)
        fastest = tuple(0 if rung in SLOWER_ONLY else level for rung, level in named)
        if fastest not in self._too_slow:
            asked = self.plan.trainer
            quick = replace(
                plan,
                trainer=replace(
                    plan.trainer,
                    activation_checkpointing=asked.activation_checkpointing,
                    loss_chunk_tokens=asked.loss_chunk_tokens,
                ),
            )
            self._too_slow[fastest] = frozenset(broken_budgets(quick, estimate(quick))) - ROOM_BUDGETS
        return self._too_slow[fastest]

    def _candidate(self, plan: RunPlan, key: Key, *, may_lower_batch: bool) -> Candidate | None:
        known = (key, may_lower_batch)
        if known not in self._candidates:
            self._candidates[known] = self._worked_out(plan, key, self.sizes if may_lower_batch else self.sizes[-1:])
        return self._candidates[known]

    def _worked_out(self, plan: RunPlan, key: Key, sizes: list[int]) -> Candidate | None:
        """None: not even the smallest batch fits, which is asked first since it is the commonest answer."""
        size = largest_fitting(plan, sizes) if largest_fitting(plan, sizes[:1]) is not None else None
        if size is None:
            return None
        at_size = at_micro_batch_size(plan, size)
        worked_out = estimate(at_size)
        place, given_up = self.gravest_first.index(BATCH), len(self.sizes) - 1 - self.sizes.index(size)
        return Candidate(
            key=(*key[:place], given_up, *key[place + 1 :]),
            plan=at_size,
            estimate=worked_out,
            broken=frozenset(broken_budgets(at_size, worked_out)),
        )
