"""What a site's process loads: FLARE's simulator starts one for every task, so each second of a start is paid often."""

import os
import subprocess
import sys

import numpy as np
import pytest
from factories import CLASSES, ROOT, make_site_folder
from nifti_factories import make_volume_site

pytestmark = pytest.mark.slow
LABELS = np.array([[1, -1, -1], [0, -1, -1]] * 3)
ROUND = """
import sys
from pathlib import Path
from fedmend.method import RoundTask
from fedmend.methods.{module} import WARMUP, {name}
from fedmend.learning.networks import initial_network
from fedmend.messages import TRAIN, Question, RunSpec
from fedmend.site.config import SiteConfig
from fedmend.site.worker import SiteSettings, SiteWorker

folder, run = Path(sys.argv[1]), RunSpec("run-1", {classes}, "{network}", 7)
config = SiteConfig(folder / "data", folder / "cache", folder / "state", threads=1)
weights = initial_network(run.network, run.classes, 7).state_dict()
settings = SiteSettings.of(learning_rate=0.1, batch_size=4, image_size=32, keep_moments=True)
worker = SiteWorker({name}({option}=False), settings)
task = RoundTask(WARMUP, int(sys.argv[2]), 3, seed=7)
weights = {{k: v.numpy() for k, v in weights.items() if v.ndim}}
question = Question(TRAIN, weights, {{"site-1": task}}, run, {evaluate})
result = worker.answer("site-1", question, config)
assert result.weights, result.error
print(*(m for m in ("torch._dynamo", "torchvision", "monai", "sklearn", "matplotlib", "pydicom") if m in sys.modules))
"""


def _labelled(folder):
    return make_site_folder(folder, LABELS, splits=("val",), size=32)


def _marked(folder):
    masks = np.zeros((2, 32, 32, 8), dtype=np.uint8)
    masks[:, 8:12, 8:12, 2:6] = 1
    return make_volume_site(folder, list(masks), test=())


METHODS = {
    "fedmlp": (_labelled, {"name": "FedMLP", "option": "st", "network": "resnet_narrow", "classes": CLASSES}),
    "fedia": (_marked, {"name": "FedIA", "option": "augment", "network": "unet_narrow", "classes": ("lesion",)}),
}


@pytest.mark.parametrize("module", METHODS)
def test_a_round_after_the_first_loads_no_compiler_and_no_library_that_it_does_not_use(tmp_path, module):
    make, fields = METHODS[module]
    make(tmp_path / "data")
    script = ROUND.format(module=module, evaluate=module == "fedmlp", **fields)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "custom"), str(ROOT)])}
    words = [sys.executable, "-c", script, str(tmp_path)]
    said = [subprocess.run([*words, str(r)], env=env, capture_output=True, text=True, timeout=120) for r in (0, 1)]
    assert [run.returncode for run in said] == [0, 0], said
    assert "torch._dynamo" in said[0].stdout  # the memory that a step needs is estimated once
    assert said[1].stdout.split() == []
