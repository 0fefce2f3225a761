"""Which machine is the cheapest, fastest or thriftiest for a job? The same job on every card and offer of the catalog.

The job is resolved once; each card and count gets its own plan by the usual rules (`tokens_per_step` stays, the
precision is what the card does well), lowered as a bill would lower it. Offers of one machine share its plan.
The machine that `hw` names stands among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from conf.choices import CompareBy
from conf.schema import CompareConfig, Config, HwConfig
from preflight import catalog
from preflight.band import Band
from preflight.calibration.calibrate import calibrate
from preflight.calibration.probes import with_probes
from preflight.catalog import Listed
from preflight.errors import ConfigError, Problem
from preflight.estimate import Estimate
from preflight.lowering.lower import settle
from preflight.machine.snapshot import Machine
from preflight.plan import RunPlan
from preflight.resolve.hw import Hardware, find_hardware, rented_from
from preflight.resolve.resolution import Resolution
from preflight.resolve.resolve import Job, plan_on, resolve_job
from preflight.units import SECONDS_PER_HOUR

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The job on one offer."""

    hw: str  # as typed after hw=
    card_name: str
    n_gpus: int  # in all
    is_yours: bool  # the machine that hw names
    is_spot: bool
    plan: RunPlan | None  # as it would run; None: there is none
    estimate: Estimate | None
    lowered: tuple[str, ...]  # what was lowered, in words: "batch 12 -> 6"
    broken: tuple[str, ...]  # budgets: memory, hours, cost_usd, energy_kwh
    why_not: str  # why there is no plan
    is_on_front: bool = False  # no other is both cheaper and faster

    @property
    def is_go(self) -> bool:
        """It fits, and keeps every budget."""
        return self.plan is not None and not self.broken

    @property
    def fits(self) -> bool:
        """In memory."""
        return self.plan is not None and "memory" not in self.broken

    @property
    def hours(self) -> Band | None:
        """None: unknown."""
        seconds = self.estimate.wall.seconds if self.estimate is not None else None
        return None if seconds is None else seconds.scaled(1 / SECONDS_PER_HOUR)

    @property
    def usd(self) -> Band | None:
        """None: unknown."""
        return self.estimate.cost.cost_usd if self.estimate is not None else None

    @property
    def kwh(self) -> Band | None:
        """None: unknown."""
        return self.estimate.cost.energy_kwh if self.estimate is not None else None

    @property
    def co2_kg(self) -> Band | None:
        """None: unknown."""
        return self.estimate.cost.co2_kg if self.estimate is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All rows, the best first."""

    model_name: str
    total_tokens: int
    options: CompareConfig
    budgets: tuple[str, ...]  # those that have a limit, as typed: "budget.max_hours=24"
    rows: tuple[Row, ...]
    n_slower: int  # left out by compare.max_hours
    fastest_left_out: Row | None  # of those
    may_lower_more: bool  # lowering=all has rungs that were not tried


@dataclass(slots=True, kw_only=True)
class _Machine:
    """A card and a count, with everybody who sells it."""

    hardware: Hardware
    hw: HwConfig
    offers: list[Listed] = field(default_factory=list)
    is_yours: bool = False
    plan: RunPlan | None = None
    problems: list[Problem] = field(default_factory=list)


def compare(
    config: Config, machine: Machine, *, command: str, created_at: str, records: Records, probes: Records = ()
) -> Comparison:
    """ConfigError when the job is wrong whatever the machine; a machine that cannot take it has a row that says why."""
    shared = Resolution()
    job = resolve_job(config, shared, command=command, created_at=created_at)
    here = find_hardware(job.config.hw, machine, shared)
    if here is None:
        raise ConfigError(shared.problems)
    yours = _Machine(hardware=here, hw=job.config.hw, is_yours=True)
    machines = [yours, *_machines(job.config)]
    by_card = _by_card(records)
    for each in machines:
        _plan(each, job, machine, shared, by_card, probes)
    _refuse_what_is_wrong_everywhere(shared, yours, machines)
    rows = _without_repetition([row for each in machines for row in _rows(each)])
    options = job.config.compare
    kept = [row for row in rows if not _is_slower(row, options.max_hours)]
    slower = [row for row in rows if row.fits and _is_slower(row, options.max_hours)]
    return Comparison(
        model_name=job.model.name,
        total_tokens=next(each.plan.trainer.total_tokens for each in machines if each.plan is not None),
        options=options,
        budgets=_budgets(job.config),
        rows=tuple(ranked(_with_front(kept), options.by)),
        n_slower=len(rows) - len(kept),
        fastest_left_out=min(slower, key=lambda row: _mid(row.hours), default=None),
        may_lower_more="sharding" not in job.config.lowering.rungs,
    )


def ranked(rows: Iterable[Row], by: CompareBy) -> list[Row]:
    """What keeps the budgets, then what does not, then what cannot be; what is unknown is the last of its kind."""

    def key(row: Row) -> tuple[float | str, ...]:
        kind = 0 if row.is_go else 1 if row.fits else 2 if row.plan is not None else 3
        values = {CompareBy.cost: row.usd, CompareBy.time: row.hours, CompareBy.energy: row.kwh}
        others = [value for name, value in values.items() if name is not by]
        provider = row.plan.hw.offer.provider if row.plan is not None else ""
        return (kind, _mid(values[by]), *map(_mid, others), row.card_name, row.n_gpus, provider)

    return sorted(rows, key=key)


def _mid(band: Band | None) -> float:
    return float("inf") if band is None else band.mid


def _with_front(rows: Sequence[Row]) -> list[Row]:
    """Marks the rows that no other beats in money without losing time; over-budget ones count only among themselves."""
    known = [row for row in rows if row.fits and row.usd is not None and row.hours is not None]
    pool = [row for row in known if row.is_go] or known
    front, best_hours = set(), float("inf")
    for row in sorted(pool, key=lambda row: (_mid(row.usd), _mid(row.hours))):
        if _mid(row.hours) < best_hours:
            best_hours = _mid(row.hours)
            front.add(id(row))
    return [replace(row, is_on_front=id(row) in front) for row in rows]


def _is_slower(row: Row, max_hours: float | None) -> bool:
    return not row.is_yours and max_hours is not None and row.hours is not None and row.hours.mid > max_hours


def _budgets(config: Config) -> tuple[str, ...]:
    limits = {name: getattr(config.budget, name) for name in ("max_hours", "max_cost_usd", "max_energy_kwh")}
    return tuple(f"budget.{name}={limit:g}" for name, limit in limits.items() if limit is not None)


def _machines(config: Config) -> Iterator[_Machine]:
    """Every card and count that an admitted provider sells, and one of each card that nobody does."""
    options = config.compare
    listed = catalog.listed_offers(with_spot=options.spot)
    admitted = [each for each in listed if not options.providers or each.offer.provider in options.providers]
    machines: dict[tuple[str, int], _Machine] = {}
    for each in admitted:
        if options.max_gpus is None or each.n_gpus <= options.max_gpus:
            key = (each.card_name, each.n_gpus)
            machines.setdefault(key, _named(config.hw, *key)).offers.append(each)
    if not options.providers:
        sold = {each.card_name for each in listed}
        machines |= {(name, 1): _named(config.hw, name, 1) for name in catalog.card_names() if name not in sold}
    yield from machines.values()


def _named(asked: HwConfig, card_name: str, n_gpus: int) -> _Machine:
    """A machine of the catalog where electricity is what it is for the one asked about."""
    hw = HwConfig(
        card=card_name,
        n_gpus_per_node=n_gpus,
        country=asked.country,
        electricity_usd_per_kwh=asked.electricity_usd_per_kwh,
    )
    hardware = Hardware(
        card=catalog.find_card(card_name),
        n_nodes=1,
        n_gpus_per_node=n_gpus,
        declared=f"{n_gpus}x{card_name}",
        is_here=False,
        may_use_fewer=False,
    )
    return _Machine(hardware=hardware, hw=hw)


def _plan(
    each: _Machine,
    job: Job,
    machine: Machine,
    shared: Resolution,
    by_card: Mapping[str, list[Any]],
    probes: Records,
) -> None:
    """The job's plan on this machine with what earlier runs say about it, or the problems."""
    resolution = Resolution(provenance=dict(shared.provenance))
    here = machine if each.is_yours else replace(machine, world=None)  # torchrun's ranks are those of yours
    plan = plan_on(job, each.hardware, each.hw, here, resolution)
    each.problems = resolution.problems
    if plan is None or resolution.problems:
        return
    plan = with_probes(plan, probes) if probes else plan
    records = by_card.get(plan.hw.card.name, [])
    each.plan = replace(plan, calibration=calibrate(plan, records, None)) if records else plan


def _by_card(records: Records) -> dict[str, list[Any]]:
    """Runs of other cards say nothing; records of another shape (an older program's) are left out."""
    found: dict[str, list[Any]] = {}
    for record in records:
        card = record.get("plan", {}).get("hw", {}).get("card", {})
        if isinstance(card, dict) and "name" in card:
            found.setdefault(card["name"], []).append(record)
    return found


def _refuse_what_is_wrong_everywhere(shared: Resolution, yours: _Machine, machines: Sequence[_Machine]) -> None:
    """Faults of the job, and of your machine's description; not what one machine or another cannot do."""
    of_yours = [problem for problem in yours.problems if problem.path.partition(".")[0] == "hw"]
    if all(each.plan is None for each in machines):
        of_yours = yours.problems
    if shared.problems or of_yours:
        raise ConfigError([*shared.problems, *of_yours])


def _rows(each: _Machine) -> Iterator[Row]:
    """One an offer; one in all when nobody sells the machine, or when it cannot take the job."""
    hardware, plan = each.hardware, each.plan
    row = Row(
        hw=hardware.declared,
        card_name=hardware.card.name,
        n_gpus=hardware.n_nodes * hardware.n_gpus_per_node,
        is_yours=each.is_yours,
        is_spot=False,
        plan=None,
        estimate=None,
        lowered=(),
        broken=(),
        why_not="; ".join(problem.message for problem in each.problems),
    )
    if plan is None:
        yield row
        return
    machines = [rented_from(plan.hw, listed.offer) for listed in each.offers] or [plan.hw]
    is_spot = [listed.is_spot for listed in each.offers] or [False]
    for spot, (settled, estimate, broken) in zip(is_spot, settle(plan, machines), strict=True):
        yield replace(
            row,
            n_gpus=settled.hw.world_size,
            is_spot=spot,
            plan=settled,
            estimate=estimate,
            lowered=_lowered(plan, settled),
            broken=broken,
        )


def _without_repetition(rows: Sequence[Row]) -> list[Row]:
    """`hw=4x4090` means an offer of the catalog, which stands there once: as yours."""
    yours = {(row.hw, row.plan.hw.offer) for row in rows if row.is_yours and row.plan is not None}
    return [row for row in rows if row.is_yours or row.plan is None or (row.hw, row.plan.hw.offer) not in yours]


def _lowered(asked: RunPlan, plan: RunPlan) -> tuple[str, ...]:
    before, after = asked.trainer, plan.trainer
    pairs = {
        "model": (asked.model.name, plan.model.name),
        "precision": (before.precision.value, after.precision.value),
        "batch": (before.micro_batch_size, after.micro_batch_size),
        "parallel": (before.parallel.value, after.parallel.value),
        "checkpointing": (before.activation_checkpointing.value, after.activation_checkpointing.value),
        "optimizer": (before.optimizer.value, after.optimizer.value),
        "loss chunk": (before.loss_chunk_tokens, after.loss_chunk_tokens),
    }
    return tuple(f"{name} {old} -> {new}" for name, (old, new) in pairs.items() if old != new)
