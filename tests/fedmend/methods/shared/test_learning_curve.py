import pytest
from factories import refused

from fedmend.methods.shared.learning_curve import fit_line, soft_iou


def test_the_line_is_the_least_squares_fit():
    assert fit_line({0: 0.1, 1: 0.3, 2: 0.2}) == pytest.approx((0.15, 0.05))
    assert fit_line({2: 0.5, 0: 0.1, 1: 0.3}) == pytest.approx((0.1, 0.2))


def test_early_rounds_are_left_out_if_two_are_left():
    curve = {0: 0.9, 1: 0.1, 2: 0.2}
    assert fit_line(curve, 1) == pytest.approx((0.0, 0.1))
    assert fit_line(curve, 2) == pytest.approx((0.75, -0.35))  # as from round 0


@pytest.mark.parametrize("curve", [{}, {3: 0.4}])
def test_a_line_through_fewer_than_two_rounds_is_refused(curve):
    with refused(f"learning curve: expected at least two rounds, which a line needs, got {len(curve)}"):
        fit_line(curve)


def test_the_iou_of_a_dice_loss_is_its_jaccard_index():
    assert [soft_iou(loss) for loss in (0, 0.5, 1)] == [1, pytest.approx(1 / 3), 0]
