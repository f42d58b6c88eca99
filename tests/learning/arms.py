"""Arms of a learning test: a job as it is and variants of it, trained with the same settings, and what they leave."""

import json

from factories import ROOT

from fl_components.run.local import run_local
from fl_components.run.simulate import RUN_FOLDER


def train(job, home, variants, variables, *, only_method=None, sites=0):
    """Arm → run folder; the job as it is makes the arm ``method``, which alone has the variables ``only_method``."""
    folders = {}
    for arm in ("method", *variants):
        as_it_is = arm == "method"
        run_local(
            ROOT / "jobs" / job,
            home / arm,
            threads=1,
            variables={**variables, **(only_method or {} if as_it_is else {})},
            variants=[] if as_it_is else [arm],
            sites=sites,
            site_settings={"cache_dir": str(home / "cache")},  # the phantom is drawn once
            quiet=True,
        )
        folders[arm] = home / arm / RUN_FOLDER
    return folders


def lines(folder, name):
    """Records of a run."""
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def final(folders, metric):
    """Arm → metric of its final model on the test split."""
    return {
        arm: json.loads((folder / "results.json").read_text())["final"]["test"][metric]
        for arm, folder in folders.items()
    }
