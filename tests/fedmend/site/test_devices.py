from dataclasses import replace

import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import make_mask_split, make_split

from fedmend.data.site import SiteData
from fedmend.site import devices
from fedmend.site.devices import device_of, free_bytes, inference_batch, prepare, with_resident_images
from fedmend.site.gpu_settings import Gpu

GPU = torch.device("cuda", 0)


@pytest.fixture
def four(monkeypatch):
    """A machine with four GPUs of 10 GB each, of which 6 are free."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (6e9, 10e9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1e9)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: type("Properties", (), {"total_memory": 10e9})
    )


def test_the_sites_of_one_machine_take_the_listed_gpus_in_turns(four):
    gpu = Gpu(devices=(2, 0))
    assert [device_of(f"site-{n}", gpu).index for n in (1, 2, 3, 10)] == [2, 0, 2, 0]
    assert device_of("ward", gpu) == device_of("ward", gpu)


def test_a_site_that_names_no_gpu_takes_the_first_one_and_an_empty_list_means_the_cpu(four):
    assert device_of("site-3", Gpu()) == GPU
    assert device_of("site-3", Gpu(devices=())).type == "cpu"


def test_a_gpu_that_is_not_there_is_refused(four, monkeypatch):
    sentence = "site-1: local/fedmend.json, field gpu.devices: expected GPUs of this machine, which has {}, got number "
    with refused(sentence.format(4) + "4"):
        device_of("site-1", Gpu(devices=(0, 4)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused(sentence.format(0) + "0"):
        device_of("site-1", Gpu(devices=(0,)))
    assert device_of("site-1", Gpu()).type == "cpu"


@pytest.fixture
def told(monkeypatch):
    """What PyTorch was told, and as it was afterwards."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    shares = []
    monkeypatch.delenv(devices.CUBLAS, raising=False)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append(share))
    yield shares
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
    torch.use_deterministic_algorithms(False)


def test_a_gpu_is_told_the_precision_the_share_of_memory_and_whether_all_must_be_deterministic(four, told):
    prepare(GPU, Gpu(precision="fp32", memory_gb=2.5, deterministic=True))
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (False, False)
    assert torch.are_deterministic_algorithms_enabled()
    assert devices.os.environ[devices.CUBLAS] == ":4096:8"
    prepare(GPU, Gpu(precision="tf32", memory_gb=25))
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (True, True)
    assert not torch.are_deterministic_algorithms_enabled()
    assert told == [0.25, 1.0]


def test_a_cpu_is_told_nothing(told):
    before = torch.backends.cudnn.allow_tf32
    prepare(torch.device("cpu"), Gpu(precision="fp32", deterministic=True, memory_gb=1))
    assert torch.backends.cudnn.allow_tf32 == before
    assert not torch.are_deterministic_algorithms_enabled()
    assert told == []


def test_what_is_free_is_what_the_site_allows_less_what_is_taken(four):
    assert free_bytes(GPU, Gpu()) == 6e9
    assert free_bytes(GPU, Gpu(memory_gb=3)) == 2e9
    assert free_bytes(GPU, Gpu(memory_gb=9)) == 6e9


def data_of(split, **evaluation):
    return SiteData(("a", "b"), np.ones(2, dtype=bool), split, evaluation)


@pytest.mark.parametrize(("room", "resident"), [(0.9, []), (1, ["train"]), (2.9, ["train", "val"])])
def test_training_images_come_first_onto_a_gpu(room, resident):
    split = make_split(np.zeros((5, 2), dtype=np.int8))
    data = with_resident_images(data_of(split, val=split, test=split), room * split.images.nbytes)
    splits = {"train": data.train, **data.evaluation}
    assert [name for name, held in splits.items() if held.resident is not None] == resident


def test_images_on_the_device_are_those_of_the_store():
    split = make_split(np.zeros((5, 2), dtype=np.int8))
    resident = with_resident_images(data_of(split), 1e9).train
    assert torch.equal(resident.resident, torch.from_numpy(np.asarray(split.images)))
    index = torch.tensor([3, 0, 3])
    elsewhere = replace(resident, images=np.zeros_like(split.images))  # it is the kept ones that are read
    assert torch.equal(elsewhere.pixels(index), split.pixels(index))


def test_slices_on_the_device_are_those_of_the_store(tmp_path):
    split = make_mask_split(tmp_path, np.zeros((4, 8, 8), dtype=bool))
    resident = with_resident_images(data_of(split), 1e9).train
    index = torch.tensor([2, 2, 1])
    elsewhere = replace(resident, images=np.zeros_like(split.images))
    assert torch.equal(elsewhere.pixels(index), split.pixels(index))


@pytest.mark.parametrize(("free", "batch"), [(0, 16), (1.9e9, 16), (2e9, 32), (5e9, 64), (1e15, 4096)])
def test_an_inference_batch_is_doubled_as_long_as_it_fits(free, batch):
    assert inference_batch(1e9, 16, free) == batch


def test_an_inference_batch_is_never_smaller_than_that_of_the_training():
    assert inference_batch(1e9, 6000, 1e15) == 6000
