"""What a site does with its GPU, by the settings of :mod:`fedmend.site.gpu_settings`."""

import os
import re
import zlib
from dataclasses import replace

import torch

from fedmend.data.site import SiteData
from fedmend.errors import FedMendError
from fedmend.site.gpu_settings import FP32, GB, Gpu

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
RESIDENT = 0.5  # of the free memory of a GPU may hold a site's decoded images
LARGEST_PASS = 4096  # images of an inference batch; larger ones are no faster


def device_of(site: str, gpu: Gpu) -> torch.device:
    """The device of a site. Sites named ``site-1``, ``site-2``, ... take the listed GPUs in turns.

    Raises:
        FedMendError: a listed GPU is not there.
    """
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpu.devices is None:
        return torch.device("cuda", 0) if found else torch.device("cpu")
    if missing := [device for device in gpu.devices if device >= found]:
        raise FedMendError(
            f"{site}: local/fedmend.json, field gpu.devices: expected GPUs of this machine, which has {found}, got"
            f" number {missing[0]}"
        )
    if not gpu.devices:
        return torch.device("cpu")
    number = re.search(r"(\d{1,9})$", site)
    turn = int(number[1]) - 1 if number else zlib.crc32(site.encode())
    return torch.device("cuda", gpu.devices[turn % len(gpu.devices)])


def prepare(device: torch.device, gpu: Gpu) -> None:
    """Tells PyTorch how to compute on a GPU in this process; on a CPU there is nothing to tell."""
    if device.type != "cuda":
        return
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = gpu.precision != FP32
    if gpu.deterministic:
        os.environ.setdefault(CUBLAS, ":4096:8")  # read when cuBLAS is first used
    torch.use_deterministic_algorithms(gpu.deterministic)
    if gpu.memory_gb:
        share = gpu.memory_gb * GB / torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(share, 1.0), device)


def free_bytes(device: torch.device, gpu: Gpu) -> float:
    """Bytes of a GPU that the process may still take, by the site's settings."""
    free = torch.cuda.mem_get_info(device)[0]
    return min(free, gpu.memory_gb * GB - torch.cuda.memory_reserved(device)) if gpu.memory_gb else free


def with_resident_images(data: SiteData, room: float) -> SiteData:
    """The data of a site with decoded images on the device, so that no batch is copied there; training comes first, and
    a split that does not fit into the ``room``, bytes that they may take, stays in the store."""
    splits = {"train": data.train, **data.evaluation}
    for name, split in splits.items():
        if split.images.nbytes <= room:
            room -= split.images.nbytes
            splits[name] = replace(split, resident=torch.from_numpy(split.images.copy()).to(split.device))
    return replace(data, train=splits.pop("train"), evaluation=splits)


def inference_batch(step_bytes: float, batch_size: int, free: float) -> int:
    """Images of an inference batch: as many as fit into ``free`` bytes by the estimate for training, which needs more.

    Args:
        step_bytes: of a training step of ``batch_size`` images, see :func:`fedmend.site.limits.step_bytes`.
        batch_size: of the training.
        free: bytes.

    Returns:
        A power of two times ``batch_size``, at most :data:`LARGEST_PASS` or ``batch_size``, whichever is larger.
    """
    batch = batch_size
    while 2 * batch <= LARGEST_PASS and 2 * batch / batch_size * step_bytes <= free:
        batch *= 2
    return batch
