"""The object ``gpu`` of ``fedmend.json``: which GPUs a site computes on, how much of them, and in which precision."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedmend.errors import FedMendError

BF16, TF32, FP32 = "bf16", "tf32", "fp32"
PRECISIONS = (BF16, TF32, FP32)


@dataclass(frozen=True)
class Gpu:
    """The GPUs of a site.

    Attributes:
        devices: numbers of those that it may use; the sites of one machine are spread over them. None: the first one,
            or the CPU where there is none; empty: the CPU.
        memory_gb: most memory of the process on its GPU, in GB; 0 = all.
        precision: ``bf16``: autocast to bfloat16, TF32 for the rest; ``tf32``: float32 with products in TF32; ``fp32``.
        deterministic: the same numbers on every run on the same GPU; slower, and an operation that cannot do so ends
            the job. Otherwise only convolutions are.
    """

    devices: tuple[int, ...] | None = None
    memory_gb: float = 0.0
    precision: str = BF16
    deterministic: bool = False


def read_gpu(raw: object, where: str) -> Gpu:
    """Checks the field ``gpu`` of ``fedmend.json``.

    Args:
        raw: what JSON gave; None: the field is absent.
        where: words for the file in a message.

    Raises:
        FedMendError: an unknown field, or one of another type or out of range.
    """
    if raw is None:
        return Gpu()
    known = list(Gpu.__dataclass_fields__)
    if not isinstance(raw, Mapping) or not set(raw) <= set(known):
        raise FedMendError(f"{where}, field gpu: expected an object with some of {known}, got another")
    devices, memory = raw.get("devices"), raw.get("memory_gb", 0)
    listed = isinstance(devices, list) and all(type(d) is int and 0 <= d < 1024 for d in devices)
    if devices is not None and (not listed or len(set(devices)) < len(devices)):
        raise FedMendError(f"{where}, field gpu.devices: expected a list of different whole numbers, got another value")
    if type(memory) not in (int, float) or not 0 <= memory < float("inf"):
        raise FedMendError(f"{where}, field gpu.memory_gb: expected a number >= 0, got another value")
    if raw.get("precision", BF16) not in PRECISIONS:
        raise FedMendError(f"{where}, field gpu.precision: expected one of {list(PRECISIONS)}, got another value")
    if not isinstance(raw.get("deterministic", False), bool):
        raise FedMendError(f"{where}, field gpu.deterministic: expected true or false, got another value")
    return Gpu(**{**raw, "devices": None if devices is None else tuple(devices)})
