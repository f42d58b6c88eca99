import subprocess
import sys

import pytest
from run_factories import make_label_set_run, make_lesion_run, make_single_label_run, rows_in, rows_of

from fedmend.kinds import KINDS
from fedmend.report.kinds import KIND_REPORTS
from fedmend.report.report import write_report
from fedmend.report.sections.fedia import corrections
from fedmend.report.sections.results import sites


def test_every_kind_of_labels_has_a_presentation():
    assert list(KIND_REPORTS) == list(KINDS)


@pytest.mark.parametrize("name", KINDS)
def test_the_metric_that_chooses_the_best_model_is_shown(name):
    assert KINDS[name].best_metric in [metric.macro for metric in KIND_REPORTS[name].metrics]


def test_the_tenth_site_comes_after_the_ninth(tmp_path):
    make_single_label_run(tmp_path)
    for file in tmp_path.glob("*.json*"):
        file.write_text(file.read_text().replace("site-2", "site-10").replace('site-1"', 'site-9"'))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert [row[0] for row in rows_of(page, "sites")][2:] == ["site-4", "site-9", "site-10", "All sites"]
    for make, section in ((make_label_set_run, sites), (make_lesion_run, sites), (make_lesion_run, corrections)):
        run = make()
        run.info["sites"] = {
            f"site-{n}": known for n, known in zip((10, 9, 1), run.info["sites"].values(), strict=True)
        }
        named = [row[0] for row in rows_in(section(run)) if row and row[0].startswith("site")]
        assert named == ["site-1", "site-9", "site-10"]


def test_a_report_is_written_without_torch():
    code = "import sys, fedmend.report.report, fedmend.report.kinds; sys.exit('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)})
    assert found.returncode == 0
