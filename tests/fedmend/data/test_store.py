import contextlib
import errno
import logging
import multiprocessing
import os
import shutil
import stat
import time

import nibabel
import numpy as np
import pytest
from factories import color_pixels, make_dicom, pixels, refused, write_png

from fedmend.basics import parallel
from fedmend.data import store
from fedmend.data.dicom_values import NO_SLOPE
from fedmend.data.store import open_store

NAMES = ("a.png", "b.png", "c.png")
SPAWN = multiprocessing.get_context("spawn")
DAMAGED = "expected a PNG or JPEG picture, got a corrupt or truncated file (UnidentifiedImageError)"


def where(i):
    return f"site-1: train.csv row {i + 2}"


@pytest.fixture
def root(tmp_path):
    for i, name in enumerate(NAMES):
        write_png(tmp_path / "images" / name, i)
    return tmp_path / "images"


def opened(root, names=NAMES, *, size=8, window=None, **options):
    return open_store(root.parent / "cache", root, names, window=window, size=size, where=where, **options)


def left_over(root):
    return [p.name for p in (root.parent / "cache" / "stores").iterdir() if p.suffix != ".lock"]


def damage(root, *names):
    for name in names:
        (root / name).write_bytes(b"no picture")


def full_disk(*_):
    raise OSError(errno.ENOSPC, "no space left on device")


def test_every_image_is_in_the_store(root):
    images = opened(root).images
    assert (images.shape, images.dtype) == ((3, 8, 8), np.uint8)
    for i in range(3):
        assert np.array_equal(images[i], pixels(i))


def test_images_are_resized(root):
    assert opened(root, size=4).images.shape == (3, 4, 4)


def test_a_store_in_colour_has_three_channels_and_another_key_than_a_grey_one(root):
    for i, name in enumerate(NAMES):
        write_png(root / name, i, color=True)
    images = opened(root, color=True).images
    assert (images.shape, images.dtype) == ((3, 8, 8, 3), np.uint8)
    assert all(np.array_equal(images[i], color_pixels(i)) for i in range(3))
    assert opened(root, color=True, size=4).images.shape == (3, 4, 4, 3)
    assert opened(root).images.shape == (3, 8, 8)
    assert len(left_over(root)) == 3


def test_a_store_in_colour_is_built_once_and_then_read(root, monkeypatch):
    first = np.array(opened(root, color=True).images)
    monkeypatch.delattr(store, "decode")
    assert np.array_equal(opened(root, color=True).images, first)


def test_unreadable_images_of_a_store_in_colour_are_zero(root):
    damage(root, "b.png")
    tolerant = opened(root, color=True, max_unreadable=1)
    assert tolerant.readable.tolist() == [True, False, True]
    assert not tolerant.images[1].any()
    assert np.array_equal(tolerant.images[2][..., 0], pixels(2))


def test_a_dicom_file_in_a_store_in_colour_is_refused_with_its_row(root):
    make_dicom(root / "b.dcm", pixels(1).astype(np.int16))
    with refused(
        "site-1: train.csv row 3: expected a DICOM file in colour (site.json says color: true), got a grey one"
        " (max_unreadable allows 0, got 1)"
    ):
        opened(root, ("a.png", "b.dcm"), window=(40.0, 80.0), color=True)


def test_a_store_is_built_once_and_then_read(root, monkeypatch):
    first = np.array(opened(root).images)
    monkeypatch.delattr(store, "decode")
    assert np.array_equal(opened(root).images, first)


def test_an_image_that_is_replaced_in_place_makes_a_new_store(root):
    opened(root)
    write_png(root / "b.png", 7)
    os.utime(root / "b.png", ns=(1, 1))
    assert np.array_equal(opened(root).images[1], pixels(7))


def test_an_image_that_is_gone_is_seen_although_there_is_a_store_with_it(root):
    opened(root)
    (root / "b.png").unlink()
    with refused("site-1: train.csv row 3, column image: expected a file below image_root, not found"):
        opened(root)


def test_what_a_reader_put_right_is_counted_once_for_the_store(root, caplog):
    for name in ("a.dcm", "b.dcm"):
        make_dicom(root / name, pixels(1).astype(np.int16), Modality="CT", RescaleSlope=None)
    make_dicom(root / "c.dcm", pixels(1).astype(np.int16), Modality="CT")
    with caplog.at_level(logging.WARNING, logger="fedmend.store"):
        opened(root, ("a.dcm", "b.dcm", "c.dcm"), window=(40.0, 80.0))
    assert caplog.messages == [f"image store: 2 of 3 images: {NO_SLOPE}"]


def test_a_store_cannot_be_written(root):
    with pytest.raises(ValueError, match="read-only"):
        opened(root).images[0, 0, 0] = 1


@pytest.mark.parametrize(
    "change", [{"names": NAMES[:2]}, {"names": NAMES[::-1]}, {"size": 4}, {"window": (40.0, 80.0)}, {"window": "file"}]
)
def test_another_manifest_size_or_window_makes_another_store(root, change):
    opened(root)
    opened(root, **change)
    assert len(left_over(root)) == 2


def test_another_image_root_makes_another_store(root):
    opened(root)
    shutil.copytree(root, root.parent / "copy")
    opened(root.parent / "copy")
    assert len(left_over(root)) == 2


def build_slowly(root, barrier, log):
    build = store._build

    def logged(*args):
        with open(log, "a") as stream:
            stream.write("built\n")
        time.sleep(0.2)
        return build(*args)

    store._build = logged
    barrier.wait()
    assert np.array_equal(opened(root).images[2], pixels(2))


def test_processes_that_start_together_build_one_store(root):
    barrier, log = SPAWN.Barrier(3), root.parent / "log"
    processes = [SPAWN.Process(target=build_slowly, args=(root, barrier, log)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [p.exitcode for p in processes] == [0, 0, 0]
    assert log.read_text() == "built\n"
    assert len(left_over(root)) == 1


def die_while_building(root):
    images = iter(range(2))
    resize = store.resize
    store.resize = lambda image, size: resize(image, size) if next(images, None) is not None else os._exit(9)
    opened(root)


def test_a_process_killed_while_building_leaves_no_store_and_no_lock(root):
    process = SPAWN.Process(target=die_while_building, args=(root,))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert np.array_equal(opened(root).images[2], pixels(2))


def test_several_decoding_processes_give_the_same_store(root, monkeypatch):
    one = np.array(opened(root).images)
    shutil.rmtree(root.parent / "cache")
    monkeypatch.setattr(parallel, "SAMPLE", 0)
    monkeypatch.setattr(parallel, "WORTH", 0)
    monkeypatch.setattr(store, "CHUNK", 1)
    assert np.array_equal(opened(root, processes=2).images, one)


@pytest.fixture
def read_only(monkeypatch):
    @contextlib.contextmanager
    def refuse(lock_file):
        raise OSError(errno.EROFS, "read-only file system")
        yield

    return lambda: monkeypatch.setattr(store, "locked", refuse)


def test_a_finished_store_is_usable_in_a_read_only_cache(root, read_only):
    opened(root)
    read_only()
    assert np.array_equal(opened(root).images[0], pixels(0))


def test_a_new_store_in_a_read_only_cache_is_refused(root, read_only):
    read_only()
    with refused("site-1: train.csv: cache_dir: expected a folder that can be written, got one that is read-only"):
        opened(root)


def test_an_unknown_disk_error_is_not_renamed(root, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    with pytest.raises(OSError, match="input/output error"):
        opened(root)
    assert left_over(root) == []


def test_a_full_disk_is_said_before_decoding_and_leaves_nothing(root, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", full_disk)
    monkeypatch.setattr(store, "read_raw", lambda *_: pytest.fail("decoded although the disk is full"))
    with refused("site-1: train.csv: cache_dir: expected 3 MB of free space, got a full disk"):
        opened(root, size=1000)
    assert left_over(root) == []


def test_a_missing_image_is_named_by_its_row_and_leaves_nothing(root):
    (root / "b.png").unlink()
    with refused("site-1: train.csv row 3, column image: expected a file below image_root, not found"):
        opened(root, max_unreadable=3)
    assert left_over(root) == []


def test_an_unreadable_image_is_refused_by_default_and_read_once_mended(root):
    damage(root, "b.png")
    with refused(f"site-1: train.csv row 3: {DAMAGED} (max_unreadable allows 0, got 1)"):
        opened(root)
    assert left_over(root) == []
    write_png(root / "b.png", 7)
    assert np.array_equal(opened(root).images[1], pixels(7))


def test_tolerated_unreadable_images_are_zero_marked_and_logged(root, caplog):
    damage(root, "b.png")
    with caplog.at_level(logging.WARNING):
        tolerant = opened(root, max_unreadable=1)
    assert tolerant.readable.tolist() == [True, False, True]
    assert not tolerant.images[1].any()
    assert np.array_equal(tolerant.images[2], pixels(2))
    assert caplog.messages == [
        "image store: 1 unreadable images left out, as max_unreadable allows: site-1: train.csv row 3"
    ]


def test_a_store_with_tolerated_images_is_refused_when_fewer_are_allowed(root):
    damage(root, "a.png", "b.png")
    opened(root, max_unreadable=2)
    with refused(
        f"site-1: train.csv row 2: {DAMAGED}; site-1: train.csv row 3: {DAMAGED} (max_unreadable allows 1, got 2)"
    ):
        opened(root, max_unreadable=1)


def test_at_most_five_unreadable_images_are_listed(root):
    names = [f"{i}.png" for i in range(7)]
    damage(root, *names)
    listed = "; ".join(f"{where(i)}: {DAMAGED}" for i in range(5))
    with refused(f"{listed} and 2 more (max_unreadable allows 0, got 7)"):
        opened(root, names)


def test_an_image_that_may_not_be_opened_is_blamed_on_the_image_not_on_the_cache(root, monkeypatch):
    def forbidden(path, window, *, color):
        raise PermissionError(errno.EACCES, "permission denied")

    monkeypatch.setattr(store, "read_raw", forbidden)
    with refused(
        "site-1: train.csv row 2: expected a file that can be opened, got an error (PermissionError)"
        " (max_unreadable allows 0, got 1)"
    ):
        opened(root, NAMES[:1])


@pytest.mark.parametrize(
    ("file", "content"),
    [("meta.json", b""), ("meta.json", b"\0" * 40), ("meta.json", None), ("images.u8", b"short"), ("images.u8", None)],
)
def test_a_store_that_a_power_loss_has_damaged_is_built_again(root, file, content, monkeypatch):
    opened(root)
    (folder,) = (root.parent / "cache" / "stores").glob("*/")
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    assert np.array_equal(opened(root).images[2], pixels(2))
    assert left_over(root) == [folder.name]
    monkeypatch.delattr(store, "decode")
    assert np.array_equal(opened(root).images[2], pixels(2))


def test_a_store_is_on_the_disk_before_it_gets_its_name(root, monkeypatch):
    steps, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (steps.append(_kind(handle)), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda *paths: (steps.append("replace"), replace(*paths)))
    opened(root)
    at = steps.index("replace")
    assert [step for step in steps[:at] if step != "folder"] == ["file", "file"]  # the pixels, meta.json
    assert steps[at - 1] == "folder"  # their names
    assert steps[at + 1 :] == ["folder"]  # the name of the store


def _kind(handle):
    about = os.fstat(handle)
    if stat.S_ISDIR(about.st_mode):
        return "folder"
    return "file" if about.st_size else "empty file"


def test_no_volume_is_held_once_the_store_is_built(root):
    nibabel.save(nibabel.Nifti1Image(np.ones((8, 8, 2), dtype=np.float32), np.eye(4)), root / "v.nii")
    opened(root, ("v.nii#0", "v.nii#1"))
    assert store.nifti_volume.cache_info().currsize == 0


def test_an_empty_manifest_gives_an_empty_store(root):
    empty = opened(root, ())
    assert empty.images.shape == (0, 8, 8)
    assert empty.readable.shape == (0,)
    assert opened(root, (), color=True).images.shape == (0, 8, 8, 3)


def age(root, seconds):
    """All stores were opened so long ago."""
    for folder in (root.parent / "cache" / "stores").iterdir():
        os.utime(folder, (time.time() - seconds,) * 2)


def test_what_a_killed_process_left_of_a_store_is_swept_when_it_is_built(root):
    opened(root)
    (name,) = left_over(root)
    stores = root.parent / "cache" / "stores"
    shutil.rmtree(stores / name)
    for key in (name, "another"):
        (stores / f"{key}.a1b2c3d4").mkdir()
    opened(root)
    assert sorted(left_over(root)) == sorted([name, "another.a1b2c3d4"])


def test_more_stores_than_a_site_keeps_take_the_place_of_those_opened_longest_ago(root, monkeypatch):
    monkeypatch.setattr(store, "MOST_STORES", 2)
    first = opened(root, size=8).images
    opened(root, size=9)
    before = set(left_over(root))
    age(root, 3000)
    opened(root, size=8)  # which makes it the newer one
    age_of = {f.name: f.stat().st_mtime for f in (root.parent / "cache" / "stores").iterdir()}
    oldest = min(before, key=age_of.get)
    opened(root, size=10)
    assert (len(left_over(root)), oldest in left_over(root)) == (2, False)
    assert np.array_equal(first[0], pixels(0))  # who has a store open keeps it
    opened(root, size=11)  # those opened a moment ago stay
    assert len(left_over(root)) == 3


def test_stores_together_take_at_most_half_of_the_space_that_there_is_for_them(root, monkeypatch):
    opened(root, size=8)  # 192 bytes and its description
    (first,) = left_over(root)
    age(root, 3000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(1000, 0, 700))
    opened(root, size=10)  # 300 bytes: 2 * (about 250 + 300) are more than 250 + 700
    assert first not in left_over(root)
    assert len(left_over(root)) == 1


def test_job_after_job_within_minutes_cannot_fill_the_disk_with_stores(root, monkeypatch):
    def usage(folder):
        taken = sum(file.stat().st_size for file in stores.rglob("*"))
        return shutil._ntuple_diskusage(3_000_000, taken, 3_000_000 - taken)

    stores = root.parent / "cache" / "stores"
    monkeypatch.setattr(shutil, "disk_usage", usage)
    opened(root, size=500)  # three images of 250,000 bytes: 0.75 of at most 1.5 MB
    sentence = (
        "site-1: train.csv: cache_dir: expected image stores that together take at most half of the space for them, got"
        " more with those opened in the last 10 minutes; submit the job again later, or make room"
    )
    for size in (501, 502, 503):  # 0.75 MB more each, of which 2.25 MB are free
        with refused(sentence):
            opened(root, size=size)
    opened(root, size=490)  # 0.72 MB fit beside it
    assert len(left_over(root)) == 2


def test_stores_that_a_clock_ahead_has_opened_are_not_kept_until_the_right_clock_comes_there(root, monkeypatch):
    monkeypatch.setattr(store, "MOST_STORES", 2)
    opened(root, size=8)
    opened(root, size=9)
    age(root, -10_000_000)
    opened(root, size=10)
    opened(root, size=11)
    assert len(left_over(root)) == 2
