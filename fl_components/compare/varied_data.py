"""Repetitions of a comparison that differ in their data, not in the seed of the training alone."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from fedmend.errors import FedMendError
from fedmend.phantoms.sites import phantoms
from fl_components.compare.runs import DATA_ROOT, SEED
from fl_components.job.folder import Changes, read_job


def varied_settings(job: Path, data: str, site_words: Sequence[str], variants: Sequence[str] = ()) -> list[str]:
    """Settings by which each federation has data of its own.

    Every seed of the job's phantom becomes the federation's number, those of partition and noise with a digit before
    it, so that they draw from other streams than the images. Folders of sites were prepared with other seeds before:
    their path has the number.

    Args:
        job: job folder.
        data: folder of the sites, or "".
        site_words: ``field=value`` of ``fedmend.json``.
        variants: of all rows, which may have another phantom.

    Raises:
        FedMendError: a path without ``{SEED}``, or a job without a phantom.
    """
    roots = [word for word in site_words if word.startswith(f"{DATA_ROOT}=")]
    if data or roots:
        if not all(SEED in path for path in [*([data] if data else []), *roots]):
            raise FedMendError(
                f"--vary data: expected {SEED} in the path of the data, for folders that fedmend prepare wrote with"
                " different --seed, got none"
            )
        return []
    phantom = read_job(job, Changes(variants=variants)).site.get("phantom") or {}
    cls = phantoms().get(phantom.get("dataset", ""))
    if cls is None:
        raise FedMendError(f"--vary data: expected a job with a phantom or --data with {SEED} in it, got neither")
    seeds = ["seed", *sorted(f.name for f in fields(cls) if f.name.endswith("_seed"))]
    return [f"phantom.{name}={place or ''}{SEED}" for place, name in enumerate(seeds)]
