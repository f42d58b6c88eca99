import dataclasses
import errno
import stat

import pytest
from factories import refused
from torch_factories import CPU

from fedmend.data.manifest import load_card
from fedmend.data.site import load_site
from fedmend.datasets import phantom_sites
from fedmend.datasets.phantom_sites import PhantomSpec, ensure_phantom, make_phantom
from fedmend.datasets.phantoms import ICH_CLASSES

SMALL = PhantomSpec(slices=240, sites=2, annotated_per_site=4, pixels=32, seed=3)


@pytest.fixture
def made(monkeypatch):
    """Calls of make_phantom, which only leaves a mark."""
    calls = []

    def mark(out, spec):
        calls.append(spec)
        (out / "mark").write_text(str(spec.seed))

    monkeypatch.setattr(phantom_sites, "make_phantom", mark)
    return calls


def content(folder):
    return sorted(p.name for p in (folder / "phantoms").iterdir() if p.suffix != ".lock")


def test_a_phantom_becomes_site_folders_that_say_phantom_and_can_be_opened(tmp_path):
    make_phantom(tmp_path, SMALL)
    for site, annotated in (("site-1", [1, 1, 1, 1, 0]), ("site-2", [0, 1, 1, 1, 1])):
        card = load_card(tmp_path / site, site)
        assert card.provenance["source"].startswith("PHANTOM")
        assert card.window == (40.0, 80.0)
        assert "train" in card.truth
        data = load_site(tmp_path / site, site, ICH_CLASSES, cache_dir=tmp_path / "cache", image_size=32, device=CPU)
        assert data.annotated.astype(int).tolist() == annotated
        assert sorted(data.evaluation) == ["test", "val"]
        assert data.train.images.any(axis=(1, 2)).all()


def test_a_phantom_is_made_once(tmp_path, made):
    first = ensure_phantom(tmp_path, SMALL)
    assert ensure_phantom(tmp_path, SMALL) == first
    assert made == [SMALL]
    assert (first / "mark").read_text() == "3"
    assert stat.S_IMODE(first.stat().st_mode) == 0o755


def test_another_phantom_gets_its_own_folder(tmp_path, made):
    other = dataclasses.replace(SMALL, seed=4)
    assert ensure_phantom(tmp_path, SMALL) != ensure_phantom(tmp_path, other)
    assert made == [SMALL, other]


def test_a_phantom_that_fails_leaves_nothing_and_is_made_again(tmp_path, monkeypatch):
    def fail(out, spec):
        (out / "half").write_text("")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(phantom_sites, "make_phantom", fail)
        with pytest.raises(KeyboardInterrupt):
            ensure_phantom(tmp_path, SMALL)
    assert content(tmp_path) == []
    monkeypatch.setattr(phantom_sites, "make_phantom", lambda out, spec: (out / "mark").write_text(""))
    assert (ensure_phantom(tmp_path, SMALL) / "mark").is_file()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.ENOSPC, "expected 2 MB of free space, got a full disk"),
        (errno.EROFS, "expected a folder that can be written, got one that is read-only"),
    ],
)
def test_a_full_or_read_only_cache_is_said_in_one_sentence(tmp_path, monkeypatch, code, sentence):
    def fail(out, spec):
        raise OSError(code, "no")

    monkeypatch.setattr(phantom_sites, "make_phantom", fail)
    with refused(f"phantom: cache_dir: {sentence}"):
        ensure_phantom(tmp_path, dataclasses.replace(SMALL, slices=1000))  # 1000 * 32 * 32 * 2 bytes
    assert content(tmp_path) == []


def test_a_phantom_that_cannot_be_made_is_blamed_on_the_phantom_and_not_on_a_site(tmp_path):
    few = dataclasses.replace(SMALL, slices=24)
    with refused("phantom: site-1: expected at least 3 patients to split, got 2"):
        make_phantom(tmp_path, few)


def test_an_unknown_phantom_is_refused():
    with refused("job variable phantom, field dataset: expected 'ich', got 'chest'"):
        PhantomSpec(dataset="chest")
