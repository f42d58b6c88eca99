"""Training steps of every job at the sizes of its paper, against a bare loop on the same device.

``python benchmarks/gpu.py`` runs each job of ``jobs/`` on its phantom with the preset ``paper`` and random initial
weights for a few rounds, one site at a time, and times the trainings of each stage (the fastest of a stage, for its
first one also tunes the device). The bare loop trains the same network with the same batch, which lies in the memory
of the device, in the same precision with the same optimiser.

Methods make several passes for each image: a teacher, a second view, mixed pairs. So the table gives images per second
of both, and beside them the operations per second of a method as a share of those of the bare loop, which do not
depend on the number of passes, and of the peak of the device. Operations are those that PyTorch counts.

Writes ``benchmarks/results/gpu.json`` and prints the table. ``--device cpu --preset default`` measures the jobs as
they are on one core.
"""

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedmend.learning.inference import mixed_precision
from fedmend.learning.networks import build_network
from fedmend.learning.patient_steps import PatientSteps
from fedmend.learning.training import EagerAdam, LocalTrainer
from fedmend.method import Round, Site
from fl_components.job.folder import Changes, read_job
from fl_components.run.local import run_local

ROOT = Path(__file__).resolve().parents[1]
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # bf16 operations per second, dense, by the data sheets
STEPS = 20  # of the bare loop
LSM = {"num_rounds": 2, "high": 0.02, "low": 0.2, "local_iterations": 20}
IA = {"num_rounds": 4, "warmup_rounds": 2, "gap": 0}
# Job → its settings here, and training images of a site by the paper (or its code) where a round goes through them.
JOBS: Mapping[str, tuple[Mapping[str, object], int | None]] = {
    "fedmlp_ich": ({"num_rounds": 3, "warmup_rounds": 2}, 5000),
    "fedmlp_cxr14": ({"num_rounds": 3, "warmup_rounds": 2, "phantom.images": 3200}, 5889),
    "fednoro_ich": ({"num_rounds": 2, "warmup_rounds": 1, "local_epochs": 1, "phantom.images": 3200}, 2379),
    "fednoro_isic2019": ({"num_rounds": 2, "warmup_rounds": 1}, 887),
    "fedlsm_cxr14": ({**LSM, "phantom.images": 2400}, None),
    "fedlsm_isic2018": (LSM, None),
    "fedia_ms": (IA, None),
    "fedia_lung": (IA, None),
}


@dataclass
class Timing:
    """What one training took.

    Attributes:
        seconds: of all steps.
        images: in all batches.
        operations: in all passes, 0 where they were not counted.
        memory: most bytes on the device, 0 on a CPU.
    """

    seconds: float
    images: int
    operations: float = 0.0
    memory: int = 0


class Stopwatch:
    """Times the trainings of a run by stage, and keeps how the steps of the last one are made."""

    batch: tuple[int, ...]
    site: Site

    def __init__(self) -> None:
        self.stages: dict[str, list[Timing]] = {}

    def __enter__(self) -> "Stopwatch":
        train, stopwatch = LocalTrainer.train, self

        def timed(trainer: LocalTrainer, work: Round, private: PatientSteps | None = None) -> float:
            seen: list[int] = []
            batches = work.batches
            counted = mock.patch.object(work, "batches", lambda epoch: _counted(batches(epoch), seen))
            forward = work.model.register_forward_pre_hook(lambda _, given: stopwatch._saw(given[0]))
            known = stopwatch.stages.setdefault(work.task.stage, [])
            counter = FlopCounterMode(display=False)
            _reset(work.site.device)
            started = time.perf_counter()
            # The first one of a stage is never the fastest, so it is the one that is slowed down.
            with counted, contextlib.nullcontext() if known else counter:
                loss = train(trainer, work, private)
            memory = _peak(work.site.device)
            seconds = time.perf_counter() - started if known else float("inf")
            known.append(Timing(seconds, sum(seen), counter.get_total_flops(), memory))
            forward.remove()
            stopwatch.site = work.site
            return loss

        self._patch = mock.patch.object(LocalTrainer, "train", timed)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

    def _saw(self, images: torch.Tensor) -> None:
        self.batch = tuple(images.shape)

    def fastest(self) -> dict[str, Timing]:
        """Stage → its fastest training, with the operations that its first one was counted to need for each image."""
        found = {}
        for stage, (first, *others) in self.stages.items():
            if others:
                best = min(others, key=lambda timing: timing.seconds / timing.images)
                best.operations = first.operations / first.images * best.images
                found[stage] = best
        return found


def _counted(batches: Iterable[torch.Tensor], seen: list[int]) -> Iterator[torch.Tensor]:
    for index in batches:
        seen.append(len(index))
        yield index


def _reset(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> int:
    """Most bytes since :func:`_reset`, after all work is done."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


def bare_loop(network: str, num_classes: int, site: Site, shape: tuple[int, ...]) -> Timing:
    """Training steps of a network on one batch (B, channels, H, W) in the memory of the site's device."""
    device = site.device
    model = build_network(network, num_classes).to(device).train()
    images = torch.rand(shape, device=device)
    if device.type == "cuda":
        model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    optimizer = EagerAdam(model.parameters(), lr=1e-4, fused=True)

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            with mixed_precision(site):
                loss = model(images)[1].float().square().mean()
            loss.backward()
            optimizer.step()

    with FlopCounterMode(display=False) as counter:
        steps(1)
    steps(2)
    _reset(device)
    started = time.perf_counter()
    steps(STEPS)
    memory = _peak(device)
    seconds = time.perf_counter() - started
    return Timing(seconds, STEPS * shape[0], counter.get_total_flops() * STEPS, memory)


def measure(name: str, *, device: str, precision: str, preset: str) -> list[dict]:
    """Rows of the table for one job: the bare loop, then each stage; arguments as of the command line."""
    settings, published = JOBS[name]
    changes = Changes({"weights": "", "eval_every": 100, **settings}, ["paper"] if preset == "paper" else [])
    gpu = {"devices": [0] if device == "cuda" else [], "precision": precision}
    with tempfile.TemporaryDirectory() as folder, Stopwatch() as watch:
        job = ROOT / "jobs" / name
        run_local(job, Path(folder) / "run", changes, threads=1, site_settings={"gpu": gpu}, quiet=True)
        run, site = read_job(job, changes).run, watch.site
        bare = bare_loop(run["network"], len(run["classes"]), site, (site.batch_size, *watch.batch[1:]))
    rows = [row(name, "bare loop", bare, bare)]
    for stage, timing in watch.fastest().items():
        rows.append(row(name, stage, timing, bare))
        if published:
            rows[-1]["round_seconds"] = published * timing.seconds / timing.images
    return rows


def row(job: str, stage: str, timing: Timing, bare: Timing) -> dict:
    """A row of the table: the timing of a stage, or of the bare loop, against that of the bare loop."""
    speed, bare_speed = timing.operations / timing.seconds, bare.operations / bare.seconds
    device = torch.cuda.get_device_name() if timing.memory else ""
    peak = next((value for name, value in PEAKS.items() if name in device), None)
    return {
        "job": job,
        "stage": stage,
        "images_per_second": timing.images / timing.seconds,
        "share_of_bare_loop": speed / bare_speed,
        "share_of_peak": speed / peak if peak else None,
        "peak_memory": timing.memory,
        "round_seconds": None,
    }


def print_table(rows: list[dict]) -> None:
    """Prints the rows as a table in Markdown."""
    print("| job | stage | images/s | operations/s, share of bare loop | share of peak | GB | s per round of a site |")
    print("|---|---|---|---|---|---|---|")
    for r in rows:
        peak = "" if r["share_of_peak"] is None else f"{100 * r['share_of_peak']:.1f} %"
        memory = f"{r['peak_memory'] / 1e9:.1f}" if r["peak_memory"] else ""
        round_seconds = "" if r["round_seconds"] is None else f"{r['round_seconds']:.1f}"
        share = f"{100 * r['share_of_bare_loop']:.0f} %"
        cells = (r["job"], r["stage"], f"{r['images_per_second']:.0f}", share, peak, memory, round_seconds)
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", default=list(JOBS), metavar="JOB", help="default: all")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--precision", choices=("bf16", "tf32", "fp32"), default="bf16")
    parser.add_argument("--preset", choices=("paper", "default"), default="paper", help="sizes of images and networks")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu.json")
    args = parser.parse_args()
    rows = []
    for name in args.jobs:
        print(f"{name} ...", flush=True)
        rows += measure(name, device=args.device, precision=args.precision, preset=args.preset)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=2) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
