import json
import shutil
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from factories import CLASSES, make_site_folder, refused
from torch import nn
from torch_factories import GroupNetwork, make_split, seeded
from worker_factories import Client, census_task, one_site

from fedmend.baselines.detection_rules import DetectionRules
from fedmend.basics.state import StateStore
from fedmend.data.augment import draw_views
from fedmend.errors import FedMendError
from fedmend.fields import Field
from fedmend.kinds.multilabel import MultiLabel
from fedmend.learning.inference import Stopped
from fedmend.learning.networks import NETWORKS, build_network
from fedmend.learning.patient_steps import PatientSteps, patients_of
from fedmend.messages import SiteResult
from fedmend.method import RoundTask
from fedmend.methods.baselines import FedAvg, FedAvgPL, FedAvgPLRound, FedProx, SingleLabelFedAvg, SingleLabelFedProx
from fedmend.methods.closed_form_sums import ClosedFormSums
from fedmend.methods.fedmlp import FedMLP
from fedmend.methods.fednoro import FedNoRo
from fedmend.methods.labelsets import LabelSetFedAvg
from fedmend.site import worker
from fedmend.site.privacy import FOLDER, OverBudget, Privacy
from fedmend.site.private_site import (
    WITHHELD,
    PrivateSite,
    check_bearable,
    check_withheld,
    of_sums,
    secret_views,
    withhold,
)

POLICY = Privacy(clip=1.0, noise_multiplier=1.0)
NO_NOISE = Privacy(clip=1.0, noise_multiplier=0.0)


class Work:
    """A round whose gradient for a patient is the mean of given rows, one per image."""

    def __init__(self, rows):
        self.rows = torch.tensor(rows, dtype=torch.float32)
        self.model = nn.Linear(self.rows.shape[1], 1, bias=False)

    def loss(self, index):
        return (self.model.weight[0] * self.rows[index].mean(0)).sum()


def step(rows, batch, privacy=NO_NOISE, *, patients=4, expected=2, seed=0):
    """The gradient that one step leaves."""
    work = Work(rows)
    units = [torch.tensor([i]) for i in range(patients)]
    steps = PatientSteps(privacy, units, expected, seeded(seed))
    losses = list(steps.losses(work, [torch.tensor(images) for images in batch]))
    return work.model.weight.grad[0], losses


# ---- one step -------------------------------------------------------------------------------------------------------
def test_the_gradient_of_each_patient_is_clipped_before_the_sum_by_hand():
    # (3, 4) has norm 5 and becomes (.6, .8); (0, .5) stays; the sum is divided by the 2 patients expected per step.
    gradient, losses = step([[3.0, 4.0], [0.0, 0.5]], [[0], [1]])
    np.testing.assert_allclose(gradient, [0.3, 0.65], rtol=1e-6)
    assert len(losses) == 2


def test_the_images_of_a_patient_are_clipped_together_not_one_by_one():
    # The mean of (6, 8) and (0, 0) is (3, 4): one patient brings (.6, .8), however many images.
    gradient, _ = step([[6.0, 8.0], [0.0, 0.0]], [[0, 1]])
    np.testing.assert_allclose(gradient, [0.3, 0.4], rtol=1e-6)


def test_the_sum_is_divided_by_the_expected_number_of_patients_not_by_the_number_drawn():
    one, _ = step([[0.5, 0.0]] * 3, [[0]])
    three, _ = step([[0.5, 0.0]] * 3, [[0], [1], [2]])
    np.testing.assert_allclose([one[0], three[0]], [0.25, 0.75])


def test_the_noise_has_the_standard_deviation_of_the_policy_by_hand():
    # noise_multiplier 2 times clip .5 over 4 expected patients: .25 in every coordinate, also without any patient.
    rows = [[0.0] * 100_000]
    noise, losses = step(rows, [], Privacy(clip=0.5, noise_multiplier=2.0), patients=8, expected=4)
    assert losses == []
    assert float(noise.std()) == pytest.approx(0.25, rel=0.02)
    assert abs(float(noise.mean())) < 5 * 0.25 / 100_000**0.5


def test_a_patient_whose_gradient_is_not_finite_counts_as_absent():
    gradient, losses = step([[np.nan, 1.0], [0.5, 0.0]], [[0], [1]])
    np.testing.assert_allclose(gradient, [0.25, 0.0])
    assert len(losses) == 1


def test_one_patient_less_moves_a_sum_of_thousands_by_no_more_than_the_clip():
    # From 65, in float32, each 2^-18 less would be lost; from 64, where the first patient leaves the sum, none would.
    rows = [[-1.0], *[[1.0]] * 65, *[[-(2.0**-18)]] * 4096]
    batch = [[i] for i in range(len(rows))]
    with_it, without = (step(rows, drawn, patients=1, expected=1)[0].item() for drawn in (batch, batch[1:]))
    assert with_it - without == pytest.approx(-1.0, abs=1e-5)


# ---- who is in a step -----------------------------------------------------------------------------------------------
def test_the_images_of_a_patient_are_one_unit_and_an_image_without_patient_is_one_by_itself():
    table = replace(make_split(np.ones((5, 1), dtype=np.int8)).table, patients=("b", "", "a", "b", ""))
    assert [unit.tolist() for unit in patients_of(table)] == [[0, 3], [1], [2], [4]]


def test_each_patient_is_drawn_by_itself_with_the_same_chance():
    steps = PatientSteps(POLICY, [torch.tensor([i]) for i in range(40)], 10, seeded(0))
    assert (steps.rate, steps.per_epoch) == (0.25, 4)
    drawn = [[int(i) for i in batch] for _ in range(500) for batch in steps.batches()]
    assert len(drawn) == 2000
    sizes = [len(batch) for batch in drawn]
    assert np.mean(sizes) == pytest.approx(10, abs=0.2)  # 40 * .25
    assert np.var(sizes) == pytest.approx(7.5, rel=0.1)  # 40 * .25 * .75: not always ten
    shares = np.bincount(np.concatenate(drawn), minlength=40) / 2000
    np.testing.assert_allclose(shares, 0.25, atol=0.05)


def test_a_patient_of_many_images_brings_at_most_a_batch_of_them():
    steps = PatientSteps(POLICY, [torch.arange(50)], 8, seeded(0))
    ((batch,),) = steps.batches()
    assert len(set(batch.tolist())) == 8


def test_a_batch_that_is_larger_than_the_site_draws_everybody():
    steps = PatientSteps(POLICY, [torch.tensor([i]) for i in range(3)], 100, seeded(0))
    assert (steps.rate, steps.per_epoch) == (1.0, 1)
    assert len(next(steps.batches())) == 3


# ---- a site ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def client(tmp_path):
    make_site_folder(tmp_path / "data", splits=("val", "test"))
    with one_site(GroupNetwork):
        yield lambda method=None, privacy=POLICY, **settings: private(tmp_path, method, privacy, settings)


def private(folder, method, privacy, settings):
    made = Client(folder, method or FedAvgPL(weighted=False), **settings)
    made.config = replace(made.config, privacy=privacy)
    return made


def received():
    return {name: value.numpy() for name, value in GroupNetwork(len(CLASSES)).state_dict().items()}


def train(site, round_num=0):
    return site.ask("train", RoundTask("train", round_num, 3, seed=7), received(), evaluate=True)


def test_the_census_of_a_private_site_tells_no_count_of_a_class_and_no_split_for_evaluation(client, caplog):
    with caplog.at_level("INFO", "fedmend.executor"):
        result = client().ask("census", census_task())
    assert result.census["annotated"].tolist() == [True, False, True]
    assert result.census["positives"].tolist() == [1, 0, 1]
    assert result.census["sizes"] == {"train": 6}
    none = {"epsilon": 0.0, "epsilon_rdp": 0.0}
    assert result.privacy == {**none, "delta": 1e-5, "clip": 1.0, "noise_multiplier": 1.0}
    assert "site-1: privacy: epsilon 0 (RDP), after this job " in caplog.text
    assert "(delta 1e-05, the unit is one patient, all jobs of this site so far)" in caplog.text


def test_a_private_site_keeps_its_images_on_a_gpu_like_any_other(client, monkeypatch):
    opened, positives = [], MultiLabel.positives
    monkeypatch.setattr(MultiLabel, "positives", lambda kind, data: opened.append(data) or positives(kind, data))
    monkeypatch.setattr(worker, "device_of", lambda name, gpu: torch.device("cuda"))
    monkeypatch.setattr(worker, "prepare", lambda device, gpu: None)
    monkeypatch.setattr(worker, "free_bytes", lambda device, gpu: 1e9)
    monkeypatch.setattr(worker, "with_resident_images", on_the_cpu)
    site = client()
    site.config = replace(site.config, memory_gb=10.0)
    assert site.ask("census", census_task()).error == ""
    assert [(data.train.resident.tolist(), dict(data.evaluation)) for data in opened] == [([7], {})]


def on_the_cpu(data, room):
    return replace(data, train=replace(data.train, resident=torch.tensor([7])))


def test_a_private_round_tells_noisy_weights_and_epsilon_and_nothing_else(client, caplog):
    with caplog.at_level("INFO", "fedmend.executor"):
        result = train(client())
    assert (result.error, result.samples, result.loss) == ("", 6, 0.0)
    assert (result.counts, result.report, result.repairs) == ({}, {}, {})
    assert set(result.weights) == set(received())
    assert result.privacy["epsilon"] > 0
    epsilon, rdp = result.privacy["epsilon"], result.privacy["epsilon_rdp"]
    said = f"site-1: privacy: epsilon {epsilon:.3g} (PRV; RDP {rdp:.3g}) with this round (delta 1e-05"
    assert said in caplog.text
    check_withheld(result, {}, weights=True)


def test_epsilon_adds_up_over_rounds_processes_and_repeated_rounds(client, tmp_path):
    site = client()
    first, second = train(site, 0), train(site, 1)
    site.start()
    again = train(site, 1)
    assert first.privacy["epsilon"] < second.privacy["epsilon"] < again.privacy["epsilon"]
    spent = json.loads((tmp_path / "state" / FOLDER / "site-1.json").read_text())["spent"]
    assert spent == [[1.0, 4 / 6, 6]]  # 6 images in batches of 4: 2 steps a round


def test_a_state_folder_that_is_put_back_as_a_whole_lacks_the_mark_that_the_server_knows(client, tmp_path):
    site = client()
    first = train(site, 0)
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    second = train(site, 1)
    assert len({first.ledger_mark, second.ledger_mark, ""}) == 3
    shutil.rmtree(tmp_path / "state")
    shutil.copytree(tmp_path / "copy", tmp_path / "state")
    site.start()
    answer = site.ask("census", replace(census_task(), ledger_mark=second.ledger_mark))
    assert "expected all repairs that this run has recorded, got a ledger without the latest" in answer.error
    assert site.ask("census", replace(census_task(), ledger_mark=first.ledger_mark)).error == ""


def test_the_steps_are_written_down_before_they_are_made(client, tmp_path):
    site = client()
    with pytest.raises(Stopped):
        site.ask("train", RoundTask("train", 0, 3), received(), stop=lambda: True)
    assert json.loads((tmp_path / "state" / FOLDER / "site-1.json").read_text())["spent"] == [[1.0, 4 / 6, 2]]


def test_nobody_who_knows_the_seed_can_repeat_the_noise(client):
    site = client()
    first = train(site)
    site.start()  # as after a kill
    second = train(site)
    assert not np.array_equal(first.weights["classifier.weight"], second.weights["classifier.weight"])


def test_what_adam_remembers_of_rounds_without_noise_does_not_move_a_round_with_it(client, tmp_path):
    site, steps = client(privacy=None, keep_moments=True), []
    for round_num, policy in enumerate([None, POLICY, POLICY]):
        site.config = replace(site.config, privacy=policy)
        assert train(site, round_num).error == ""
        kept = StateStore(tmp_path / "state" / "run-1" / "site-1").load(f"adam-{round_num}")["value"]
        steps.append(int(kept["state"][0]["step"]))
    assert steps == [2, 2, 4]  # two in each round


def test_a_site_trains_no_more_when_its_budget_is_spent(client):
    cost = train(client()).privacy["epsilon"]
    site = client(privacy=replace(POLICY, max_epsilon=1.01 * cost))
    words = "site-1: privacy: expected to stay within max_epsilon"
    for result in (train(site, 1), site.ask("census", census_task())):
        assert result.error.startswith(words)
        assert (result.weights, result.census, result.privacy) == ({}, {}, {})


class Seeing(SingleLabelFedAvg):
    """Notes the views of each round."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def start(self, model, task, site):
        work = super().start(model, task, site)
        work.batches(0)
        self.seen += [torch.cat([work.views, site.views(task, 2)])]
        return work


def test_nobody_who_knows_the_seed_knows_the_views_so_one_patient_more_changes_those_of_no_other(tmp_path):
    make_site_folder(tmp_path / "data", np.array([0, 1, 2, 0, 1, 2]))
    with one_site(GroupNetwork):
        for policy, different in ((POLICY, True), (None, False)):
            site = private(tmp_path, Seeing(), policy, {})
            assert train(site).error == ""
            site.start()
            assert train(site).error == ""
            first, second = site.method.seen
            assert first.shape == second.shape == (3, 6, 2, 3)
            assert bool((first != second).flatten(2).any(2).all()) is different


def test_secret_views_are_of_the_distribution_of_all_views():
    drawn, known = secret_views(20_000, 2, torch.Generator()), draw_views(20_000, 2, torch.Generator().manual_seed(0))
    assert (drawn.shape, drawn.dtype) == (known.shape, known.dtype)
    np.testing.assert_allclose(drawn.mean((0, 1)), known.mean((0, 1)), atol=0.03)
    np.testing.assert_allclose(drawn.std((0, 1)), known.std((0, 1)), atol=0.03)
    assert not (drawn[0] == drawn[1]).flatten(1).all(1).any()


# ---- what an error tells --------------------------------------------------------------------------------------------
FIXED = f"site-1: {WITHHELD}"


def evaluate(site):
    return site.ask("evaluate", RoundTask("evaluate", 3, 3, training=False), received(), evaluate=True)


def test_a_private_site_computes_nothing_of_its_patients_that_is_not_in_the_account(client, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(MultiLabel, "opinions", lambda *given: asked.append(given))
    assert (evaluate(client()).error, asked) == ("", [])
    assert not list((tmp_path / "state").rglob("opinions.pt"))


class Breaking(FedAvgPL):
    """Fails in one of two ways at the start of a round."""

    def __init__(self, error):
        super().__init__(weighted=False)
        self.error = error

    def start(self, model, task, site):
        raise self.error


@pytest.mark.parametrize(
    "error", [FedMendError("site-1: train.csv row 3: expected 1, got 2"), ValueError("img3"), OSError(5, "img3")]
)
def test_every_error_of_a_private_site_after_the_census_is_one_sentence_and_the_last(client, error, caplog):
    site = client(Breaking(error))
    assert site.ask("census", census_task()).error == ""
    assert train(site).error == FIXED
    assert type(error).__name__ in caplog.text or str(error) in caplog.text
    assert evaluate(site).error == FIXED  # which would have gone well: there is no second question
    assert site.ask("census", census_task()).error == ""
    assert evaluate(client()).error == ""  # another job


class LargeRound(FedAvgPLRound):
    """Every patient has a gradient that is finite and a loss of 2e38, of which two overflow a float32 sum."""

    def loss(self, index):
        return super().loss(index) + 2e38


class Large(FedAvgPL):
    ROUND = LargeRound


def test_a_sum_of_losses_that_overflows_with_one_patient_more_is_not_said(client):
    result = client(Large(weighted=False), batch_size=6).ask("train", RoundTask("train", 0, 3, seed=7), received())
    assert (result.error, result.loss, set(result.weights)) == ("", 0.0, set(received()))


def test_a_policy_that_changes_between_two_rounds_holds_from_the_next_one_on(client):
    site = client()
    train(site)
    site.config = replace(site.config, privacy=replace(POLICY, noise_multiplier=3.0))
    assert train(site, 1).privacy["noise_multiplier"] == 3.0


# ---- sums -----------------------------------------------------------------------------------------------------------
def keeper(folder, privacy=POLICY, patients=12, **options):
    return PrivateSite("site-1", privacy, folder, make_split(np.zeros((patients, 3), dtype=np.int8)), 4, **options)


def rows(*numbers):
    return [torch.tensor(row, dtype=torch.float64) for row in numbers]


def test_a_sum_shortens_rows_to_length_1_and_takes_one_that_is_not_finite_for_none(tmp_path, monkeypatch):
    monkeypatch.setattr(PrivateSite, "_spend", lambda *given: {"epsilon": 1.0})
    site = keeper(tmp_path, replace(POLICY, noise_multiplier=0.0))
    total = site.add_up(rows([0.3, 0.4], [3.0, 4.0], [float("nan"), 1.0], [float("inf"), 0.0], [1e200, 1e200]))
    assert total.tolist() == pytest.approx([0.3 + 0.6, 0.4 + 0.8])
    assert site.add_up(rows([float("nan"), 1.0])).tolist() == [0, 0]  # as long as with a patient that counts


def test_the_noise_of_a_sum_is_the_noise_multiplier_on_each_number_and_new_each_time(tmp_path):
    site = keeper(tmp_path, replace(POLICY, noise_multiplier=3.0), sums=True)
    first, second = (site.add_up(rows(np.zeros(4000))) for _ in range(2))
    for noise in (first, second):
        assert abs(noise.mean()) < 5 * 3 / 4000**0.5
        assert noise.std() == pytest.approx(3, rel=0.06)
    assert not np.array_equal(first, second)


def test_a_sum_is_written_down_before_its_rows_are_made(tmp_path):

    def stopped():
        raise Stopped
        yield

    site = keeper(tmp_path, sums=True)
    with pytest.raises(Stopped):
        site.add_up(stopped())
    assert json.loads((tmp_path / FOLDER / "site-1.json").read_text())["spent"] == [[1.0, 1.0, 1]]
    assert site.released() == {}


def test_a_job_of_sums_costs_one_step_on_all_patients_in_a_round_and_tells_so_once(tmp_path):
    site = keeper(tmp_path, sums=True)
    forecast = site.forecast(5, 2)[1]
    site.add_up(rows([1.0]))
    first = site.released()
    assert site.released() == {}
    site.add_up(rows([1.0]))
    second = site.released()
    assert 4.3 < first["epsilon"] < 4.45  # the Gaussian mechanism with noise 1 and delta 1e-5: 4.38
    assert second["epsilon"] > first["epsilon"]
    assert f"after this job {second['epsilon']:.3g} " in forecast


def test_a_sum_beyond_the_budget_is_refused_and_not_made(tmp_path):
    site = keeper(tmp_path, replace(POLICY, max_epsilon=1.0), sums=True)
    with pytest.raises(OverBudget, match=r"^site-1: privacy: expected to stay within max_epsilon 1 over all jobs"):
        site.add_up(rows([1.0]))
    assert site.released() == {}


def test_a_site_answers_with_sums_and_epsilon_and_each_answer_counts(client, tmp_path):
    site = client(ClosedFormSums())
    with patch.object(worker, "check_bearable"):
        answers = [site.ask("collect", RoundTask("sums", 0, 1, training=False), received()) for _ in range(2)]
    assert [a.error for a in answers] == ["", ""]
    assert set(answers[0].report) == set(ClosedFormSums.FIELDS)
    assert answers[0].ledger_mark != answers[1].ledger_mark  # a state_dir that is put back is noticed
    assert answers[0].privacy["epsilon"] < answers[1].privacy["epsilon"]
    check_withheld(answers[0], ClosedFormSums.FIELDS, weights=False)
    spent = json.loads((tmp_path / "state" / FOLDER / "site-1.json").read_text())["spent"]
    assert spent == [[1.0, 1.0, 2]]


def test_a_method_of_sums_needs_features_of_length_1_and_may_have_batchnorm_since_nothing_is_trained():
    check_bearable("site-1", ClosedFormSums(), "projected/resnet_narrow")
    with refused("job variable network: expected projected/NAME for sums with noise, got stages/resnet_narrow"):
        check_bearable("site-1", ClosedFormSums(), "stages/resnet_narrow")
    assert not of_sums(FedMLP())
    assert not of_sums(FedAvg())


# ---- what cannot bear it --------------------------------------------------------------------------------------------
REFUSED = (
    "site-1: local/fedmend.json, field privacy: expected a job of federated averaging in which patients count one by"
    " one (variant fedavg_private), or closed_form with its variant private, got {}"
)


@pytest.mark.parametrize(
    "method",
    [
        FedMLP(),
        FedAvg(),
        FedAvgPL(),
        FedProx(),
        SingleLabelFedAvg(la=True),
        FedNoRo(),
        LabelSetFedAvg(local_iterations=1),
        DetectionRules(la=False),
    ],
)
def test_a_method_whose_loss_or_report_uses_other_patients_is_refused(method):
    with refused(REFUSED.format(type(method).__name__)):
        check_bearable("site-1", method, "resnet18_gn")


def test_the_refusal_comes_in_the_census_before_anybody_trains(client):
    assert client(FedMLP()).ask("census", census_task()).error == REFUSED.format("FedMLP")


def test_decay_of_supervised_rows_is_refused_in_the_census_because_noise_gives_every_row_a_gradient(client):
    sentence = "expected a job with decay coupled or decoupled, got supervised, which noise turns into coupled"
    refusal = f"site-1: local/fedmend.json, field privacy: {sentence}"
    assert client(decay="supervised").ask("census", census_task()).error == refusal
    assert not client(decay="decoupled").ask("census", census_task()).error


def test_the_methods_that_can_bear_it_say_so():
    bears = [FedAvg(weighted=False), FedAvgPL(weighted=False), SingleLabelFedAvg(), SingleLabelFedProx()]
    assert all(method.patients_apart for method in bears)


@pytest.mark.parametrize("network", ["resnet18", "resnet_narrow", "densenet121"])
def test_a_network_with_batchnorm_is_refused_and_its_variant_with_groupnorm_is_not(network):
    with refused(
        f"site-1: local/fedmend.json, field privacy: expected a network with GroupNorm, e.g. {network}_gn, got"
        f" {network}, whose BatchNorm mixes patients"
    ):
        check_bearable("site-1", SingleLabelFedAvg(), network)
    check_bearable("site-1", SingleLabelFedAvg(), f"{network}_gn")


def test_a_network_with_dropout_is_refused_and_one_whose_dropout_is_off_is_not():
    def dropping(p):
        return lambda classes: nn.Sequential(nn.Dropout(p), nn.Linear(2, classes))

    sentence = "expected a network without dropout, got own, whose draws for one patient depend on the others"
    field = "site-1: local/fedmend.json, field privacy"
    with patch.dict(NETWORKS, {"own": dropping(0.1)}), refused(f"{field}: {sentence}"):
        check_bearable("site-1", SingleLabelFedAvg(), "own")
    with patch.dict(NETWORKS, {"own": dropping(0.0)}):
        check_bearable("site-1", SingleLabelFedAvg(), "own")


@pytest.mark.parametrize("network", [name for name in NETWORKS if name.endswith("_gn")])
def test_an_image_gets_the_same_logits_whoever_is_beside_it(network):
    model = build_network(network, 3)
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        together, alone = model(images)[1], model(images[:1])[1]
    torch.testing.assert_close(together[:1], alone, rtol=1e-4, atol=1e-4)
    norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert all(m.num_channels == 16 * m.num_groups for m in norms)
    assert not list(model.buffers())


def test_a_batch_of_groupnorm_has_no_gradient_from_one_image_to_another_but_batchnorm_has():
    for network, mixes in (("resnet_narrow_gn", False), ("resnet_narrow", True)):
        images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
        build_network(network, 3).train()(images)[1][0].sum().backward()
        assert bool(images.grad[1].abs().sum() > 0) is mixes


# ---- what stays -----------------------------------------------------------------------------------------------------
ABOUT = {"shape": (1,), "dtype": "float64", "low": -9.0, "high": 9.0, "meaning": "", "risk": ""}
FIELDS = {"x": Field(**ABOUT), "noisy": Field(**ABOUT, allowed_by="privacy")}


def full():
    counts = {"annotated": np.array([True, False]), "positives": np.array([7, 0]), "sizes": {"train": 9, "val": 3}}
    counts["data"] = {"train": "0" * 32, "val": "1" * 32}
    return SiteResult(
        site="site-1",
        samples=9,
        loss=0.5,
        report={"x": np.ones(1)},
        counts={"val": np.ones(1)},
        repairs={"positive": np.ones(1)},
        census={**counts, "kind": "multilabel", "phantom": False},
    )


@pytest.mark.parametrize("part", ["loss", "report", "counts", "repairs", "positives", "sizes", "data"])
def test_an_answer_that_tells_more_than_the_promise_allows_is_refused(part):
    kept = withhold(full(), FIELDS)
    check_withheld(kept, FIELDS, weights=False)
    if part in ("positives", "sizes", "data"):
        leaking = replace(kept, census={**kept.census, part: full().census[part]})
    else:
        leaking = replace(kept, **{part: getattr(full(), part)})
    with refused(f"site-1: privacy: expected {part} to stay at this site, got some"):
        check_withheld(leaking, FIELDS, weights=False)


def test_sums_with_noise_leave_with_the_promise_alone_and_nothing_else_of_a_report():
    reported = replace(full(), report={"x": np.ones(1), "noisy": np.ones(1)}, privacy={"epsilon": 1.0})
    kept = withhold(reported, FIELDS)
    assert set(kept.report) == {"noisy"}
    check_withheld(kept, FIELDS, weights=False)
    assert withhold(replace(reported, privacy={}), FIELDS).report == {}
    for leaking in (replace(kept, privacy={}), replace(kept, report=reported.report)):
        with refused("site-1: privacy: expected report to stay at this site, got some"):
            check_withheld(leaking, FIELDS, weights=False)


def test_weights_without_the_promise_are_refused():
    with refused("site-1: privacy: expected weights without noise to stay at this site, got some"):
        check_withheld(withhold(full(), FIELDS), FIELDS, weights=True)


@pytest.mark.parametrize(("slices", "unit"), [((), "image"), ((("a", "b"),) * 12, "study")])
def test_where_no_patients_are_named_the_unit_is_what_has_a_label(tmp_path, slices, unit):
    split = make_split(np.zeros((12, 3), dtype=np.int8))
    table = replace(split.table, patients=("",) * 12, slices=slices)
    site = PrivateSite("site-1", POLICY, tmp_path, replace(split, table=table), 4)
    assert f"the unit is one {unit}, all jobs" in site.forecast(1, 1)[1]


def test_every_epoch_of_a_round_is_in_the_account_and_in_what_is_forecast(tmp_path):
    site = PrivateSite("site-1", POLICY, tmp_path, make_split(np.zeros((12, 3), dtype=np.int8)), 4)
    forecast = site.forecast(2, 3)[1]
    for _ in range(3):
        told = site.spend(2)
    spent = json.loads((tmp_path / FOLDER / "site-1.json").read_text())["spent"]
    assert spent == [[1.0, pytest.approx(1 / 3), 3 * 2 * 3]]  # steps of an epoch, epochs, rounds
    assert f"after this job {told['epsilon']:.3g} " in forecast
