import pytest

from conf.compose import compose
from conf.help import COMMON, help_page
from conf.help_topic import topic_page
from conf.names import all_options, hint_of
from conf.register import options
from preflight.errors import ConfigError


def test_help_lists_the_options_people_use_and_no_others():
    page = help_page()
    assert set(COMMON) <= set(all_options())
    assert 20 <= len(COMMON) <= 32
    assert all(f"  {path} " in page for path in COMMON)


def test_help_names_every_model_and_experiment():
    page = help_page()
    assert all(name in page for name in [*options("model"), *options("experiment")])


def test_help_fits_a_terminal_of_100_columns():
    lines = help_page().splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 62


def test_help_starts_with_commands_to_copy():
    assert "  python launch.py  " in "\n".join(help_page().splitlines()[:4])


def test_hint_of_is_none_for_unknown_paths():
    assert hint_of("trainer.n_steps") is not None
    assert hint_of("trainer.n_step") is None
    assert hint_of("trainer.n_steps.x") is None


def test_help_says_that_the_last_one_counts_and_how_tokens_are_written():
    assert "the last of a KEY counts" in help_page()
    assert "1e9 or 10B" in help_page()


def test_help_of_a_group_explains_each_of_its_options_as_the_schema_does():
    page = compose(["--help", "budget", "seed=1"]).text
    assert page == topic_page(["budget"]) == compose(["--help", "budget="]).text
    assert page.startswith("Limits. null: no limit.\n  budget.max_hours ")
    shown = " ".join(page.split())
    assert (
        "budget.enforce during the run. null: stop; warn when lowering.policy=off launched it knowingly: stop" in shown
    )
    assert "lowering.rungs What may be lowered, the least change first." in " ".join(topic_page(["lowering"]).split())


def test_help_of_what_does_not_exist_is_refused():
    with pytest.raises(ConfigError) as caught:
        compose(["--help", "bogus", "budgte", "model=tiny"])
    bogus, near = caught.value.problems
    assert bogus.message.startswith("--help bogus: no such group; there are budget, calibrate, compare, data, grid, hw")
    assert (bogus.fix, near.fix) == ("--help", "--help budget")


def test_help_of_everything_has_every_option_and_fits_the_terminal():
    page = topic_page(["all"])
    assert set(all_options()) <= {line.split()[0] for line in page.splitlines()}
    assert max(map(len, page.splitlines())) <= 100
    assert topic_page(["seed"]).splitlines()[1].startswith("  seed ")
