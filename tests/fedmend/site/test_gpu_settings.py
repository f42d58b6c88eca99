import pytest
from factories import refused

from fedmend.site.gpu_settings import FP32, Gpu, read_gpu

WHERE = "site-1: local/fedmend.json"


def test_without_the_field_it_is_the_first_gpu_in_bfloat16():
    assert read_gpu(None, WHERE) == Gpu(devices=None, memory_gb=0.0, precision="bf16", deterministic=False)


def test_every_field_can_be_given():
    raw = {"devices": [1, 0], "memory_gb": 12.5, "precision": "fp32", "deterministic": True}
    assert read_gpu(raw, WHERE) == Gpu((1, 0), 12.5, FP32, True)


OBJECT = (
    ", field gpu: expected an object with some of ['devices', 'memory_gb', 'precision', 'deterministic'], got another"
)
DEVICES = ", field gpu.devices: expected a list of different whole numbers, got another value"
MEMORY = ", field gpu.memory_gb: expected a number >= 0, got another value"
PRECISION = ", field gpu.precision: expected one of ['bf16', 'tf32', 'fp32'], got another value"


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ([0], OBJECT),
        ({"device": 0}, OBJECT),
        ({"devices": 0}, DEVICES),
        ({"devices": [0, 0]}, DEVICES),
        ({"devices": [-1]}, DEVICES),
        ({"devices": [True]}, DEVICES),
        ({"memory_gb": -1}, MEMORY),
        ({"memory_gb": float("nan")}, MEMORY),
        ({"precision": "fp16"}, PRECISION),
        ({"precision": ["bf16"]}, PRECISION),
        ({"deterministic": 1}, ", field gpu.deterministic: expected true or false, got another value"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused(raw, sentence):
    with refused(WHERE + sentence):
        read_gpu(raw, WHERE)
