import math

import pytest
from resolving import config_of, problem_of

from conf.names import all_options, without_none
from preflight.resolve.ranges import RANGES, check_ranges
from preflight.resolve.resolution import Resolution, value_at, with_value


def test_every_number_of_the_configuration_has_a_range():
    numbers = {path for path, (hint, _) in all_options().items() if without_none(hint)[0] in (int, float)}
    assert set(RANGES) == numbers


@pytest.mark.parametrize("path", RANGES)
def test_number_outside_its_range_is_refused_with_a_value_inside(path):
    allowed = RANGES[path]
    kind = without_none(all_options()[path][0])[0]
    below = allowed.low if allowed.is_low_open else allowed.low - 1
    above = allowed.high if allowed.is_high_open else allowed.high * 2 + 1
    for bad in (kind(below), kind(above)):
        resolution = Resolution()
        mended = check_ranges(with_value(config_of(), path, bad), resolution)
        (problem,) = resolution.problems
        assert problem.path == path
        assert problem.fix.startswith(f"{path}=")
        value = value_at(mended, path)
        assert value is None or allowed.admits(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_in_no_range(value):
    assert not any(allowed.admits(value) for allowed in RANGES.values())


def test_message_names_the_limit():
    problem = problem_of("trainer.micro_batch_size=0")
    assert (problem.value, problem.fix) == ("0", "trainer.micro_batch_size=1")
    assert problem.message == "must be at least 1 and at most 100,000,000"
    assert problem_of("budget.max_memory_fraction=1.5").message == "must be above 0 and at most 1"
