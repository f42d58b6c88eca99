"""What a run costs: bytes and steps are counted by hand, and the digest tells models apart."""

import numpy as np
import torch

from fedmend.learning.networks import build_network
from fedmend.local import metering
from fedmend.local.metering import Meter, digest, peak_memory, reset_peak
from fedmend.messages import COLLECT, TRAIN, Question, RunSpec, SiteResult
from fedmend.method import RoundTask

MODEL = {"w": np.zeros((2, 3), np.float32), "b": np.ones(2, np.float32)}  # 32 bytes


def question(name, *sites, knowledge=()):
    task = RoundTask("train", 0, 1, knowledge={k: np.zeros(1) for k in knowledge})
    return Question(name, MODEL, dict.fromkeys(sites, task), RunSpec("run", ("a",), "tiny", 0), False)


def step(count):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([weight])
    for _ in range(count):
        weight.sum().backward()
        optimizer.step()


def test_bytes_rounds_and_steps_are_counted_site_by_site():
    with Meter() as meter:
        meter.asked(question(TRAIN, "a", "b", knowledge=["x"]))
        with meter.working("a"):
            step(3)
        step(2)  # of no site
        meter.answered("a", SiteResult(weights=MODEL, report={"n": np.zeros(2, np.int64)}))
        meter.asked(question(COLLECT, "b"))
        meter.answered("b", SiteResult(counts={"val": np.zeros(1, np.int64)}))
    step(1)
    found = meter.measured()
    assert found["sites"] == {
        "a": {"rounds": 1, "steps": 3, "images": 0, "received": 40, "sent": 48},
        "b": {"rounds": 1, "steps": 0, "images": 0, "received": 72, "sent": 8},
    }
    assert found["initial_model"] == digest(MODEL)
    assert found["seconds"] > 0


def test_images_count_each_time_that_they_go_through_a_network_with_gradients():
    network, images = build_network("resnet_narrow", 2), torch.rand(4, 3, 32, 32)
    with Meter() as meter:
        meter.asked(question(TRAIN, "a"))
        with meter.working("a"):
            network(images)
            network(torch.cat([images, images]))  # two views in one pass
            with torch.no_grad():
                network(images)  # a teacher's
        network(images)  # of no site
    network(images)
    assert meter.measured()["sites"]["a"]["images"] == 12


def test_the_digest_depends_on_names_values_and_types_alone():
    assert digest(dict(reversed(MODEL.items()))) == digest(MODEL)
    assert digest({**MODEL, "b": np.zeros(2, np.float32)}) != digest(MODEL)
    assert digest({"w": MODEL["w"], "c": MODEL["b"]}) != digest(MODEL)
    assert digest({**MODEL, "b": np.ones(2, np.int32)}) != digest(MODEL)


def test_the_peak_is_what_the_system_says_since_it_was_asked_to_begin_anew(tmp_path, monkeypatch):
    # A system that is short of memory takes pages away meanwhile: in such a process the true peak may be any number.
    status, reset = tmp_path / "status", tmp_path / "clear_refs"
    status.write_text("VmPeak:\t  900 kB\nVmHWM:\t  120 kB\nVmRSS:\t  80 kB\n")
    monkeypatch.setattr(metering, "PEAK", status)
    monkeypatch.setattr(metering, "RESET", reset)
    reset_peak()
    assert reset.read_text() == "5"  # proc_pid_clear_refs(5): resets the peak resident set size
    assert peak_memory() == 120 * 1024


def test_where_the_system_has_no_such_files_the_peak_is_that_of_the_whole_process(tmp_path, monkeypatch):
    monkeypatch.setattr(metering, "PEAK", tmp_path / "none")
    monkeypatch.setattr(metering, "RESET", tmp_path / "none" / "below")
    held = np.ones(40_000_000, np.uint8)
    reset_peak()
    assert peak_memory() >= held.nbytes
