from hypothesis import given
from hypothesis import strategies as st
from resolving import RTX_4090, problem_of, resolved, under_torchrun, with_gpus

from preflight.resolve.batch import divisors, multiples_around, neighbours

# GPT-2 124M: 491,520 tokens a step / 1,024 = 480 sequences; recipe micro-batch 12.


def test_batch_of_gpt2_on_four_cards_is_12_sequences_and_10_passes():
    trainer = resolved("model=gpt2_124m", "hw=4x4090").trainer
    assert (trainer.micro_batch_size, trainer.grad_accum_steps) == (12, 480 // (4 * 12))


def test_given_micro_batch_leaves_the_global_batch():
    trainer = resolved("model=gpt2_124m", "hw=4x4090", "trainer.micro_batch_size=8").trainer
    assert (trainer.tokens_per_step, trainer.grad_accum_steps) == (491_520, 480 // (4 * 8))


def test_given_micro_batch_that_does_not_divide_names_its_neighbours():
    problem = problem_of("model=gpt2_124m", "hw=4x4090", "trainer.micro_batch_size=7")
    assert problem.path == "trainer.micro_batch_size"
    assert "trainer.micro_batch_size=6 or 8" in problem.message
    resolved("model=gpt2_124m", "hw=4x4090", problem.fix)


def test_number_of_named_cards_that_does_not_divide_names_neighbours_of_the_batch_and_of_the_ranks():
    problem = problem_of("model=gpt2_124m", "hw=7x4090")
    assert problem.path == "trainer.tokens_per_step"
    below, above = 5 * 7 * 12 * 1024, 6 * 7 * 12 * 1024
    assert f"trainer.tokens_per_step={below} or {above}" in problem.message
    assert "6 or 8 ranks" in problem.message
    resolved("model=gpt2_124m", "hw=7x4090", problem.fix)
    resolved("model=gpt2_124m", "hw=7x4090", f"trainer.tokens_per_step={below}")


def test_power_of_two_batch_does_not_admit_three_cards():
    problem = problem_of("model=gpt2_124m", "hw=3x4090", "trainer.tokens_per_step=524288")
    below, above = 14 * 3 * 12 * 1024, 15 * 3 * 12 * 1024
    assert f"trainer.tokens_per_step={below} or {above}" in problem.message
    resolved("model=gpt2_124m", "hw=3x4090", problem.fix)


def test_sequence_that_does_not_divide_a_step_names_both_cures():
    problem = problem_of("model=gpt2_124m", "hw=4x4090", "trainer.sequence_length=1000")
    assert problem.path == "trainer.sequence_length"
    assert "trainer.sequence_length=960 or 1024" in problem.message
    resolved("model=gpt2_124m", "hw=4x4090", "trainer.sequence_length=1000", problem.fix)


def test_recipe_micro_batch_gives_way_and_says_so():
    plan = resolved("model=gpt2_124m", "hw=6x4090")  # 80 sequences a rank: 12 does not divide them, 10 does
    assert plan.trainer.micro_batch_size == 10
    assert plan.provenance["trainer.micro_batch_size"].startswith("recipe: 10 instead of 12")


def test_auto_uses_the_most_cards_that_divide_and_says_so():
    plan = resolved("model=gpt2_124m", machine=with_gpus(*[RTX_4090] * 7))
    assert (plan.hw.n_gpus_per_node, plan.hw.world_size) == (6, 6)
    assert "6 of 7 GPUs are used" in plan.provenance["hw.n_gpus_per_node"]


def test_auto_heeds_the_given_micro_batch_when_it_counts_cards():
    plan = resolved("model=gpt2_124m", "trainer.micro_batch_size=12", machine=with_gpus(*[RTX_4090] * 7))
    assert plan.hw.n_gpus_per_node == 5  # 480 / 12 = 40


def test_torchrun_keeps_its_ranks():
    problem = problem_of("model=gpt2_124m", machine=under_torchrun(with_gpus(*[RTX_4090] * 7), 7))
    assert "7 ranks do not divide 480 sequences" in problem.message


def test_two_cpu_ranks_share_the_batch():
    trainer = resolved("hw=2xcpu").trainer
    assert trainer.micro_batch_size * trainer.grad_accum_steps * 2 * trainer.sequence_length == trainer.tokens_per_step


def test_neighbours_are_the_nearest_below_and_above():
    assert neighbours(7, divisors(120)) == [6, 8]
    assert neighbours(121, divisors(120)) == [120]
    assert multiples_around(10, 4) == [8, 12]
    assert multiples_around(3, 4) == [4]


@given(st.integers(1, 100_000))
def test_divisors_divide_and_ascend(n):
    found = divisors(n)
    assert found == sorted(set(found))
    assert all(n % d == 0 for d in found)
    assert len(found) == sum(n % d == 0 for d in range(1, min(n, 400) + 1)) + sum(1 for d in found if d > 400)
