"""Whether temperatures of the validation images help on other images; slow, as a federation is trained for it."""

from pathlib import Path

import numpy as np
import pytest

import fedmend
from fedmend.kinds.multilabel import multilabel_metrics

SETTINGS = {"num_rounds": 4, "local_epochs": 3, "phantom.images": 4000, "phantom.pixels": 32, "phantom.val_share": 0.5}


def held_out(package, folders):
    """Per class, the calibration error of the network's own and of the package's probabilities, and the two AUCs, on
    the test splits of all sites together."""
    counts = np.sum([package.evaluate(folder).counts for folder in folders], axis=0)
    plain = multilabel_metrics(counts)["per_class"]
    rows = [multilabel_metrics(counts[c : c + 1], stretch=1 / t) for c, t in enumerate(package.temperatures)]
    fitted = {name: [row["per_class"][name][0] for row in rows] for name in ("ece", "auc")}
    return np.array(plain["ece"]), np.array(fitted["ece"]), plain["auc"], fitted["auc"]


@pytest.mark.slow
def test_fitted_temperatures_lower_the_calibration_error_on_images_that_fitted_nothing(tmp_path):
    cache = str(tmp_path / "cache")
    fedmend.Job("fedmlp_ich", **SETTINGS).run("local", tmp_path / "run", site={"cache_dir": cache}, progress=False)
    package = fedmend.Package(tmp_path / "run")
    folders = sorted(file.parent for file in Path(cache, "phantoms").glob("ich-*/site-*/site.json"))
    assert len(folders) == 5
    plain, fitted, auc_before, auc_after = held_out(package, folders)
    has = np.array([not reason for reason in package.not_fitted])
    print(f"ECE before {plain.round(3)} and after {fitted.round(3)}; fitted {has}, {plain[has].mean():.3f} to", end=" ")
    print(f"{fitted[has].mean():.3f}")  # for pytest -s
    assert has.sum() >= 4
    assert fitted[has].mean() < plain[has].mean()
    assert fitted[~has].tolist() == plain[~has].tolist()
    assert auc_after == pytest.approx(auc_before, abs=1e-12)
