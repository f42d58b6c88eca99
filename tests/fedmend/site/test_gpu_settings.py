import pytest
from factories import refused

from fedmend.basics.checked import checked
from fedmend.site.gpu_settings import FP32, Gpu

WHERE = "site-1: local/fedmend.json"


def read(raw):
    return checked(Gpu, raw, WHERE, inside="gpu")


def test_without_any_setting_it_is_the_first_gpu_in_bfloat16():
    assert read({}) == Gpu(devices=None, memory_gb=0.0, precision="bf16", deterministic=False)


def test_every_field_can_be_given():
    raw = {"devices": [1, 0], "memory_gb": 12.5, "precision": "fp32", "deterministic": True}
    assert read(raw) == Gpu((1, 0), 12.5, FP32, True)


FIELDS = ["devices", "memory_gb", "precision", "deterministic"]
DEVICES = ", field gpu.devices: expected a list of different whole numbers, got another"
MEMORY = ", field gpu.memory_gb: expected a number >= 0, got another"
PRECISION = ", field gpu.precision: expected one of ['bf16', 'tf32', 'fp32'], got another"


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ([0], ", field gpu: expected a JSON object, got another list"),
        ({"device": 0}, f", field gpu: expected the fields {FIELDS}, got also ['device']"),
        ({"devices": 0}, f"{DEVICES} int"),
        ({"devices": [0, 0]}, f"{DEVICES} list"),
        ({"devices": [-1]}, f"{DEVICES} list"),
        ({"devices": [True]}, f"{DEVICES} list"),
        ({"memory_gb": -1}, f"{MEMORY} int"),
        ({"memory_gb": float("nan")}, f"{MEMORY} float"),
        ({"precision": "fp16"}, f"{PRECISION} str"),
        ({"precision": ["bf16"]}, f"{PRECISION} list"),
        ({"deterministic": 1}, ", field gpu.deterministic: expected true or false, got another int"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused(raw, sentence):
    with refused(WHERE + sentence):
        read(raw)
