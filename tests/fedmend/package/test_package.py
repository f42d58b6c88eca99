from dataclasses import replace

import pytest
import torch
from factories import refused
from result_factories import PREPARED
from safetensors.torch import load_file, save

import fedmend
from fedmend.data import inputs
from fedmend.learning import networks
from fedmend.learning.networks import build_network
from fedmend.learning.weights import get_weights
from fedmend.package import opened
from fedmend.preprocessing import READER
from fedmend.records.package_files import write_package

ABOUT = {
    "name": "run-1",
    "phantom": True,
    "kind": "multilabel",
    "classes": ["edema", "nodule"],
    "network": {"name": "resnet_narrow", "arguments": {"num_classes": 2}},
    "preprocessing": PREPARED.of_package("multilabel"),
    "thresholds": {"threshold": [0.3, 0.6], "not_sure": [[0.2, 0.4], [0.5, 0.7]]},
}


def write(folder, classes=2, **changed):
    model = build_network("resnet_narrow", classes)
    write_package(folder / "run-1.fedmend", {**ABOUT, **changed}, {k: v.numpy() for k, v in get_weights(model).items()})
    return folder / "run-1.fedmend"


def test_a_package_is_opened_without_the_run(tmp_path):
    package = fedmend.Package(write(tmp_path))
    assert (package.name, package.kind, package.classes) == ("run-1", "multilabel", ("edema", "nodule"))
    assert package.preprocessing == PREPARED
    assert (package.thresholds, package.not_sure) == ((0.3, 0.6), ((0.2, 0.4), (0.5, 0.7)))
    words = "PHANTOM package run-1: resnet_narrow for edema, nodule, thresholds chosen on validation"
    assert repr(package) == words
    network = package.network()
    wanted = load_file(package.folder / "weights.safetensors")
    assert not network.training
    assert all(torch.equal(value, wanted[name]) for name, value in get_weights(network).items())


def test_without_validation_one_half_decides_and_nothing_is_unsure(tmp_path):
    package = fedmend.Package(write(tmp_path, thresholds={}))
    assert (package.thresholds, package.not_sure) == ((0.5, 0.5), ((0.5, 0.5), (0.5, 0.5)))
    assert package.not_fitted == ("", "")


def test_a_class_on_which_nothing_was_fitted_says_why(tmp_path):
    chosen = {**ABOUT["thresholds"], "temperature": [2.0, 1.0]}
    package = fedmend.Package(write(tmp_path, thresholds={**chosen, "not_fitted": ["", "7 positives, 10 needed"]}))
    assert package.not_fitted == ("", "7 positives, 10 needed")
    assert package.calibrated
    words = "thresholds chosen on validation, calibrated probabilities; nodule n/a: 7 positives, 10 needed"
    assert repr(package).endswith(words)
    none = fedmend.Package(write(tmp_path / "none", thresholds={**chosen, "not_fitted": ["0 positives"] * 2}))
    assert (none.calibrated, none.temperatures) == (False, (1.0, 1.0))
    assert "edema, nodule, no thresholds chosen; edema, nodule n/a: 0 positives" in repr(none)
    where = "package run-1.fedmend, package.json, field thresholds.not_fitted"
    for wrong in (["", 1], [""], "no"):
        with refused(f"{where}: expected a text for each class, got others"):
            fedmend.Package(write(tmp_path / "wrong", thresholds={**chosen, "not_fitted": wrong}))


def test_a_folder_of_a_run_has_one_final_model(tmp_path):
    package = write(tmp_path / "server" / "fedmend")
    package.rename(package.with_name("run-1-best.fedmend"))
    with refused(f"package: expected one .fedmend in {tmp_path}, found none"):
        fedmend.Package(tmp_path)
    write(tmp_path / "server" / "fedmend")
    assert fedmend.Package(tmp_path).folder.name == "run-1.fedmend"


def test_a_workspace_whose_sites_keep_the_model_means_the_package_of_its_server(tmp_path):
    package = write(tmp_path / "server" / "simulate_job" / "fedmend")
    write(tmp_path / "site-1" / "state" / "run-1" / "site-1" / "model")
    assert fedmend.Package(tmp_path).folder == package


def test_weights_of_another_network_are_refused(tmp_path):
    with pytest.raises(
        fedmend.errors.FedMendError, match=r"^package run-1.fedmend, weights.safetensors: global model: "
    ):
        fedmend.Package(write(tmp_path, classes=3)).network()


def test_a_network_that_the_weights_do_not_fit_is_never_held_in_memory(tmp_path, monkeypatch):
    built = []

    def large(classes):
        built.append(torch.get_default_device().type)
        return torch.nn.Linear(10**9, classes) if built[-1] == "meta" else torch.nn.Linear(1, classes)

    monkeypatch.setitem(networks.NETWORKS, "large", large)
    write(tmp_path, network={"name": "large"})
    with pytest.raises(fedmend.errors.FedMendError, match="expected the 2 tensors of the network, got others"):
        fedmend.Package(tmp_path).network()
    assert built == ["meta"]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"threshold": "0.5, 0.5"}, "threshold: expected a number from 0 to 1 for each class, got others"),
        ({"threshold": [0.5]}, "threshold: expected a number from 0 to 1 for each class, got others"),
        ({"threshold": [0.5, "high"]}, "threshold: expected a number from 0 to 1 for each class, got others"),
        ({"threshold": [0.5, 1.5]}, "threshold: expected a number from 0 to 1 for each class, got others"),
        ({"not_sure": [[0.4, 0.6]]}, "not_sure: expected two numbers from 0 to 1 for each class, got others"),
        ({"not_sure": [[0.4, 0.6], [0.5]]}, "not_sure: expected two numbers from 0 to 1 for each class, got others"),
        ({"not_sure": 3}, "not_sure: expected two numbers from 0 to 1 for each class, got others"),
    ],
)
def test_thresholds_that_decide_nothing_are_refused_when_the_package_is_opened(tmp_path, chosen, said):
    with refused(f"package run-1.fedmend, package.json, field thresholds.{said}"):
        fedmend.Package(write(tmp_path, thresholds=chosen))


def test_a_package_whose_images_were_read_otherwise_is_refused(tmp_path):
    changed = {**PREPARED.of_package("multilabel"), "reader": 0}
    where = "package run-1.fedmend, package.json, field preprocessing.reader"
    with refused(f"{where}: expected 3, got 0; use the FedMend that made the package"):
        fedmend.Package(write(tmp_path, preprocessing=changed))


def test_a_package_may_show_a_network_as_many_pixels_as_a_job():
    assert opened.MOST_PIXELS == inputs.LARGEST_BATCH


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"image_size": 90_000}, ".image_size: expected a whole number from 1 to 2048, got another int"),
        ({"study_slices": 513}, ".study_slices: expected a whole number from 0 to 512, got another int"),
        ({"patch": (2049, 8, 8)}, ".patch: expected no number or three from 1 to 2048, got another list"),
        ({"image_size": 2048, "study_slices": 65}, ": expected at most 268435456 pixels of a study, got 272629760"),
    ],
)
def test_a_package_that_asks_for_all_of_the_memory_is_refused_when_it_is_opened(tmp_path, sizes, said):
    with refused(f"package run-1.fedmend, package.json, field preprocessing{said}"):
        fedmend.Package(write(tmp_path, preprocessing=replace(PREPARED, **sizes).of_package("multilabel")))


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("network", {"name": 5}, "a JSON object with the name of one, got another dict"),
        ("network", {}, "a JSON object with the name of one, got another dict"),
        ("classes", ["edema", "edema"], "a list of different names, got another list"),
    ],
)
def test_a_package_without_names_of_network_and_classes_is_refused_when_it_is_opened(tmp_path, field, value, expected):
    write_package(tmp_path / "run-1.fedmend", {**ABOUT, field: value}, {})
    with refused(f"package run-1.fedmend, package.json, field {field}: expected {expected}"):
        fedmend.Package(tmp_path / "run-1.fedmend")


def test_files_that_are_no_package_of_ours_are_refused_in_a_sentence(tmp_path):
    where = "package run-1.fedmend, package.json, field preprocessing.reader"
    with refused(f"{where}: expected {READER}, got None; use the FedMend that made the package"):
        fedmend.Package(write(tmp_path, preprocessing="none"))
    package = fedmend.Package(write(tmp_path))
    said = "package run-1.fedmend, weights.safetensors: expected floating tensors, got others or none that load"
    tensors = {"backbone.conv": torch.zeros(2)}
    for content in (
        b"",
        b"\xff" * 100,
        save(tensors | {"a": torch.zeros(1, dtype=torch.complex64)}),
        save(tensors | {"a": torch.zeros(1).to(torch.float8_e4m3fn)}),
    ):
        (package.folder / "weights.safetensors").write_bytes(content)
        with refused(said):
            package.network()
    (package.folder / "SHA256SUMS").write_bytes(b"\xff\xfe")
    with refused("package run-1.fedmend: expected package.json with a line in SHA256SUMS, not found"):
        fedmend.Package(package.folder)


def test_the_digest_is_of_what_is_done_with_a_file():
    one = PREPARED.of_package("multilabel")
    assert replace(PREPARED, modality="MR").of_package("multilabel")["digest"] == one["digest"]
    assert len({one["digest"], *(replace(PREPARED, **c).of_package(k)["digest"] for c, k in OTHERS)}) == 4


OTHERS = [({"window": None}, "multilabel"), ({"image_size": 64}, "multilabel"), ({}, "segmentation")]


def test_a_temperature_that_is_none_is_refused(tmp_path):
    where = "package run-1.fedmend, package.json, field thresholds.temperature"
    for wrong in ([0.0, 1.0], ["1", 1.0], [-2.0, 1.0], None, 2.0):
        with refused(f"{where}: expected numbers > 0, got others"):
            fedmend.Package(write(tmp_path, thresholds={"temperature": wrong}))
    with refused(f"{where}: expected one for each class, got others"):
        fedmend.Package(write(tmp_path, thresholds={"temperature": [1.0]}))
    assert fedmend.Package(write(tmp_path)).temperatures == (1.0, 1.0)
