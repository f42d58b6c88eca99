import math

import pytest

from fedmend.methods.shared.ramp_up import gaussian_ramp_up


@pytest.mark.parametrize(
    ("round_num", "weight"),
    [(0, 0.0054), (10, 0.0054), (20, 0.050), (30, 0.244), (40, 0.613), (49, 0.8), (50, 0.8), (99, 0.8)],
)
def test_lambda_rises_as_in_the_published_code(round_num, weight):
    assert gaussian_ramp_up(round_num, begin=10, end=49, maximum=0.8) == pytest.approx(weight, abs=5e-4)


def test_lambda_by_hand():
    assert gaussian_ramp_up(5, begin=0, end=10, maximum=0.6) == pytest.approx(0.6 * math.exp(-5 / 4))
    assert gaussian_ramp_up(49, begin=10, end=49, maximum=0.8) == 0.8


@pytest.mark.parametrize(("begin", "end"), [(10, 10), (10, 3)])
@pytest.mark.parametrize("round_num", [10, 11, 50])
def test_a_ramp_without_length_holds_the_maximum_at_once(begin, end, round_num):
    assert gaussian_ramp_up(round_num, begin=begin, end=end, maximum=0.8) == 0.8
