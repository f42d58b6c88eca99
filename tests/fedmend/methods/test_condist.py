import math

import monai.losses as monai
import numpy as np
import pytest
import torch
from nifti_factories import make_volume_site
from torch import nn
from torch_factories import CPU, SaysStructures

from fedmend.basics.state import StateStore
from fedmend.data.card import load_card
from fedmend.data.site import Opening
from fedmend.data.slices import load_volumes
from fedmend.kinds import kind_of
from fedmend.learning.networks import build_network
from fedmend.method import RoundTask, Site
from fedmend.methods import condist
from fedmend.methods.condist import (
    ConDist,
    batch_dice,
    conditional,
    conditional_distillation,
    marginal_loss,
    merged_log_probabilities,
)

CLASSES = ("liver", "spleen", "kidneys")
P = torch.tensor([0.1, 0.2, 0.3, 0.4])  # background and three structures
PIXEL = P.log().view(1, 4, 1, 1)
SPLEEN = torch.tensor([False, True, False])
RNG = torch.Generator().manual_seed(0)


def test_background_and_unmarked_structures_are_one():
    assert merged_log_probabilities(PIXEL, SPLEEN).exp().flatten().tolist() == pytest.approx([0.7, 0.3])
    assert merged_log_probabilities(PIXEL, ~SPLEEN).exp().flatten().tolist() == pytest.approx([0.4, 0.2, 0.4])


def test_the_dice_loss_is_monais():
    p, t = torch.rand((2, 2, 3, 4, 4), generator=RNG)
    theirs = monai.DiceLoss(batch=True, smooth_nr=0, smooth_dr=1e-5)(p, t)
    assert batch_dice(p, t).item() == pytest.approx(theirs.item())
    mask = (torch.rand((2, 1, 4, 4), generator=RNG) > 0.5).float()
    theirs = monai.MaskedDiceLoss(batch=True, smooth_nr=0, smooth_dr=1e-5)(p, t, mask=mask)
    assert batch_dice(p, t, mask).item() == pytest.approx(theirs.item())


def test_the_supervised_loss_is_dice_and_cross_entropy_of_what_the_masks_tell_apart():
    marked, unmarked = torch.tensor([[[2]]]), torch.tensor([[[0]]])
    dice = (1 + 1 - 2 * 0.3 / (1.3 + 1e-5)) / 2  # of the union 1, of the spleen 1 - 2 p / (p + 1)
    assert marginal_loss(PIXEL, marked, SPLEEN).item() == pytest.approx(dice - math.log(0.3))
    dice = (1 + 1 - 2 * 0.7 / (1.7 + 1e-5)) / 2
    assert marginal_loss(PIXEL, unmarked, SPLEEN).item() == pytest.approx(dice - math.log(0.7))


def test_no_gradient_says_what_an_unmarked_pixel_is():
    logits = PIXEL.clone().requires_grad_()
    marginal_loss(logits, torch.tensor([[[0]]]), SPLEEN).backward()
    gradient = logits.grad.flatten()
    shares = gradient[[0, 1, 3]] / P[[0, 1, 3]]  # in proportion to what the model believes
    assert shares.tolist() == pytest.approx([shares[0].item()] * 3)
    assert gradient[2] > 0 > gradient[0]


def test_conditional_probabilities_leave_out_what_is_marked():
    found = conditional(PIXEL, SPLEEN, 1.0).flatten()
    assert found.tolist() == pytest.approx([0.1 / 0.7, 0.2 / 0.7, 0.4 / 0.7], rel=1e-4)
    warm = conditional(PIXEL, SPLEEN, 2.0).flatten() / conditional(PIXEL, SPLEEN, 2.0).sum()
    assert warm.tolist() == pytest.approx((P[[0, 1, 3]].sqrt() / P[[0, 1, 3]].sqrt().sum()).tolist(), rel=1e-4)


def test_distillation_follows_the_received_model_where_neither_it_nor_the_mask_says_a_marked_structure():
    own, received = torch.randn((2, 1, 4, 2, 2), generator=RNG)
    received[0, :, 0, 0] = torch.tensor([0.0, 0.0, 9.0, 0.0])  # the received model says spleen
    masks = torch.tensor([[[0, 2], [0, 0]]])
    found = conditional_distillation(own, received, masks, SPLEEN, 2.0)
    parts = [conditional(z, SPLEEN, 2.0)[:, :, 1] for z in (own, received)]  # the lower row alone
    assert found.item() == pytest.approx(batch_dice(*(p.unsqueeze(2) for p in parts)).item())
    other = received.clone()
    other[0, :, 0, 1] = 5.0
    assert conditional_distillation(own, other, masks, SPLEEN, 2.0).item() == pytest.approx(found.item())


def site_of(folder, shown):
    mask = np.zeros((8, 8, 4), dtype=np.uint8)
    mask[:4, :4], mask[5:, 5:] = 1, 2
    mask[np.isin(mask, [n for n, name in enumerate(CLASSES, 1) if name not in shown])] = 0
    make_volume_site(folder / "site", [mask], test=(), classes=CLASSES, annotated={"train": shown})
    data = load_volumes(load_card(folder / "site", "site-1"), CLASSES, Opening(folder / "cache", 32, CPU))
    card = load_card(folder / "site", "site-1")
    ledger = kind_of(card.kind).open_ledger(folder / "state" / "ledger.sqlite", card, data)
    return Site("site-1", CPU, data, ledger, StateStore(folder / "state"), 4)


class Trained:
    """A round of a method at a site, with what its distillation was called with."""

    def __init__(self, folder, monkeypatch, method, shown=("liver",), round_num=1):
        self.calls = []
        monkeypatch.setattr(condist, "conditional_distillation", self.note)
        self.model = build_network("unet_narrow", 3)
        task = RoundTask("train", round_num, 3, seed=7)
        self.round = method.start(self.model, task, site_of(folder, shown))
        self.loss = self.round.loss(torch.arange(4))

    def note(self, logits, received, masks, marked, temperature):
        self.calls.append((received.requires_grad, marked.tolist(), temperature, masks.unique().tolist()))
        return torch.tensor(8.0)


def test_the_weight_of_the_distillation_grows_with_the_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(condist, "marginal_loss", lambda *_: torch.tensor(1.0))
    method = ConDist(first_weight=0.25, last_weight=0.75, temperature=3.0)
    found = [Trained(tmp_path / str(r), monkeypatch, method, round_num=r) for r in range(3)]
    assert [trained.loss.item() for trained in found] == [1 + 8 * 0.25, 1 + 8 * 0.5, 1 + 8 * 0.75]
    assert found[0].calls == [(False, [True, False, False], 3.0, [0, 1])]


def test_distillation_is_about_what_the_masks_do_not_show_also_without_the_marginal_loss(tmp_path, monkeypatch):
    trained = Trained(tmp_path, monkeypatch, ConDist(marginal=False))
    assert trained.calls == [(False, [True, False, False], 2.0, [0, 1])]
    assert trained.round._weight == pytest.approx((0.01 + 1) / 2)


def test_a_site_that_marks_all_structures_and_a_method_without_weight_distil_nothing(tmp_path, monkeypatch):
    assert not Trained(tmp_path / "all", monkeypatch, ConDist(), shown=CLASSES).calls
    assert not Trained(tmp_path / "none", monkeypatch, ConDist(first_weight=0, last_weight=0)).calls


def test_without_the_marginal_loss_an_unmarked_structure_is_background(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(condist, "marginal_loss", lambda z, m, marked: seen.append(marked.tolist()) or z.mean())
    for number, marginal in enumerate((True, False)):
        Trained(tmp_path / str(number), monkeypatch, ConDist(marginal=marginal, first_weight=0, last_weight=0))
    assert seen == [[True, False, False], [True, True, True]]


# ---- pseudo-labels ---------------------------------------------------------------------------------------------------
def pixels(**structures):
    """(4, 32, 32) probabilities: of a structure in some rows as given, the others and background share the rest."""
    p = torch.full((4, 32, 32), 0.0)
    p[0] = 1
    for name, (row, value) in structures.items():
        p[:, row] = (1 - value) / 3
        p[1 + CLASSES.index(name), row] = value
    return p.clamp(1e-4)


def test_a_pseudo_label_is_told_apart_in_the_cross_entropy_and_in_the_union_for_the_rest():
    dice = (1 + 1 - 2 * 0.7 / (1.7 + 1e-5)) / 2
    found = marginal_loss(PIXEL, torch.tensor([[[3]]]), SPLEEN).item()
    assert found == pytest.approx(dice - math.log(0.4))


def test_unmarked_pixels_that_the_received_model_is_sure_of_are_marked_in_the_ledger(tmp_path):
    site, method = site_of(tmp_path, ("liver",)), ConDist(pseudo_label_round=2, pseudo_label_threshold=0.7)
    own = np.array(site.data.train.masks)
    assert own[:, 20].max() == 1 > own[:, 2].max()  # row 20 crosses the liver that the site has marked
    says = SaysStructures(pixels(liver=(1, 0.9), spleen=(2, 0.8), kidneys=(20, 0.9)))
    says.logits.data[:, 3] = torch.tensor([0.1, 0.1, 0.65, 0.15]).log()[:, None]  # not sure enough
    for round_num in (0, 2):
        method.start(says, RoundTask("train", round_num, 3, seed=7), site)
    assert not site.ledger.in_force()
    work = method.start(says, RoundTask("train", 1, 3, seed=7), site)
    expected = own.copy()
    expected[:, 2] = 2
    expected[:, 20][own[:, 20] == 0] = 3
    assert (work._target.numpy() == expected).all()
    assert not site.ledger.change()[own > 0].any()
    rows = site.ledger.history()
    assert len(rows) == 8
    assert {(r["class"], r["rule"], r["round"]) for r in rows} == {
        ("spleen voxels", "condist.pseudo_label", 1),
        ("kidneys voxels", "condist.pseudo_label", 1),
    }
    assert [round(r["confidence"], 3) for r in rows] == [0.8, 0.9] * 4
    method.start(says, RoundTask("train", 1, 3, seed=7), site)  # a round that is repeated
    assert len(site.ledger.in_force()) == 8


def test_without_the_option_and_with_all_structures_marked_nothing_is_repaired(tmp_path):
    says = SaysStructures(pixels(spleen=(2, 0.9)))
    for number, (method, shown) in enumerate([(ConDist(), ("liver",)), (ConDist(pseudo_label_round=1), CLASSES)]):
        site = site_of(tmp_path / str(number), shown)
        method.start(says, RoundTask("train", 0, 3, seed=7), site)
        assert not site.ledger.in_force()


def test_the_received_model_stays_as_it_was(tmp_path, monkeypatch):
    trained = Trained(tmp_path, monkeypatch, ConDist())
    before = {k: v.clone() for k, v in trained.round._received.state_dict().items()}
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.add_(1)
    trained.round.loss(torch.arange(4))
    assert all(torch.equal(before[k], v) for k, v in trained.round._received.state_dict().items())
    assert not trained.round._received.training
    assert isinstance(trained.model, nn.Module)
