import json
import pwd
from pathlib import Path

import pytest
from factories import refused

from fedmend.phantoms.sites import phantom_spec
from fedmend.site.config import SiteConfig, read_site_config
from fedmend.site.folder import site_folder
from fedmend.site.gpu_settings import Gpu
from fedmend.site.privacy import Privacy

SETTINGS = {"data_root": "data", "cache_dir": "cache", "state_dir": "state", "min_count": 3, "threads": 1}
WHERE = "site-1: local/fedmend.json"


@pytest.fixture
def read(tmp_path):
    file = tmp_path / "fedmend.json"

    def write_and_read(content):
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return read_site_config(file, tmp_path, "site-1")

    return write_and_read


def test_folders_start_at_the_workspace(read, tmp_path):
    folders = {f"{name}_dir": tmp_path / name for name in ("cache", "state", "weights")}
    expected = SiteConfig(tmp_path / "data", **folders, min_count=3, threads=1)
    assert read(SETTINGS) == expected


def test_numbers_have_defaults(read):
    config = read({k: v for k, v in SETTINGS.items() if isinstance(v, str)})
    assert (config.min_count, config.max_unreadable, config.threads) == (5, 0, 0)
    assert (config.max_rounds, config.max_epochs, config.max_hours, config.memory_gb) == (1000, 100, 720, 0)


def test_limits_of_a_site_are_numbers_whole_or_not(read):
    config = read({**SETTINGS, "max_rounds": 7, "max_epochs": 3, "max_hours": 1.5, "memory_gb": 8})
    assert (config.max_rounds, config.max_epochs, config.max_hours, config.memory_gb) == (7, 3, 1.5, 8)


def test_the_site_name_and_the_home_folder_are_put_in(read, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    config = read({**SETTINGS, "data_root": "/data/{SITE_NAME}/ct", "cache_dir": "~/cache/{SITE_NAME}"})
    assert config.data_root == Path("/data/site-1/ct")
    assert config.cache_dir == Path("/home/somebody/cache/site-1")


def test_an_account_that_the_system_does_not_know_has_no_home_folder(read, monkeypatch):
    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with refused(f"{WHERE}, field cache_dir: expected a folder, got one that cannot be looked up"):
        read({**SETTINGS, "cache_dir": "~/cache"})
    assert read(SETTINGS).cache_dir.is_absolute()


def test_the_word_phantom_is_no_folder(read):
    assert read({**SETTINGS, "data_root": "phantom"}).data_root is None


def test_settings_of_gpu_and_privacy_are_those_of_their_objects(read):
    config = read({**SETTINGS, "gpu": {"devices": []}, "privacy": {"clip": 1, "noise_multiplier": 2}})
    assert (config.gpu, config.privacy) == (Gpu(devices=()), Privacy(clip=1.0, noise_multiplier=2.0))
    config = read({**SETTINGS, "gpu": None, "privacy": None})
    assert (config.gpu, config.privacy) == (Gpu(), None)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", ": expected JSON, got a file that does not parse"),
        ("[]", ": expected a JSON object, got a list"),
        (
            {**SETTINGS, "data_rot": "x"},
            ": expected the fields ['data_root', 'cache_dir', 'state_dir', 'min_count', 'max_unreadable', 'threads',"
            " 'max_rounds', 'max_epochs', 'max_hours', 'memory_gb', 'min_federation', 'refuse_fields',"
            " 'gallery', 'share_verdicts', 'evaluate_by', 'keep_model', 'approve', 'gpu', 'privacy', 'weights_dir'],"
            " got also ['data_rot']",
        ),
        ({**SETTINGS, "data_root": None}, ", field data_root: expected a folder, got nothing"),
        ({**SETTINGS, "cache_dir": ""}, ", field cache_dir: expected a folder, got ''"),
        ({"data_root": "a", "cache_dir": "b"}, ", field state_dir: expected a folder, got nothing"),
        ({**SETTINGS, "max_hours": -0.5}, ", field max_hours: expected a number >= 0, got -0.5"),
        ({**SETTINGS, "memory_gb": "8"}, ", field memory_gb: expected a number >= 0, got text"),
        ({**SETTINGS, "memory_gb": float("inf")}, ": expected JSON, got a file that does not parse"),
        ({**SETTINGS, "memory_gb": float("nan")}, ": expected JSON, got a file that does not parse"),
        ({**SETTINGS, "max_rounds": 2.5}, ", field max_rounds: expected a whole number >= 0, got 2.5"),
        ({**SETTINGS, "max_epochs": True}, ", field max_epochs: expected a whole number >= 0, got True"),
        ({**SETTINGS, "min_count": -1}, ", field min_count: expected a whole number >= 0, got -1"),
        ({**SETTINGS, "max_unreadable": "3"}, ", field max_unreadable: expected a whole number >= 0, got text"),
        ({**SETTINGS, "data_root": ["/data/ward-7"]}, ", field data_root: expected a folder, got a list"),
        ({**SETTINGS, "gallery": "/data/ward-7"}, ", field gallery: expected true or false, got text"),
        ({**SETTINGS, "gpu": {"memory_gb": -1}}, ", field gpu.memory_gb: expected a number >= 0, got -1"),
        ({**SETTINGS, "privacy": 10**60}, f", field privacy: expected a JSON object, got 1{'0' * 39}"),
        ({**SETTINGS, "approve": "yes"}, ", field approve: expected one of ['no', 'ask'], got text"),
        ({**SETTINGS, "evaluate_by": "sex"}, ", field evaluate_by: expected a list of names of columns, got text"),
        ({**SETTINGS, "threads": True}, ", field threads: expected a whole number >= 0, got True"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused(read, content, sentence):
    with refused(WHERE + sentence):
        read(content)


def test_a_missing_file_is_refused(tmp_path):
    with refused(f"{WHERE}: expected in the workspace (data_root, cache_dir, state_dir), not found"):
        read_site_config(tmp_path / "fedmend.json", tmp_path, "site-1")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0b"])
def test_a_site_name_that_could_leave_its_folder_is_refused(tmp_path, name):
    with refused(f"site name: expected one without path separators, got {name!r}"):
        read_site_config(tmp_path / "fedmend.json", tmp_path, name)


# ---- where the data are ---------------------------------------------------------------------------------------------


def test_the_site_folder_is_the_data_root(read, tmp_path):
    assert site_folder("site-1", read(SETTINGS), None) == tmp_path / "data"


def test_a_site_without_data_folder_needs_a_job_with_a_phantom(read):
    with refused(f"{WHERE}, field data_root: expected a folder, as this job has no phantom"):
        site_folder("site-1", read({**SETTINGS, "data_root": "phantom"}), None)


def test_a_phantom_has_no_other_sites_than_its_own(read, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        "fedmend.site.folder.ensure_phantom", lambda cache, spec: made.append((cache, spec.images)) or cache / "made"
    )
    spec = phantom_spec({"dataset": "ich", "images": 60, "sites": 2})
    config = read({**SETTINGS, "data_root": "phantom"})
    with refused("site-1: phantom: expected a site name from site-1 to site-2, got site-1"):
        site_folder("site-1", config, spec)
    (tmp_path / "cache" / "made" / "site-1").mkdir(parents=True)
    assert site_folder("site-1", config, spec) == tmp_path / "cache" / "made" / "site-1"
    assert made == [(tmp_path / "cache", 60)] * 2
