"""A tiny package at a tiny hospital: trained on there, and beside the hospital's own model."""

import json
import socket
from dataclasses import replace
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from factories import CLASSES, make_site_folder, refused
from nifti_factories import lesion, make_volume_site
from result_factories import PREPARED
from torch_factories import TinyNetwork, make_mask_split, make_split

from fedmend.basics.state import StateStore
from fedmend.data.card import load_card
from fedmend.data.site import Opening
from fedmend.data.tables import write_table
from fedmend.kinds import kind_of
from fedmend.learning import networks
from fedmend.learning.discriminant import solve_heads
from fedmend.learning.local_norm import NORM
from fedmend.learning.training import LocalTrainer
from fedmend.learning.weights import get_weights
from fedmend.methods import condist
from fedmend.package import Package
from fedmend.package.model_card import write_card
from fedmend.records.package_files import write_package
from fedmend.repairs.label_ledger import Repairs
from fedmend.repairs.site_run import LEDGER_NAME, save_opened
from fedmend.worth import page as page_module
from fedmend.worth import paired
from fedmend.worth.home import open_home
from fedmend.worth.page import sentences, worth
from fedmend.worth.paired import Difference, _metrics, compare, units_of
from fedmend.worth.personal import personalise, write_personal
from fedmend.worth.training import PATIENCE, plan_of, train_at
from fl_components.cli import main

LABELS = np.array([[1, 0, -1], [0, 1, -1], [1, 1, -1], [0, 0, -1], [1, 0, -1], [0, 1, -1]])
SETTINGS = {"learning_rate": 1.0, "num_rounds": 3, "local_epochs": 2, "seed": 5, "batch_size": 4}
WINDOWLESS = replace(PREPARED, window=None)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(paired, "RESAMPLES", 100)
    with patch.dict(networks.NETWORKS, {"tiny": TinyNetwork}):
        yield


def make_package(folder, **changed):
    about = {
        "name": "run-1",
        "model": "final",
        "round": 3,
        "parent": None,
        "phantom": True,
        "kind": "multilabel",
        "classes": list(CLASSES),
        "network": {"name": "tiny", "arguments": {"num_classes": 3}},
        "preprocessing": WINDOWLESS.of_package("multilabel"),
        "thresholds": {},
        "provenance": {"run_name": "run-1", "settings": SETTINGS},
    }
    weights = {k: v.numpy() for k, v in get_weights(TinyNetwork(3)).items()}
    write_package(folder / "run-1.fedmend", {**about, **changed}, weights)
    return Package(folder / "run-1.fedmend")


@pytest.fixture
def site(tmp_path):
    make_site_folder(tmp_path / "site-1", LABELS, splits=("val", "test"))
    return tmp_path / "site-1"


def home_of(tmp_path, package, folder, state=None):
    return open_home(package, folder, state, work=tmp_path / "work", batch_size=4, device="cpu")


def make_state(tmp_path, site):
    """The state of a run in which the third class of the first two samples was repaired."""
    state, card = tmp_path / "state" / "run-1" / "site-1", load_card(site, "site-1")
    opening = Opening(tmp_path / "cache", 32, torch.device("cpu"))
    kind = kind_of(card.kind)
    data = kind.load(card, CLASSES, opening)
    save_opened(StateStore(state), card, CLASSES, opening, data.train)
    ledger, old = kind.open_ledger(state / LEDGER_NAME, card, data), data.train.labels
    where, sure = (np.array([0, 1]), np.array([2, 2])), np.array([0.9, 0.9])
    ledger.record("rule", 0, old, Repairs(*where, np.array([1, 0]), sure))
    return state


def weights_of(model):
    return {name: value.clone() for name, value in get_weights(model).items()}


# ---- training on ----------------------------------------------------------------------------------------------------
def test_a_package_trained_on_without_a_network_is_the_child_of_the_given_one(tmp_path, site, monkeypatch):
    def connect(*_):
        raise AssertionError("nothing may be asked for")

    monkeypatch.setattr(socket.socket, "connect", connect)
    package = make_package(tmp_path)
    home = home_of(tmp_path, package, site)
    trained = personalise(package, home)
    out = write_personal(tmp_path / "own.fedmend", package, home, trained, layers="all")
    own = Package(out)
    assert trained.chosen > 0
    assert trained.values[trained.chosen] == max(trained.values) > trained.values[0]
    assert own.info["parent"] == {
        "name": "run-1",
        "model": "final",
        "round": 3,
        "parent": None,
        "digest": package.digest,
    }
    assert own.info["provenance"]["personalised"]["chosen_epoch"] == trained.chosen
    assert own.info["provenance"]["personalised"]["chosen_on"] == "auc of the site's val split"
    assert own.info["metrics"]["val"]["auc"] == trained.values[trained.chosen]
    assert own.not_fitted == (*["1 to 4 positives, 10 needed"] * 2, "0 positives, 10 needed")  # six validation images
    assert own.thresholds == (0.5, 0.5, 0.5)
    assert own.preprocessing == package.preprocessing
    assert not torch.equal(own.network().classifier.weight, package.network().classifier.weight)
    assert torch.equal(own.network().classifier.weight, trained.model.classifier.weight)
    card = json.loads(write_card(own, tmp_path / "card")[0].read_text())
    assert card["metrics"]["val"]["auc"]["value"] == trained.values[trained.chosen]
    assert write_personal(out, package, home, trained, layers="head") == out  # again
    with refused(f"--out: expected a new folder, {package.folder} has the model of a run, which would be lost"):
        write_personal(package.folder, package, home, trained, layers="all")


def test_a_training_that_validation_finds_no_better_ends_early_and_leaves_the_model_as_it_came(tmp_path, site):
    images = [f"img{i}.png" for i in range(len(LABELS))]
    package = make_package(tmp_path)
    with torch.no_grad():
        best = home_of(tmp_path, package, site)
        given = package.network()(best.site.data.train.view(torch.arange(6)))[1].numpy()
    write_table(site / "val.csv", images, (given > np.median(given, 0)).astype(int), CLASSES)  # the model is perfect
    trained = personalise(package, home_of(tmp_path / "again", package, site))
    assert (trained.chosen, trained.values[0], trained.epochs) == (0, 1.0, PATIENCE)
    wanted = weights_of(package.network())
    assert all(torch.equal(value, wanted[name]) for name, value in get_weights(trained.model).items())


def test_of_the_head_alone_everything_else_stays_as_it_was(tmp_path, site):
    package = make_package(tmp_path)
    home = home_of(tmp_path, package, site)
    plan, wanted = plan_of(SETTINGS, "run-1", home), weights_of(package.network())
    trained = train_at(home, package.network(), plan, layers="head", from_start=True)
    changed = {name for name, value in get_weights(trained.model).items() if not torch.equal(value, wanted[name])}
    assert trained.chosen > 0
    assert changed == {"classifier.weight", "classifier.bias"}


def rates(plan, epochs):
    return [plan.trainer_of(epoch).learning_rate for epoch in range(epochs)]


def test_the_learning_rate_decays_with_each_round_of_the_run(tmp_path, site, monkeypatch):
    package = make_package(tmp_path)
    home, settings, used = home_of(tmp_path, package, site), SETTINGS | {"learning_rate_decay": 0.5}, []
    plan = plan_of(settings, "run-1", home)
    assert (plan.epochs, rates(plan, 6)) == (6, [1.0, 1.0, 0.5, 0.5, 0.25, 0.25])
    assert rates(plan_of(settings, "run-1", home, epochs=3, rate=0.3), 3) == [0.3, 0.3, 0.15]
    inner = LocalTrainer._optimizer

    def optimizer(*given, **how):
        made = inner(*given, **how)
        used.append(made.param_groups[0]["lr"])
        return made

    monkeypatch.setattr(LocalTrainer, "_optimizer", optimizer)
    train_at(home, package.network(), plan, from_start=True)
    assert used == rates(plan, 6)


def test_rounds_of_optimiser_steps_are_as_many_samples_of_the_hospital(tmp_path, site):
    home = home_of(tmp_path, make_package(tmp_path), site)  # 6 samples, batches of 4
    settings = {"learning_rate": 1.0, "learning_rate_decay": 0.5, "num_rounds": 5, "local_iterations": 3, "seed": 5}
    plan = plan_of(settings, "run-1", home)
    assert (plan.epochs, plan.per_round) == (5 * 3 * 4 / 6, 2.0)
    assert rates(plan, 5) == [1.0, 1.0, 0.5, 0.5, 0.25]
    assert plan_of(settings | {"num_rounds": 1, "local_iterations": 1}, "run-1", home).epochs == 1  # 4 of 6 samples
    with refused(
        "package run-1, provenance.settings: expected learning_rate, num_rounds and seed of its run, got others"
    ):
        plan_of({"learning_rate": 1.0, "local_iterations": 3}, "run-1", home)


def test_classes_are_balanced_where_the_run_balanced_them(tmp_path, site):
    home = home_of(tmp_path, make_package(tmp_path), site)
    weighted = [plan_of(SETTINGS | told, "run-1", home).method.weighted for told in ({}, {"weighted": False})]
    single = replace(home, kind=kind_of("singlelabel"))
    adjusted = [plan_of(SETTINGS | told, "run-1", single).method.la for told in ({}, {"la": True})]
    assert (weighted, adjusted) == ([True, False], [False, True])


def test_the_repairs_of_the_ledger_are_what_is_learnt(tmp_path, site):
    package, state = make_package(tmp_path), make_state(tmp_path, site)
    home = home_of(tmp_path, package, None, state)
    assert home.repaired == 2
    assert home.site.labels()[:, 2].tolist() == [1, 0, -1, -1, -1, -1]
    assert home.site.data.annotated.tolist() == [True, True, True]
    plain = home_of(tmp_path / "other", package, site)
    assert (plain.repaired, plain.site.data.annotated.tolist()) == (0, [True, True, False])


def test_a_package_whose_normalisation_stayed_at_the_sites_takes_that_of_this_site(tmp_path, site):
    package = make_package(tmp_path, norm="local")
    with refused(
        "package run-1.fedmend: expected the state of its run at this site (--state or --kit), where its normalisation"
        " layers are, found none of this model"
    ):
        personalise(package, home_of(tmp_path, package, site))
    state = make_state(tmp_path, site)
    kept = {"norm.running_mean": torch.full((12,), 0.25)}
    StateStore(state).save_turn(NORM, 2, {"seed": 5, "weights": kept})
    trained = personalise(package, home_of(tmp_path, package, site, state), layers="head")
    assert trained.model.norm.running_mean.tolist() == [0.25] * 12


def test_a_site_that_prepares_images_otherwise_or_cannot_choose_is_refused(tmp_path, site):
    package = make_package(tmp_path, preprocessing=PREPARED.of_package("multilabel"))
    with refused("site-1: site.json, field window: expected (40.0, 80.0) as in package run-1, got None"):
        home_of(tmp_path, package, site)
    package = make_package(tmp_path, preprocessing=replace(WINDOWLESS, modality="CT").of_package("multilabel"))
    card = json.loads((site / "site.json").read_text())
    (site / "site.json").write_text(json.dumps({**card, "modality": "MR"}))
    with refused("site-1: site.json, field modality: expected CT, as the package, got MR"):
        home_of(tmp_path, package, site)
    (site / "site.json").write_text(json.dumps(card))
    package = make_package(tmp_path)
    (site / "val.csv").write_text((site / "val.csv").read_text().splitlines()[0] + "\nimg0.png,0,0,0\n")
    with refused("site-1: val.csv: expected samples that auc can be measured on, got others"):
        personalise(package, home_of(tmp_path, package, site))
    del card["splits"]["val"]
    (site / "site.json").write_text(json.dumps(card))
    with refused("site-1: site.json, field splits: expected val, which ends the training, got none"):
        personalise(package, home_of(tmp_path, package, site))


# ---- side by side ---------------------------------------------------------------------------------------------------
def test_the_page_compares_on_the_test_split_which_chose_nothing_and_recommends_no_model(tmp_path, site, monkeypatch):
    compared = []
    monkeypatch.setattr(
        page_module,
        "compare",
        lambda kind, models, split, site: compared.append(split.file) or compare(kind, models, split, site),
    )
    package = make_package(tmp_path)
    found = worth(package, home_of(tmp_path, package, site), tmp_path / "out")
    numbers = json.loads((tmp_path / "out" / "worth.json").read_text())
    text = (tmp_path / "out" / "worth.html").read_text()
    assert "chosen by AUC on validation" in text
    assert compared == ["test.csv"]
    assert numbers["split"] == "test"
    assert list(numbers["metrics"]) == ["alone", "federated", "personalised"]
    assert numbers["metrics"]["federated"]["auc"][0] == found.compared.metrics["federated"]["auc"][0]
    assert [(d["first"], d["second"]) for d in numbers["differences"]] == [
        ("federated", "alone"),
        ("personalised", "alone"),
        ("personalised", "federated"),
    ]
    assert "The page recommends no model" in text
    assert f"Nobody has labelled {CLASSES[2]} here: training on may forget them" in text
    assert "PHANTOM" in text
    assert "recommended" not in text
    assert Package(tmp_path / "out" / "run-1-personal.fedmend").info["parent"]["name"] == "run-1"


def test_the_hospital_alone_trains_as_long_as_in_the_run_from_the_runs_own_seed(tmp_path, site):
    package = make_package(tmp_path)
    found = worth(package, home_of(tmp_path, package, site), tmp_path / "out")
    assert found.alone.epochs == 3 * 2
    assert found.alone.chosen > 0  # an untrained model is never chosen


def test_against_heads_that_a_federation_solved_the_hospital_alone_solves_its_own(tmp_path, site):
    settings = {**SETTINGS, "ridge": 2.0, "la": True, "weights": "efficientnet-lite0"}
    package = make_package(tmp_path, provenance={"run_name": "run-1", "trains": False, "settings": settings})
    home = home_of(tmp_path, package, site)
    found = worth(package, home, tmp_path / "out", epochs=1)
    features = package.network()(home.site.data.train.view(torch.arange(len(LABELS))))[0].detach()
    heads = solve_heads(features, LABELS, 2.0, balanced=True)
    own = found.alone.model
    assert heads.counts.tolist() == [3, 3, 0]
    assert own.classifier.weight.detach().numpy() == pytest.approx(heads.weights.astype(np.float32), abs=1e-6)
    assert own.classifier.bias.detach().numpy() == pytest.approx(heads.biases.astype(np.float32), abs=1e-6)
    assert torch.equal(own.norm.running_mean, package.network().norm.running_mean)
    said = (tmp_path / "out" / "worth.html").read_text()
    assert "alone: heads solved here, from this hospital" in said
    assert "epoch 0 of 0" not in said
    assert "did not have" not in said  # the network of both is that of the package
    with refused("--weights: expected none for a package of heads, whose network was not trained, got a file"):
        worth(package, home, tmp_path / "out", weights="start.pt")


def test_a_test_split_of_one_patient_is_refused_before_anything_is_trained(tmp_path, site, monkeypatch):
    package = make_package(tmp_path)
    with open(site / "test.csv", newline="") as stream:
        lines = stream.read().splitlines()
    (site / "test.csv").write_text("\n".join(lines[:2]) + "\n")
    monkeypatch.setattr(page_module, "train_at", None)
    with refused("site-1: test.csv: expected at least 2 patients to compare models on, got 1"):
        worth(package, home_of(tmp_path, package, site), tmp_path / "out")


def test_without_a_test_split_there_is_no_page(tmp_path, site):
    card = json.loads((site / "site.json").read_text())
    del card["splits"]["test"]
    (site / "site.json").write_text(json.dumps(card))
    package = make_package(tmp_path)
    with refused("site-1: site.json, field splits: expected test to compare models on, got none"):
        worth(package, home_of(tmp_path, package, site), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ((0.02, 0.01, 0.03), "higher"),
        ((-0.02, -0.03, -0.01), "lower"),
        ((0.02, -0.01, 0.03), "not certain"),
        ((0.01, -0.03, -0.01), "not certain"),
    ],
)
def test_a_lead_is_certain_only_on_the_side_on_which_its_interval_is(found, verdict):
    (line,) = sentences([Difference("personalised", "federated", {"auc": found})], "auc")
    assert line.endswith(f", {verdict}")


def test_two_models_that_are_one_differ_by_nothing(tmp_path, site):
    package = make_package(tmp_path)
    home, model = home_of(tmp_path, package, site), package.network()
    found = compare(home.kind, {"a": model, "b": model}, home.site.data.evaluation["test"], home.site)
    assert found.differences[0].metrics["auc"] == (0.0, 0.0, 0.0)
    value, low, high = found.metrics["a"]["auc"]
    assert low <= value <= high


def test_patients_are_drawn_whole_which_makes_intervals_wider(tmp_path, site):
    home = home_of(tmp_path, make_package(tmp_path), site)
    rng = np.random.default_rng(0)
    labels = np.repeat(rng.integers(0, 2, (12, 3)), 10, axis=0)
    split = make_split(labels, size=32)
    split.images[:] = split.images[::10].repeat(10, axis=0)  # ten slices of a patient that are alike
    patients = tuple(f"p{i // 10}" for i in range(120))
    known = replace(split, table=replace(split.table, patients=patients))

    def width(given):
        found = compare(home.kind, {"a": TinyNetwork(3), "b": TinyNetwork(3, seed=1)}, given, home.site)
        low, high = found.differences[0].metrics["auc"][1:]
        return high - low, found.units, found.by_patient

    (narrow, units, by_sample), (wide, patients, by_patient) = width(split), width(known)
    assert (units, by_sample, patients, by_patient) == (120, False, 12, True)
    assert wide > 1.5 * narrow


def test_a_volume_that_is_drawn_twice_counts_twice(tmp_path):
    masks = np.zeros((4, 8, 8), dtype=np.uint8)
    masks[0, 0, 0] = masks[2, 0, :4] = 1
    split = make_mask_split(tmp_path, masks, volumes=2)
    assert units_of(split)[0].tolist() == [0, 0, 1, 1]
    answers = np.array([[[1, 1, 1]], [[0, 0, 0]], [[2, 2, 4]], [[0, 0, 0]]])  # hits, predicted, true: Dice 1, 2*2/(2+4)
    found = _metrics(kind_of("segmentation"), answers, split, np.array([0, 1, 0, 1, 2, 3]))
    assert found["volume_dice"] == pytest.approx((1 + 1 + 2 / 3) / 3)


def test_a_model_that_never_marks_a_structure_has_no_mean_precision(tmp_path):
    masks = np.zeros((4, 8, 8), dtype=np.uint8)
    masks[0, 0, 0], masks[2, 0, :4] = 1, 2
    split = replace(make_mask_split(tmp_path, masks, volumes=2), annotated=(True, True))
    one, none = [1, 1, 1], [0, 0, 0]  # hits, predicted, true
    rows, kind = np.arange(4), kind_of("segmentation")
    half = np.array([[one, none], [none, none], [none, [0, 0, 4]], [none, none]])
    found = _metrics(kind, half, split, rows)
    assert (found["precision"], found["recall"]) == (None, 0.5)
    both = np.array([[one, none], [none, none], [none, [2, 4, 4]], [none, none]])
    assert _metrics(kind, both, split, rows)["precision"] == 0.75


# ---- the commands ---------------------------------------------------------------------------------------------------
def test_both_commands_say_what_they_found_and_wrote(tmp_path, site, capsys):
    package = str(make_package(tmp_path).folder)
    make_state(tmp_path, site)
    state = ["--state", str(tmp_path / "state"), "--device", "cpu"]
    assert main(["personalise", package, str(site), "--out", str(tmp_path / "mine.fedmend"), *state]) == 0
    assert "2 labels as repaired; epoch " in capsys.readouterr().out
    assert main(["worth", package, "--out", str(tmp_path / "worth"), *state, "--epochs", "2"]) == 0
    said = capsys.readouterr().out
    assert "PHANTOM site-1, test: personalised against federated: AUC " in said
    assert f"{tmp_path / 'worth' / 'worth.html'} written" in said
    assert main(["personalise", package, str(site), "--out", str(site)]) == 1
    assert "--out: expected a folder NAME.fedmend, got 'site-1'" in capsys.readouterr().err


# ---- other kinds of labels ------------------------------------------------------------------------------------------
def test_of_single_labels_a_sample_that_nobody_has_labelled_is_left_out(tmp_path):
    make_site_folder(tmp_path / "site-1", [0, 1, -1, 2, 0, 1], splits=())
    for split in ("val", "test"):
        write_table(tmp_path / "site-1" / f"{split}.csv", [f"img{i}.png" for i in (0, 1, 3)], np.arange(3), CLASSES)
    card = json.loads((tmp_path / "site-1" / "site.json").read_text())
    card["splits"] |= {"val": "val.csv", "test": "test.csv"}
    (tmp_path / "site-1" / "site.json").write_text(json.dumps(card))
    package = make_package(tmp_path, kind="singlelabel", preprocessing=WINDOWLESS.of_package("singlelabel"))
    home = home_of(tmp_path, package, tmp_path / "site-1")
    assert home.site.data.train.table.images == tuple(f"img{i}.png" for i in (0, 1, 3, 4, 5))
    found = worth(package, home, tmp_path / "out", epochs=2)
    assert found.personal.metric == "bacc"
    assert set(found.compared.metrics["alone"]) >= {"bacc", "f1", "auc"}


def make_mask_home(tmp_path, classes):
    """A package of random weights and a site with two volumes in each split, whose training masks show one class."""
    folder, structures = tmp_path / "site-1", len(classes)
    test = [lesion() * number for number in (1, structures)]
    marked = {"annotated": {"train": classes[:1]}} if structures > 1 else {}
    make_volume_site(folder, test=test, classes=classes, **marked)
    card = json.loads((folder / "site.json").read_text())
    card["splits"]["val"] = card["splits"]["test"]
    (folder / "site.json").write_text(json.dumps(card))
    listed = json.loads((folder / "datalist.json").read_text())
    (folder / "datalist.json").write_text(json.dumps(listed | {"validation": listed["test"]}))
    prepared = replace(WINDOWLESS, pixel_mean=(0.0,) * 3, pixel_deviation=(1.0,) * 3, image_size=32)
    network = {"name": "unet_narrow", "arguments": {"num_classes": structures}}
    about = {"kind": "segmentation", "classes": classes, "network": network}
    weights = {k: v.numpy() for k, v in get_weights(networks.build_network("unet_narrow", structures)).items()}
    made = make_package(tmp_path, **about, preprocessing=prepared.of_package("segmentation")).info
    write_package(tmp_path / "run-1.fedmend", {k: v for k, v in made.items() if k != "format"}, weights)
    package = Package(tmp_path / "run-1.fedmend")
    return package, home_of(tmp_path, package, folder)


@pytest.mark.parametrize("classes", [["lesion"], ["liver", "spleen"]], ids=len)
def test_of_masks_volumes_are_compared(tmp_path, classes):
    package, home = make_mask_home(tmp_path, classes)
    found = worth(package, home, tmp_path / "out", epochs=1)
    assert found.compared.units == 2
    page = (tmp_path / "out" / "worth.html").read_text(encoding="utf-8")
    assert "95 % intervals over 2 volumes, as patients are not known" in page
    assert set(found.compared.metrics["alone"]) == {"dice", "volume_dice", "precision", "recall"}
    assert Package(tmp_path / "out" / "run-1-personal.fedmend").kind == "segmentation"


@pytest.mark.parametrize("from_start", [False, True])
def test_a_known_model_alone_is_held_to_structures_that_the_site_does_not_mark(tmp_path, from_start):
    package, home = make_mask_home(tmp_path, ["liver", "spleen"])
    losses = {name: getattr(condist, name) for name in ("marginal_loss", "conditional_distillation")}
    with patch.multiple(condist, **{name: Mock(wraps=loss) for name, loss in losses.items()}):
        train_at(home, package.network(), plan_of(SETTINGS, "run-1", home, epochs=1), from_start=from_start)
        assert condist.marginal_loss.call_args.args[2].tolist() == [True, False]
        assert condist.conditional_distillation.called is not from_start
