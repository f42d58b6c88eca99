"""How results are shown, one module per kind of labels; nothing else in the report asks which kind it has to do with.

Apart from :mod:`fedmend.kinds`, because a page is made without torch.
"""

from collections.abc import Mapping

from fedmend.report.kinds.base import KindReport
from fedmend.report.kinds.multilabel import MultiLabelReport
from fedmend.report.kinds.segmentation import SegmentationReport
from fedmend.report.kinds.singlelabel import SingleLabelReport

KIND_REPORTS: Mapping[str, KindReport] = {
    kind.name: kind for kind in (MultiLabelReport(), SingleLabelReport(), SegmentationReport())
}
