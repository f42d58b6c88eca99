import argparse
import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli_calls import call, capture
from factories import ROOT

from fedmend.basics.discovery import commands_of
from fedmend.basics.words import say
from fedmend.datasets.cxr14 import PROTOCOLS
from fedmend.datasets.isic2018 import DiagnosisProtocol
from fedmend.datasets.noisy_sites import NoiseProtocol
from fedmend.datasets.rsna_ich import SliceProtocol
from fedmend.datasets.swapped_labels import SwapNoise
from fedmend.errors import FedMendError
from fedmend.phantoms.specs.label_sets import ChestPhantom, LabelSetPhantom
from fedmend.phantoms.specs.partial_masks import PartlyAnnotatedPhantom
from fl_components.cli import build_parser, main


def test_a_phantom_is_made_as_asked_and_called_one(tmp_path, monkeypatch, capsys):
    seen = capture(monkeypatch, "fedmend.phantoms.sites.make_phantom")
    words = ["phantom", "ich", tmp_path, "--slices", 60, "--pixels", 32, "--sites", 3, "--annotated-per-site", 2]
    assert call(*words, "--rule", "random", "--seed", 4) == 0
    ((out, spec), _) = seen[0]
    assert out == tmp_path
    assert (spec.images, spec.pixels, spec.sites, spec.annotated_per_site) == (60, 32, 3, 2)
    assert (spec.rule, spec.seed) == ("random", 4)
    assert capsys.readouterr().out.startswith("PHANTOM: 60 synthetic slices in ")


NOISE = [
    *("--sites", 6, "--alpha", 3, "--presence", 0.8, "--partition-seed", 5, "--noisy-share", 0.3),
    *("--noise-low", 0.2, "--noise-high", 0.4, "--noise", "uniform", "--noise-seed", 7),
]


PROTOCOL = NoiseProtocol(
    sites=6,
    alpha=3.0,
    presence=0.8,
    partition_seed=5,
    noisy_share=0.3,
    noise_low=0.2,
    noise_high=0.4,
    noise="uniform",
    noise_seed=7,
)
LISTS = ("--train-list", "train.csv", "--test-list", "test.csv")
LISTED = {"lists": (Path("train.csv"), Path("test.csv"))}


@pytest.mark.parametrize(
    ("name", "target", "words", "expected"),
    [
        (
            "rsna-ich-single",
            "rsna_ich.prepare_single_label",
            ["--split", "slice", "--test-share", 0.4, "--window", "bone", "--seed", 3, *LISTS],
            {"split": "slice", "test_share": 0.4, "window": "bone", "seed": 3, **LISTED},
        ),
        (
            "isic2019",
            "isic2019.prepare",
            ["--split", "image", "--test-share", 0.4, "--seed", 3],
            {"split": "image", "test_share": 0.4, "seed": 3},
        ),
        ("brain-mri-single", "brain_mri.prepare_single_label", [], {}),
    ],
)
def test_a_download_is_prepared_with_the_noise_that_is_asked_for(monkeypatch, name, target, words, expected):
    seen = capture(monkeypatch, f"fedmend.datasets.{target}")
    assert call("prepare", name, "source", "out", *words, *NOISE) == 0
    ((places, arguments),) = seen
    assert places == (Path("source"), Path("out"))
    arguments.pop("progress")
    assert arguments == {"protocol": PROTOCOL, "soft_labels": None, **expected}


@pytest.mark.parametrize("protocol", ["fedlsm", "fedmlp"])
def test_chest_films_are_prepared_by_a_protocol_and_what_is_said_beside_it(monkeypatch, protocol):
    seen = capture(monkeypatch, "fedmend.datasets.cxr14.prepare")
    words = ["--sites", 4, "--view", "all", "--top", 5, "--split", "image", "--train-per-site", 9, "--seed", 3]
    assert call("prepare", "cxr14", "source", "out", "--protocol", protocol, *words) == 0
    said = {"sites": 4, "view": None, "top": 5, "split": "image", "train_per_site": 9, "seed": 3}
    assert [places for places, _ in seen] == [(Path("source"), Path("out"), replace(PROTOCOLS[protocol], **said))]


def test_isic_2018_is_prepared_as_asked(monkeypatch):
    seen = capture(monkeypatch, "fedmend.datasets.isic2018.prepare")
    words = ["--sites", 4, "--classes-per-site", 2, "--assignment", "random", "--split", "image"]
    assert call("prepare", "isic2018", "source", "out", *words, "--train-per-site", 9, "--seed", 3) == 0
    expected = DiagnosisProtocol(sites=4, classes_per_site=2, split="image", train_per_site=9, seed=3)
    assert [places[2] for places, _ in seen] == [expected]


def test_the_defaults_of_the_noise_are_those_of_the_paper(monkeypatch):
    ich = capture(monkeypatch, "fedmend.datasets.rsna_ich.prepare_single_label")
    isic = capture(monkeypatch, "fedmend.datasets.isic2019.prepare")
    call("prepare", "rsna-ich-single", "source", "out")
    call("prepare", "isic2019", "source", "out")
    assert ich[0][1]["protocol"] == NoiseProtocol()
    assert isic[0][1]["protocol"] == NoiseProtocol(alpha=1.5, presence=0.99)


@pytest.mark.parametrize(("word", "dataset"), [("ich-single", "ich_single"), ("isic2019", "isic2019")])
def test_a_noisy_phantom_is_made_as_asked_and_called_one(tmp_path, monkeypatch, capsys, word, dataset):
    seen = capture(monkeypatch, "fedmend.phantoms.sites.make_phantom")
    assert call("phantom", word, tmp_path, "--images", 60, "--pixels", 32, "--seed", 4, *NOISE) == 0
    ((out, spec), _) = seen[0]
    assert (out, spec.dataset, spec.images, spec.pixels, spec.seed) == (tmp_path, dataset, 60, 32, 4)
    assert {name: getattr(spec, name) for name in vars(PROTOCOL)} == vars(PROTOCOL)
    assert capsys.readouterr().out.startswith("PHANTOM: 60 synthetic images in ")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cxr14", "--protocol", "fedmlp"], ChestPhantom(images=60, pixels=64, protocol="fedmlp")),
        (["isic2018", "--sites", 4], LabelSetPhantom(images=60, pixels=96, sites=4)),
    ],
)
def test_a_phantom_with_different_label_sets_is_made_as_asked(tmp_path, monkeypatch, capsys, words, expected):
    seen = capture(monkeypatch, "fedmend.phantoms.sites.make_phantom")
    assert call("phantom", *words, tmp_path, "--images", 60) == 0
    assert seen[0][0] == (tmp_path, expected)
    assert capsys.readouterr().out.startswith("PHANTOM: 60 synthetic images in ")


@pytest.mark.parametrize("dataset", ["ms", "lung"])
def test_a_phantom_with_partly_annotated_lesions_is_made_as_asked(tmp_path, monkeypatch, capsys, dataset):
    seen = capture(monkeypatch, "fedmend.phantoms.sites.make_phantom")
    words = ["--images", 12, "--sites", 3, "--pixels", 32, "--depth", 9, "--m", 1, "--test-share", 0.3, "--seed", 4]
    assert call("phantom", dataset, tmp_path, *words) == 0
    given = {"images": 12, "sites": 3, "pixels": 32, "depth": 9, "m": 1, "test_share": 0.3, "seed": 4}
    assert [places for places, _ in seen] == [(tmp_path, PartlyAnnotatedPhantom(dataset=dataset, **given))]
    assert capsys.readouterr().out.startswith("PHANTOM: 12 synthetic volumes in ")


@pytest.mark.parametrize("dataset", ["ms", "lung"])
def test_a_phantom_with_lesions_is_by_default_the_one_of_its_job(tmp_path, monkeypatch, dataset):
    seen = capture(monkeypatch, "fedmend.phantoms.sites.make_phantom")
    assert call("phantom", dataset, tmp_path) == 0
    job = json.loads((ROOT / "jobs" / f"fedia_{dataset}" / "app" / "config" / "config_fed_client.json").read_text())
    (entry,) = job["executors"]
    assert [spec for (_, spec), _ in seen] == [PartlyAnnotatedPhantom(**entry["executor"]["args"]["phantom"])]


def test_brain_slices_are_prepared_with_label_sets(tmp_path, monkeypatch):
    seen = capture(monkeypatch, "fedmend.datasets.brain_mri.prepare_label_sets")
    assert call("prepare", "brain-mri-sets", "in", tmp_path, "--sites", 5, "--classes-per-site", 3) == 0
    assert seen == [((Path("in"), tmp_path), {"sites": 5, "classes_per_site": 3, "seed": 1037})]


@pytest.mark.parametrize("name", ["rsna-ich", "rsna-ich-single"])
def test_a_published_split_has_two_lists(tmp_path, capsys, name):
    assert call("prepare", name, "in", tmp_path, *LISTS[:2]) == 1
    assert "--train-list and --test-list: expected both or none, got one of them" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "share"), [("0.25", 0.25), ("all", None)])
def test_a_download_is_prepared_as_asked(tmp_path, monkeypatch, word, share):
    seen = capture(monkeypatch, "fedmend.datasets.rsna_ich.prepare")
    words = "--split slice --partition station --test-share 0.2 --val-share 0 --train-per-site 50 --window subdural"
    words = [*words.split(), "--healthy-share", word, "--sites", 4, "--noisy-share", 0.4, "--noise-low", 0.3, *LISTS]
    assert call("prepare", "rsna-ich", "in", tmp_path, *words) == 0
    protocol = SliceProtocol(
        sites=4,
        split="slice",
        partition="station",
        test_share=0.2,
        val_share=0.0,
        train_per_site=50,
        healthy_share=share,
        window="subdural",
        noise=SwapNoise(noisy_share=0.4, noise_low=0.3),
        **LISTED,
    )
    assert seen == [((Path("in"), tmp_path, protocol), {"progress": say})]


NEW = """
from fedmend.basics.discovery import Command


def add_arguments(parser):
    parser.add_argument("out")
    parser.add_argument("--images", type=int, default=3)


def run(args):
    print(f"{args.images} images for {args.out}")


COMMANDS = (Command(name="newset", help="a new data set", add_arguments=add_arguments, run=run),)
"""


@pytest.fixture(params=[("prepare", "fedmend.datasets"), ("phantom", "fedmend.phantoms.specs")], ids=lambda p: p[0])
def extended(request, tmp_path, monkeypatch):
    """A command and its package, which finds further modules in ``tmp_path``."""
    command, package = request.param
    module = importlib.import_module(package)
    monkeypatch.setattr(module, "__path__", [*module.__path__, str(tmp_path)])
    yield command
    for name in ("newset", "other"):
        sys.modules.pop(f"{package}.{name}", None)
        vars(module).pop(name, None)


def test_a_new_module_brings_its_own_command(extended, tmp_path, capsys):
    (tmp_path / "newset.py").write_text(NEW)
    assert call(extended, "newset", "out", "--images", 5) == 0
    assert capsys.readouterr().out == "5 images for out\n"
    with pytest.raises(SystemExit):
        main([extended, "--help"])
    assert "a new data set" in capsys.readouterr().out


def test_two_commands_of_one_name_are_refused(extended, tmp_path):
    for name in ("newset", "other"):
        (tmp_path / f"{name}.py").write_text(NEW)
    with pytest.raises(FedMendError, match=r"expected one command newset, got those of .*\.newset and .*\.other$"):
        build_parser()


def test_every_command_has_a_line_of_help_and_a_source_or_a_target():
    for package in ("fedmend.datasets", "fedmend.phantoms.specs"):
        commands = commands_of(package)
        assert len(commands) >= 7
        for command in commands:
            parser = argparse.ArgumentParser()
            command.add_arguments(parser)
            assert command.help
            assert "out" in {action.dest for action in parser._actions}


@pytest.mark.parametrize("words", [["--help"], ["simulate", "jobs/x"], ["sitecheck", "x"]], ids=lambda w: w[0])
def test_other_commands_do_not_wait_for_the_import_of_datasets(words):
    code = (
        "import sys; from fl_components.cli import build_parser; build_parser(sys.argv[1:]);"
        " print([n for n in sys.modules if n.split('.')[0] in ('torch', 'numpy', 'nvflare') or 'datasets' in n])"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code, *words], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "['fl_components.cli.datasets']\n"


@pytest.mark.parametrize(("word", "label_sets"), [("medmnist", False), ("medmnist-sets", True)])
def test_a_file_of_medmnist_is_prepared_as_asked(monkeypatch, word, label_sets):
    seen = capture(monkeypatch, "fedmend.datasets.medmnist.prepare")
    words = ["--sites", 4, "--classes-per-site", 2, "--train-per-site", 9, "--seed", 3]
    assert call("prepare", word, "x.npz", "out", *words) == 0
    ((places, arguments),) = seen
    assert places == (Path("x.npz"), Path("out"))
    arguments.pop("progress")
    expected = {"sites": 4, "classes_per_site": 2, "train_per_site": 9, "seed": 3}
    assert arguments == {**expected, "label_sets": label_sets}


def test_a_file_of_medmnist_is_prepared_with_noise(monkeypatch):
    seen = capture(monkeypatch, "fedmend.datasets.medmnist.prepare_single_label")
    assert call("prepare", "medmnist-single", "x.npz", "out", "--train-per-site", 9, *NOISE) == 0
    arguments = seen[0][1]
    assert (arguments["protocol"], arguments["train_per_site"]) == (PROTOCOL, 9)
