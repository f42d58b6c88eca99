"""What ``import fedmend`` offers, and what it does not load."""

import os
import subprocess
import sys

import pytest
from factories import ROOT

import fedmend
import fl_components.api


def test_job_and_run_are_those_of_the_glue_and_are_named():
    assert (fedmend.Job, fedmend.Run) == (fl_components.api.Job, fl_components.api.Run)
    assert {"Job", "Package", "Run", "__version__"} <= set(dir(fedmend))
    assert set(fedmend.__all__) == {"Job", "Package", "Run", "__version__"}


def test_no_other_name_opens_the_door():
    with pytest.raises(AttributeError, match=r"^module 'fedmend' has no attribute 'Jobs'$"):
        _ = fedmend.Jobs


@pytest.mark.parametrize(
    ("word", "absent"),
    [
        ("import fedmend", {"nvflare", "fl_components", "torch", "numpy", "pandas"}),
        ("import fedmend; fedmend.Job('fedmlp_ich')", {"nvflare", "torch", "monai", "pandas", "tqdm"}),
    ],
)
def test_little_is_loaded_before_it_is_needed(word, absent):
    code = f"import sys; {word}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "custom"), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert absent & set(done.stdout.split()) == set()
