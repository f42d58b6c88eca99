"""How results are shown, one module per kind of labels; nothing else in the report asks which kind it has to do with.

Apart from :mod:`fedmend.kinds`, because a page is made without torch.
"""

from collections.abc import Mapping

from fedmend.labels import MULTILABEL, SINGLELABEL
from fedmend.records.run_folder import RunFiles
from fedmend.report.kinds.base import KindReport
from fedmend.report.kinds.multilabel import MultiLabelReport
from fedmend.report.kinds.segmentation import SegmentationReport
from fedmend.report.kinds.singlelabel import SingleLabelReport

KIND_REPORTS: Mapping[str, KindReport] = {
    kind.name: kind for kind in (MultiLabelReport(), SingleLabelReport(), SegmentationReport())
}


def shown_as(run: RunFiles) -> KindReport:
    """How the results of a run are shown, by its kind of labels.

    ``run.json`` names the kind. It did not in the first runs, but of these only the ones with one label per sample
    counted a confusion matrix.
    """
    counted = any("confusion" in m for m in run.evaluations)
    return KIND_REPORTS[run.info.get("task") or (SINGLELABEL if counted else MULTILABEL)]
