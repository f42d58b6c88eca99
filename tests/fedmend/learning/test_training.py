from collections.abc import Iterator

import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import (
    PlainMethod,
    PlainRound,
    SaysMasks,
    TinyNetwork,
    make_mask_site,
    make_site,
    make_split,
    make_task,
)

from fedmend.data.augment import draw_views
from fedmend.errors import FedMendError
from fedmend.learning.inference import Stopped, infer, infer_masks, mixed_precision
from fedmend.learning.training import LocalTrainer

LABELS = np.random.default_rng(0).integers(0, 2, (18, 2)).astype(np.int8)


def trainer(**options):
    return LocalTrainer(**({"learning_rate": 1e-2} | options))


def weights(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def equal(first, second):
    return all(torch.equal(first[k], second[k]) for k in second)


def start(site, model=None, *, round_type=PlainRound, **task):
    """A round at a site."""
    return round_type(PlainMethod(), model or TinyNetwork(2), make_task(**task), site)


def trained(folder, *, seed=7, **options):
    work = start(make_site(folder, LABELS), seed=seed)
    return trainer(**options).train(work), weights(work.model)


class ShiftLoss(PlainRound):
    """Loss = sum of the classifier's weights, so its gradient is 1 and Adam's first step is the learning rate."""

    def loss(self, index):
        return self.model.classifier.weight.sum()


class Recorder(PlainRound):
    def __init__(self, *args):
        super().__init__(*args)
        self.seen = []

    def loss(self, index):
        self.seen.append(index.tolist())
        return super().loss(index)


class FirstRowLoss(PlainRound):
    """Class 0 is all that the loss knows: like a site where class 1 is missing."""

    def loss(self, index):
        return self.model(self.site.data.train.view(index))[1][:, 0].sum()


@pytest.mark.parametrize(
    ("options", "got"),
    [
        ({"learning_rate": 0}, "0, 0.0005, 1"),
        ({"learning_rate": float("nan")}, "nan, 0.0005, 1"),
        ({"weight_decay": -1}, "0.01, -1, 1"),
        ({"local_epochs": 0}, "0.01, 0.0005, 0"),
    ],
)
def test_numbers_that_cannot_train_are_refused(options, got):
    with refused(f"job variables: expected learning_rate > 0, weight_decay >= 0 and local_epochs >= 1, got {got}"):
        trainer(**options)


def test_training_lowers_the_loss(tmp_path):
    site = make_site(tmp_path, LABELS)
    model = TinyNetwork(2)
    losses = [trainer().train(start(site, model, round_num=r)) for r in range(8)]
    assert losses[-1] < losses[0] - 0.05


def test_the_returned_loss_is_the_mean_over_the_batches_of_the_last_epoch(tmp_path):
    class Counting(PlainRound):
        calls = 0

        def loss(self, index):
            self.calls += 1
            return self.model.classifier.bias.sum() * 0 + self.calls

    site = make_site(tmp_path, LABELS, batch_size=6)
    assert trainer(local_epochs=2).train(start(site, round_type=Counting)) == 5.0  # mean of 4, 5, 6


def test_the_same_seed_trains_the_same_weights_whatever_the_global_random_state(tmp_path):
    loss, first = trained(tmp_path / "a", local_epochs=2)
    torch.manual_seed(1)
    again_loss, again = trained(tmp_path / "b", local_epochs=2)
    assert loss == again_loss
    assert equal(first, again)
    assert not equal(first, trained(tmp_path / "c", seed=8, local_epochs=2)[1])


def test_rounds_and_epochs_see_the_samples_in_other_orders(tmp_path):
    first, second = (start(make_site(tmp_path, LABELS), round_type=Recorder, round_num=r) for r in (0, 1))
    trainer(local_epochs=2).train(first)
    trainer().train(second)
    seen, half = first.seen + second.seen, len(second.seen)
    orders = [[n for batch in seen[i * half : (i + 1) * half] for n in batch] for i in range(3)]
    assert all(sorted(order) == list(range(18)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_each_round_starts_with_a_fresh_adam(tmp_path):
    site, model = make_site(tmp_path, LABELS, batch_size=18), TinyNetwork(2)
    for round_num in range(3):
        before = model.classifier.weight.detach().clone()
        trainer(weight_decay=0).train(start(site, model, round_type=ShiftLoss, round_num=round_num))
        assert torch.allclose(before - model.classifier.weight, torch.full((2, 12), 0.01), atol=1e-6)

    # With moments kept from an opposite round, the step would be far smaller.
    class Opposite(ShiftLoss):
        def loss(self, index):
            return -super().loss(index)

    before = model.classifier.weight.detach().clone()
    trainer(weight_decay=0).train(start(site, model, round_type=Opposite, round_num=3))
    assert torch.allclose(model.classifier.weight - before, torch.full((2, 12), 0.01), atol=1e-6)


def test_weight_decay_enters_the_gradient_before_adam(tmp_path):
    class NoLoss(PlainRound):
        def loss(self, index):
            return self.model.classifier.weight.sum() * 0

    model, site = TinyNetwork(2), make_site(tmp_path, LABELS, batch_size=18)
    before = model.classifier.weight.detach().clone()
    trainer(weight_decay=1e-2).train(start(site, model, round_type=NoLoss))
    step = before - model.classifier.weight  # Adam turns any gradient into one learning rate: L2 is coupled
    assert torch.allclose(step, 0.01 * before.sign(), atol=1e-4)


def test_training_stops_before_the_next_batch_when_asked(tmp_path):
    site, answers = make_site(tmp_path, LABELS), iter([False, False, True])
    site.stop = lambda: next(answers)
    recorder = start(site, round_type=Recorder)
    with pytest.raises(Stopped):
        trainer().train(recorder)
    assert len(recorder.seen) == 2


def test_inference_stops_before_the_next_batch_when_asked(tmp_path):
    seen, answers = [], iter([False, False, True])
    site, model = make_site(tmp_path, LABELS), TinyNetwork(2)
    site.stop = lambda: next(answers)
    model.register_forward_hook(lambda *_: seen.append(1))
    with pytest.raises(Stopped):
        infer(model, site.data.train, site)
    assert len(seen) == 2


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_loss_that_is_not_finite_is_refused(tmp_path, value):
    class Broken(PlainRound):
        def loss(self, index):
            return self.model.classifier.weight.sum() * 0 + float(value)

    with refused(f"site-1: round 2, local training: expected a finite loss, got {value}; lower learning_rate"):
        trainer().train(start(make_site(tmp_path, LABELS), round_type=Broken, round_num=2))


def test_batchnorm_learns_while_training_even_after_inference(tmp_path):
    model = TinyNetwork(2).eval()
    trainer().train(start(make_site(tmp_path, LABELS), model))
    assert model.training
    assert model.norm.num_batches_tracked == 5


def test_inference_gives_features_and_logits_of_every_sample_in_order(tmp_path):
    split, model = make_split(LABELS), TinyNetwork(2)
    model.eval()
    with torch.no_grad():
        features, logits = model(split.view(torch.arange(18)))
    for batch_size in (1, 5, 18, 100):
        f, z = infer(model, split, make_site(tmp_path, LABELS, batch_size=batch_size))
        assert torch.allclose(f, features, atol=1e-6)
        assert torch.allclose(z, logits, atol=1e-6)
    assert (f.dtype, z.dtype, z.requires_grad) == (torch.float32, torch.float32, False)


def test_inference_takes_as_many_samples_at_a_time_as_the_site_says(tmp_path):
    site, model, seen = make_site(tmp_path, LABELS, batch_size=4), TinyNetwork(2), []
    model.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    infer(model, site.data.train, site)
    site.inference_batch = 12
    infer(model, site.data.train, site)
    assert seen == [4, 4, 4, 4, 2, 12, 6]


@pytest.mark.parametrize(
    ("device", "wanted", "found"), [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)]
)
def test_only_a_gpu_computes_in_bfloat16_and_only_where_the_site_wants_it(tmp_path, monkeypatch, device, wanted, found):
    asked = []
    monkeypatch.setattr(torch, "autocast", lambda *words, enabled: asked.append((*words, enabled)))
    site = make_site(tmp_path, LABELS)
    site.device, site.autocast = torch.device(device), wanted
    mixed_precision(site)
    assert asked == [(device, torch.bfloat16, found)]


def test_inference_of_a_view_sees_the_view(tmp_path):
    site = make_site(tmp_path, LABELS, batch_size=7)
    split, model = make_split(LABELS), TinyNetwork(2).eval()
    matrices = draw_views(18, 1, torch.Generator().manual_seed(0))[0]
    with torch.no_grad():
        expected = model(split.view(torch.arange(18), matrices))[1]
    assert torch.allclose(infer(model, split, site, matrices)[1], expected, atol=1e-6)
    assert not torch.allclose(infer(model, split, site)[1], expected, atol=1e-3)


@pytest.mark.parametrize("mode", [True, False])
def test_inference_puts_the_mode_back_and_learns_nothing(tmp_path, mode):
    model = TinyNetwork(2).train(mode)
    before = weights(model)
    infer(model, make_split(LABELS), make_site(tmp_path, LABELS))
    assert model.training is mode
    assert equal(weights(model), before)


@pytest.mark.parametrize(
    ("samples", "sizes"), [(2, [2]), (3, [3]), (4, [4]), (5, [5]), (6, [4, 2]), (8, [4, 4]), (9, [4, 5])]
)
def test_no_batch_of_one_is_left_over(tmp_path, samples, sizes):
    site = make_site(tmp_path, LABELS[:samples], batch_size=4)
    batches = site.batches(torch.arange(samples))
    assert [len(b) for b in batches] == sizes
    assert torch.cat(batches).tolist() == list(range(samples))
    assert [len(b) for b in start(site).batches(0)] == sizes


def test_views_are_the_same_within_a_round_and_others_in_the_next(tmp_path):
    site = make_site(tmp_path / "a", LABELS)
    views = site.views(make_task(), 2)
    assert views.shape == (2, 18, 2, 3)
    assert torch.equal(make_site(tmp_path / "a", LABELS).views(make_task(), 2), views)
    assert not torch.equal(site.views(make_task(round_num=1), 2), views)
    assert not torch.equal(make_site(tmp_path / "b", LABELS, name="site-2").views(make_task(), 2), views)


# ---- moments that go on, and a hook after every step ----------------------------------------------------------------


class Pull(PlainRound):
    """Gradient of the classifier's weights: the numbers of ``pulls``, one per step."""

    pulls: Iterator[float]

    def loss(self, index):
        return self.model.classifier.weight.sum() * next(self.pulls)


def rounds_of(folder, pulls, rounds, **options):
    """How far each weight of the classifier moved, one full batch per round."""
    site, model = make_site(folder, LABELS, batch_size=18), TinyNetwork(2)
    before, pulls = model.classifier.weight.detach().clone(), iter(pulls)
    for r in rounds:
        work = start(site, model, round_type=Pull, round_num=r)
        work.pulls = pulls
        trainer(weight_decay=0, **options).train(work)
    moved = model.classifier.weight.detach() - before
    assert torch.allclose(moved, moved[:1, :1].expand_as(moved), atol=1e-6)
    return moved[0, 0].item()


def adam(pulls, second_momentum=0.999, rate=1e-2):
    """The same by Adam's formulas."""
    weight = first = second = 0.0
    for step, g in enumerate(pulls, 1):
        first, second = 0.9 * first + 0.1 * g, second_momentum * second + (1 - second_momentum) * g * g
        corrected = second / (1 - second_momentum**step)
        weight -= rate * first / (1 - 0.9**step) / (corrected**0.5 + 1e-8)
    return weight


@pytest.mark.parametrize("second_momentum", [0.99, 0.999, 0.0])
def test_the_second_momentum_reaches_adam(tmp_path, second_momentum):
    pulls = [1.0, 3.0]
    moved = rounds_of(tmp_path, pulls, [0], second_momentum=second_momentum, local_epochs=2)
    assert moved == pytest.approx(adam(pulls, second_momentum), rel=1e-4)


def test_the_second_momentum_is_adams_own_by_default(tmp_path):
    assert rounds_of(tmp_path, [1.0, 3.0], [0], local_epochs=2) == pytest.approx(adam([1.0, 3.0], 0.999), rel=1e-4)


@pytest.mark.parametrize("value", [1.0, -0.1, float("nan")])
def test_a_second_momentum_that_is_none_is_refused(value):
    with refused(f"job variable second_momentum: expected 0 to below 1, got {value}"):
        trainer(second_momentum=value)


def test_the_learning_rate_decays_from_round_to_round(tmp_path):
    moved = rounds_of(tmp_path, [1.0, 3.0, 1.0, 3.0], [0, 2], learning_rate_decay=0.5, local_epochs=2)
    assert moved == pytest.approx((1 + 0.5**2) * adam([1.0, 3.0]), rel=1e-4)


@pytest.mark.parametrize("value", [0.0, 1.01, float("nan")])
def test_a_learning_rate_that_vanishes_or_grows_is_refused(value):
    with refused(f"job variable learning_rate_decay: expected above 0 to 1, got {value}"):
        trainer(learning_rate_decay=value)


def test_kept_moments_make_rounds_of_one_optimiser(tmp_path):
    pulls = [1.0, -2.0, 3.0]
    assert rounds_of(tmp_path / "kept", pulls, [0, 1, 2], keep_moments=True) == pytest.approx(adam(pulls), rel=1e-4)
    fresh = sum(adam([g]) for g in pulls)
    assert rounds_of(tmp_path / "fresh", pulls, [0, 1, 2]) == pytest.approx(fresh, rel=1e-4)


def test_kept_moments_train_as_one_optimiser_of_torch_on_real_gradients(tmp_path):
    site, model, twin = make_site(tmp_path, LABELS), TinyNetwork(2), TinyNetwork(2).train()
    optimizer = torch.optim.Adam(twin.parameters(), lr=1e-2, betas=(0.9, 0.99), weight_decay=5e-4)
    for r in range(3):
        trainer(keep_moments=True, second_momentum=0.99).train(start(site, model, round_num=r))
        work = start(site, twin, round_num=r)
        for index in work.batches(0):
            optimizer.zero_grad()
            work.loss(index).backward()
            optimizer.step()
    assert all(torch.allclose(v, twin.state_dict()[k], atol=1e-5) for k, v in model.state_dict().items())


def test_a_repeated_round_starts_from_the_moments_of_the_round_before_it(tmp_path):
    site, state = make_site(tmp_path, LABELS), []
    for r in (0, 1, 1):
        work = start(site, round_num=r)
        trainer(keep_moments=True).train(work)
        state.append(weights(work.model))
    assert equal(state[2], state[1])


def test_a_site_that_missed_a_round_starts_with_a_fresh_adam(tmp_path):
    pulls = [1.0, -2.0]
    for number, rounds in enumerate([(0, 2), (0, 3), (4, 1)]):
        moved = rounds_of(tmp_path / str(number), pulls, rounds, keep_moments=True)
        assert moved == pytest.approx(adam([1.0]) + adam([-2.0]), abs=1e-6)


def test_moments_that_an_earlier_run_with_another_seed_left_do_not_count(tmp_path):
    fresh, later = make_site(tmp_path / "fresh", LABELS), make_site(tmp_path / "later", LABELS)
    trainer(keep_moments=True).train(start(later, round_num=0, seed=8))
    found = [start(site, round_num=1) for site in (fresh, later)]
    for work in found:
        trainer(keep_moments=True).train(work)
    assert equal(*(weights(work.model) for work in found))


def test_moments_are_kept_on_disk_for_another_process_and_only_when_asked(tmp_path):
    for keep in (False, True):
        site = make_site(tmp_path / str(keep), LABELS)
        trainer(keep_moments=keep).train(start(site))
        assert sorted(f.name for f in (tmp_path / str(keep) / "state").iterdir()) == (["adam-0.pt"] if keep else [])


def test_a_round_that_failed_leaves_no_moments(tmp_path):
    site = make_site(tmp_path, LABELS, batch_size=18)
    work = start(site, round_type=Pull)
    work.pulls = iter([float("nan")])
    with pytest.raises(FedMendError, match="finite loss"):
        trainer(keep_moments=True).train(work)
    assert site.state.load("adam-0") is None


def test_after_step_is_called_once_behind_every_step_with_the_moved_model(tmp_path):
    seen = []

    class Hooked(ShiftLoss):
        def after_step(self):
            assert self.model.training
            seen.append((self.task.round_num, self.site.name, self.model.classifier.weight.sum().item()))

    site, model = make_site(tmp_path, LABELS, batch_size=6), TinyNetwork(2)
    before = model.classifier.weight.sum().item()
    trainer(local_epochs=2, weight_decay=0).train(start(site, model, round_type=Hooked, round_num=2))
    assert [s[:2] for s in seen] == [(2, "site-1")] * 6
    fallen = np.array([before - s[2] for s in seen])
    assert fallen == pytest.approx(24 * 0.01 * np.arange(1, 7), rel=1e-3)  # 24 weights, one learning rate each


PROBABILITIES = np.random.default_rng(0).random((5, 8, 8))


def test_masks_are_inferred_slice_by_slice_in_eval_mode(tmp_path):
    site = make_mask_site(tmp_path, np.zeros((5, 8, 8)), batch_size=2)
    model = SaysMasks(PROBABILITIES).train()
    batches = list(infer_masks(model, site.data.train, site))
    assert [index.tolist() for index, _ in batches] == [[0, 1], [2, 3], [4]]
    found = np.concatenate([probability for _, probability in batches])
    assert (found.shape, found.dtype) == ((5, 8, 8), np.float32)
    assert found == pytest.approx(PROBABILITIES, abs=1e-6)
    assert model.calls == [(False, [0, 1]), (False, [2, 3]), (False, [4])]
    assert model.training


def test_the_mode_of_a_model_is_put_back_when_nobody_asks_for_the_rest_of_the_masks(tmp_path):
    site = make_mask_site(tmp_path, np.zeros((5, 8, 8)), batch_size=2)
    model = SaysMasks(PROBABILITIES).train()
    batches = infer_masks(model, site.data.train, site)
    next(batches)
    assert torch.is_grad_enabled()  # between two batches
    batches.close()
    assert model.training


def test_the_inference_of_masks_stops_between_two_batches(tmp_path):
    site = make_mask_site(tmp_path, np.zeros((5, 8, 8)), batch_size=2)
    model = SaysMasks(PROBABILITIES).train()
    site.stop = lambda: len(model.calls) == 2
    with pytest.raises(Stopped):
        list(infer_masks(model, site.data.train, site))
    assert len(model.calls) == 2
    assert model.training


def rows_after_a_step(folder, **options):
    """Weights and biases of the classifier before and after one step whose loss knows class 0 only."""
    site, model = make_site(folder, LABELS, batch_size=18), TinyNetwork(2)
    classifier = [v.detach().clone() for v in model.classifier.parameters()]
    trainer(**options).train(start(site, model, round_type=FirstRowLoss))
    return classifier, [v.detach() for v in model.classifier.parameters()]


def test_coupled_decay_moves_the_row_of_a_class_without_labels_by_the_whole_learning_rate(tmp_path):
    (before, _), (after, _) = rows_after_a_step(tmp_path, weight_decay=5e-4)
    torch.testing.assert_close(after[1], before[1] - 1e-2 * before[1].sign(), atol=2e-4, rtol=0)


def test_decay_of_supervised_rows_leaves_the_row_of_a_class_without_labels_as_it_is(tmp_path):
    before, after = rows_after_a_step(tmp_path, weight_decay=0.1, decay="supervised")
    for old, new, coupled in zip(before, after, rows_after_a_step(tmp_path, weight_decay=0.1)[1], strict=True):
        assert torch.equal(new[1], old[1])
        assert torch.equal(new[0], coupled[0])
        assert not torch.equal(new[0], old[0])


def test_decoupled_decay_shrinks_a_row_without_a_gradient_by_learning_rate_times_coefficient(tmp_path):
    (before, _), (after, _) = rows_after_a_step(tmp_path, weight_decay=0.5, decay="decoupled")
    torch.testing.assert_close(after[1], before[1] * (1 - 1e-2 * 0.5))


def test_an_unknown_kind_of_decay_is_refused():
    with refused("job variable decay: expected one of ['coupled', 'supervised', 'decoupled'], got 'none'"):
        trainer(decay="none")
