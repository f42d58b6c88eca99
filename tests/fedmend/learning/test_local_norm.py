"""Normalisation layers that stay at their site."""

import numpy as np
import pytest
import torch
from factories import refused
from torch import nn
from torch_factories import GroupNetwork, PlainMethod, TinyNetwork, make_site, make_task

from fedmend.learning.local_norm import LOCAL, check_norm, keep_norm, kept_norm, norm_names, put_norm
from fedmend.learning.networks import build_network
from fedmend.methods.alone import Alone
from fedmend.methods.baselines import FedAvg

LABELS = [[1, 0, 0], [0, 1, 1]]
OF_TINY = {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"}


def numbers(model):
    return {k: v.numpy().copy() for k, v in model.state_dict().items() if v.is_floating_point()}


def test_parameters_and_statistics_of_normalisation_layers_are_meant_and_nothing_else():
    assert norm_names(TinyNetwork(3)) == OF_TINY
    assert norm_names(GroupNetwork(3)) == {"norm.weight", "norm.bias"}
    model = build_network("resnet_narrow", 2)
    assert norm_names(model) == {n for n in numbers(model) if n.split(".")[-2] in ("bn1", "bn2") or "downsample.1" in n}


def test_what_a_site_kept_is_in_the_model_of_its_next_round_and_the_server_gets_back_its_own(tmp_path):
    site, received = make_site(tmp_path, LABELS), numbers(TinyNetwork(3))
    trained = TinyNetwork(3)
    with torch.no_grad():
        for value in trained.norm.parameters():
            value += 1
        trained.norm.running_mean += 2
    sent = keep_norm(LOCAL, trained, received, make_task(round_num=0), site)
    assert set(sent) == OF_TINY
    assert all(np.array_equal(value, received[name]) for name, value in sent.items())

    def at(round_num, **options):
        model = TinyNetwork(3)
        put_norm(LOCAL, model, make_task(round_num=round_num, **options), site)
        return model.norm.running_mean[0].item()

    assert (at(0), at(1), at(5)) == (0, 2, 2)  # a repeated round, the next one, one after an absence
    assert at(1, seed=8) == 0  # another run of this name
    assert kept_norm(tmp_path / "state", 1)["norm.running_mean"].tolist() == [2] * 12
    assert kept_norm(tmp_path / "state", 2) is None


def test_where_all_layers_are_averaged_nothing_is_kept_or_replaced(tmp_path):
    site = make_site(tmp_path, LABELS)
    assert keep_norm("averaged", TinyNetwork(3), {}, make_task(), site) == {}
    assert kept_norm(tmp_path / "state", 1) is None


@pytest.mark.parametrize(
    ("method", "network", "private", "words"),
    [
        (PlainMethod(), "resnet_narrow", True, "at a site with differential privacy"),
        (Alone(), "resnet_narrow", False, "for a method whose sites have models of their own"),
        (FedAvg(), "plain", False, "for a network without normalisation layers (plain)"),
    ],
)
def test_local_layers_that_make_no_sense_are_refused(monkeypatch, method, network, private, words):
    monkeypatch.setitem(build_network.__globals__["NETWORKS"], "plain", lambda classes: nn.Linear(4, classes))
    with refused(f"site-1: job variable norm: expected averaged {words}, got local"):
        check_norm("site-1", LOCAL, method, network, private=private)
    check_norm("site-1", "averaged", method, network, private=private)
