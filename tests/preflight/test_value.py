"""Is a run worth it? The loss law's numbers worked by hand, and where it must keep silent."""

from dataclasses import replace
from math import exp

import pytest

from conf.choices import Adapter, AdapterTargets, DataKind, ReportChoice, Tokenizer
from preflight.bill import make_bill
from preflight.estimate import estimate
from preflight.plan import ModelPlan, RunPlan
from preflight.report.render import render
from preflight.value import effective_tokens, estimate_value, expected_loss
from tests.conftest import GPT2_124M, TINY, build_plan

N_PARAMS = 124_373_760  # 50304 x 768 + 1024 x 768 + 12 x (12 x 768^2 + 2 x 768) + 768


def web_run(n_steps: int, model: ModelPlan = GPT2_124M, n_unique: int | None = 9_000_000_000) -> RunPlan:
    """491,520 tokens a step of OpenWebText."""
    plan = build_plan(model=model, grad_accum_steps=40, n_steps=n_steps)
    return replace(plan, data=replace(plan.data, kind=DataKind.openwebtext, n_train_tokens=n_unique))


def test_tokens_per_parameter_and_the_compute_optimal_number() -> None:
    value = estimate_value(web_run(20_345))
    assert value.tokens_per_param == pytest.approx(20_345 * 491_520 / N_PARAMS, rel=1e-6)
    assert value.compute_optimal_tokens == 20 * N_PARAMS
    assert value.n_epochs == pytest.approx(20_345 * 491_520 / 9e9)


def test_besiroglu_law_for_124m_and_ten_billion_tokens_is_3_01() -> None:
    """1.8172 + 482.01 / 124.5e6^0.3478 + 2085.43 / 1e10^0.3658 = 1.8172 + 0.737 + 0.458."""
    assert expected_loss(N_PARAMS, 1e10) == pytest.approx(1.8172 + 0.737 + 0.458, abs=0.002)


def test_chinchilla_itself_lands_near_its_published_loss() -> None:
    """70B parameters, 1.4T tokens: about 1.94 nats in Hoffmann et al.'s figures."""
    assert expected_loss(70e9, 1.4e12) == pytest.approx(1.97, abs=0.05)


def test_loss_band_holds_what_llm_c_and_nanogpt_reached() -> None:
    """llm.c on FineWeb: 3.28 after 10B tokens; nanoGPT on OpenWebText: 2.85 after 600,000 steps."""
    ten_billion = estimate_value(web_run(20_345, n_unique=None)).expected_loss
    assert ten_billion is not None
    assert ten_billion.low < 3.28 < ten_billion.high
    full = estimate_value(web_run(600_000)).expected_loss
    assert full is not None
    assert full.low < 2.85 < full.high


def test_the_last_quarter_buys_less_than_the_first_three() -> None:
    value = estimate_value(web_run(20_345, n_unique=None))
    assert value.expected_loss is not None
    assert value.expected_loss_at_three_quarters is not None
    assert 0 < value.expected_loss_at_three_quarters - value.expected_loss.mid < 0.1


@pytest.mark.parametrize(
    "plan",
    [
        replace(web_run(20_345), model=replace(GPT2_124M, tokenizer=Tokenizer.byte)),
        replace(web_run(20_345), data=replace(web_run(1).data, kind=DataKind.stdlib)),
        web_run(20_345, model=replace(TINY, tokenizer=Tokenizer.gpt2)),
        web_run(100),
    ],
    ids=["byte-level", "other data", "too small", "too few tokens"],
)
def test_outside_its_range_the_law_keeps_silent(plan: RunPlan) -> None:
    value = estimate_value(plan)
    assert value.expected_loss is None
    assert value.expected_loss_at_three_quarters is None
    assert value.tokens_per_param > 0


def test_of_weights_that_are_trained_already_the_law_says_nothing() -> None:
    """Rank 8 on queries and values of 12 layers: 12 x 2 x 8 x (768 + 768)."""
    scratch = web_run(20_345)
    lora = {"adapter": Adapter.lora, "lora_targets": AdapterTargets.query_value}
    for changed, n_tuned in (({"init_from": "hf:/weights"}, N_PARAMS), (lora, 12 * 2 * 8 * (768 + 768))):
        plan = replace(scratch, trainer=replace(scratch.trainer, **changed))  # type: ignore[arg-type]
        worked_out = estimate(plan)
        value = worked_out.value
        assert (value.n_tuned_params, value.compute_optimal_tokens, value.expected_loss) == (n_tuned, None, None)
        assert (worked_out.worth.optimal_params, worked_out.worth.last_quarter_loss) == (None, None)
        assert worked_out.worth.budget_tokens is not None
        shown = " ".join(render(make_bill(plan, ()), ReportChoice.full).split())
        assert "; fine-tuning, whose loss no scaling law tells" in shown
        assert "(optimal: ~20)" not in shown
    assert "10.0B tokens for 294,912 weights beside 124.4M frozen ones, 1.11 epochs" in shown
    assert estimate_value(scratch).n_tuned_params is None


def test_unknown_data_size_gives_unknown_epochs() -> None:
    assert estimate_value(web_run(20_345, n_unique=None)).n_epochs is None


def test_repeated_tokens_count_less_and_less() -> None:
    """Muennighoff et al.: U (1 + R (1 - exp(-repeats / R))), R = 15.39."""
    assert effective_tokens(5e9, 10_000_000_000) == 5e9
    assert effective_tokens(4e10, 10_000_000_000) == pytest.approx(1e10 * (1 + 15.39 * (1 - exp(-3 / 15.39))))
    assert effective_tokens(1e15, 10_000_000_000) < 1e10 * 16.4
