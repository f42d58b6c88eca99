"""What all phantoms of pictures and volumes do alike."""

import gzip
from functools import partial

import pytest
from factories import refused

from fedmend.basics import parallel
from fedmend.phantoms.chest import write_cxr14
from fedmend.phantoms.ct_head import write_ich
from fedmend.phantoms.dermoscopy import write_isic2018, write_isic2019
from fedmend.phantoms.volumes import write_lung, write_ms

PICTURES = {
    "ich": partial(write_ich, slices=25, size=32),
    "cxr14": partial(write_cxr14, images=25, size=32),
    "isic2018": partial(write_isic2018, images=25, size=32),
    "isic2019": partial(write_isic2019, images=25, size=32),
}
VOLUMES = {"ms": partial(write_ms, cases=1, size=32, depth=12), "lung": partial(write_lung, cases=1, size=32, depth=12)}
LEAST = [
    *(("ich", name, 1) for name in ("slices", "scanners", "processes")),
    *(("cxr14", name, least) for name, least in (("images", 25), ("devices", 1), ("processes", 1))),
    *((name, "images", 25) for name in ("isic2018", "isic2019")),
    *((name, argument, least) for name in VOLUMES for argument, least in (("cases", 1), ("depth", 12))),
    *((name, argument, least) for name in {**PICTURES, **VOLUMES} for argument, least in (("seed", 0), ("size", 32))),
]


def content(folder):
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {name: gzip.decompress(data) if name.endswith(".gz") else data for name, data in files.items()}


@pytest.mark.parametrize("name", PICTURES)
def test_the_bytes_do_not_depend_on_the_number_of_processes(tmp_path, monkeypatch, name):
    monkeypatch.setattr(parallel, "SAMPLE", 0)  # processes are worth their start
    monkeypatch.setattr(parallel, "WORTH", 0)
    for processes in (1, 2):
        PICTURES[name](tmp_path / str(processes), seed=1, processes=processes)
    one, two = content(tmp_path / "1"), content(tmp_path / "2")
    assert len(one) > 25
    assert one == two


@pytest.mark.parametrize("name", [*PICTURES, *VOLUMES])
def test_another_seed_gives_other_images(tmp_path, name):
    for seed in (1, 2):
        {**PICTURES, **VOLUMES}[name](tmp_path / str(seed), seed=seed)
    images = [{v for k, v in content(tmp_path / str(seed)).items() if k[-3:] not in ("csv", "txt")} for seed in (1, 2)]
    assert images[0]
    assert not images[0] & images[1]


@pytest.mark.parametrize(("name", "argument", "least"), LEAST)
def test_an_argument_below_its_least_value_is_refused(tmp_path, name, argument, least):
    with refused(f"phantom, argument {argument}: expected at least {least}, got {least - 1}"):
        {**PICTURES, **VOLUMES}[name](tmp_path, **{argument: least - 1})
    assert not any(tmp_path.iterdir())
