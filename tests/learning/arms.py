"""Runs of the learning tests: a job as it is and variants of it, and what they leave."""

import json

from factories import ROOT

from fedmend.records.run_folder import RUN_FOLDER
from fl_components.job.folder import Changes
from fl_components.run.local import run_local


def train(job, home, variants, variables, *, only_method=None, sites=0):
    """Arm → run folder; the job as it is makes the arm ``method``, which alone has the variables ``only_method``."""
    for arm in ("method", *variants):
        as_it_is = arm == "method"
        settings = {**variables, **(only_method or {} if as_it_is else {})}
        train_row(job, "" if as_it_is else arm, home / arm, settings, cache=home / "cache", sites=sites)
    return {arm: home / arm / RUN_FOLDER for arm in ("method", *variants)}


def train_row(job, variant, home, variables, *, cache, sites=0):
    """Metrics of the final model on the test split; a cache for several rows lets their phantom be drawn once."""
    results = run_local(
        ROOT / "jobs" / job,
        home,
        Changes(variables, [variant] if variant else [], sites),
        threads=1,
        site_settings={"cache_dir": str(cache)},
        quiet=True,
    )
    return results["final"]["test"]


def lines(folder, name):
    """Records of a run."""
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def final(folders, metric):
    """Arm → metric of its final model on the test split."""
    return {
        arm: json.loads((folder / "results.json").read_text())["final"]["test"][metric]
        for arm, folder in folders.items()
    }


def last(folders, metric, *, rounds):
    """Arm → mean of the metric over the last rounds: on a small test split it jumps from round to round."""
    means = {}
    for arm, folder in folders.items():
        values = [line["macro"][metric] for line in lines(folder, "metrics")[-rounds:]]
        means[arm] = sum(values) / len(values)
    return means
