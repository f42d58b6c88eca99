"""The object ``gpu`` of ``fedmend.json``: which GPUs a site computes on, how much of them, and in which precision."""

from dataclasses import dataclass

from fedmend.basics.checked import AMOUNT, FLAG, Check, one_of, taking

BF16, TF32, FP32 = "bf16", "tf32", "fp32"
GB = 1e9  # bytes
PRECISIONS = (BF16, TF32, FP32)


def _devices(value: list | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    if type(value) is list and len({*value}) == len(value) and all(type(d) is int and 0 <= d < 1024 for d in value):
        return tuple(value)
    raise ValueError


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

    devices: tuple[int, ...] | None = taking(Check(_devices, "a list of different whole numbers"), default=None)
    memory_gb: float = taking(AMOUNT, default=0.0)
    precision: str = taking(one_of(PRECISIONS), default=BF16)
    deterministic: bool = taking(FLAG, default=False)
