import pytest

from fedmend.learning_curve import fit_line, soft_iou


def test_the_line_is_the_least_squares_fit():
    assert fit_line({0: 0.1, 1: 0.3, 2: 0.2}) == pytest.approx((0.15, 0.05))
    assert fit_line({2: 0.5, 0: 0.1, 1: 0.3}) == pytest.approx((0.1, 0.2))
    assert fit_line({3: 0.4}) == (0.4, 0)
    assert fit_line({}) is None


def test_the_iou_of_a_dice_loss_is_its_jaccard_index():
    assert [soft_iou(loss) for loss in (0, 0.5, 1)] == [1, pytest.approx(1 / 3), 0]
