import subprocess
import sys

import pytest

from fedmend.kinds import KINDS
from fedmend.report.kinds import KIND_REPORTS


def test_every_kind_of_labels_has_a_presentation():
    assert list(KIND_REPORTS) == list(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_the_metric_that_chooses_the_best_model_is_shown(name):
    assert KINDS[name].best_metric in [metric.macro for metric in KIND_REPORTS[name].metrics]


def test_a_report_is_written_without_torch():
    code = "import sys, fedmend.report.report, fedmend.report.kinds; sys.exit('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)})
    assert found.returncode == 0
