"""Candidate sets of images without a label."""

import numpy as np
import pytest
import torch
from torch_factories import one_hot

from fedmend.methods.shared.candidates import candidate_shares


def test_an_image_without_a_label_is_shared_out_among_the_classes_that_its_site_does_not_know():
    logits = torch.log(torch.tensor([[0.2, 0.4, 0.4], [0.5, 0.1, 0.4]]))
    shares = candidate_shares(
        one_hot([0, -1], 3), logits, np.array([True, False, False])
    )  # the candidates are the second and the third class
    assert shares[0].tolist() == [1, 0, 0]
    assert shares[1] == pytest.approx([0, 0.2, 0.8])  # .1 to .4


def test_where_every_class_has_a_label_an_image_without_one_is_unknown():
    shares = candidate_shares(one_hot([0, 1, -1], 2), torch.zeros(3, 2), np.array([True, True]))
    assert shares.tolist() == [[1, 0], [0, 1], [-1, -1]]
