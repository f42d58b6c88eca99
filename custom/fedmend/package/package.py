"""A model package: a trained model with all that somebody needs who uses it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedmend.basics.checked import PATH, PLACE, Check, accepted, shown, that, whole
from fedmend.errors import FedMendError
from fedmend.package.evaluate import Evaluated, evaluate_package
from fedmend.package.opened import OpenedPackage
from fedmend.package.predict import Predicted, predict


class Package(OpenedPackage):
    """A model package, the folder ``NAME.fedmend`` that a run writes.

    Args:
        folder: the package, or a folder in which it is the only one with its final model, e.g. that of a run.

    Attributes:
        folder: the package.
        info: content of ``package.json``: metrics, provenance, sites, versions, parent.
        name: of the run, with ``-best`` where it is its best model.
        kind: kind of labels.
        classes: C class names, in the order of all columns.
        preprocessing: what the sites did with a file.
        phantom: the model was trained on synthetic data.

    Raises:
        FedMendError: no package, a file that has changed, or a field that is missing or wrong.

    Example::

        package = fedmend.Package("runs/fedmlp_ich/server/simulate_job/fedmend/fedmlp_ich.fedmend")
        package.predict("studies/", "out/")
    """

    def predict(
        self,
        source: Path | str,
        out: Path | str,
        *,
        device: str = "",
        processes: int | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
        dicom: Path | str | None = None,
    ) -> Predicted:
        """Asks the model about new images, and writes a table of them and one of their studies; of volumes a table and
        a mask of each.

        Images are read and prepared as at the sites that trained the model. A call that was interrupted is taken up
        where it stopped by a second one with the same arguments, and leaves the same bytes.

        Args:
            source: folder of DICOM files, pictures or NIfTI volumes, of any depth, of which a model of masks takes
                DICOM series and NIfTI volumes; one such file; or a CSV with the column ``image``, and ``study`` if
                wanted.
            out: folder for ``predictions.csv`` and ``studies.csv``, or ``masks``: new, or that of the same call.
            device: PyTorch's word; empty: a GPU where there is one.
            processes: that read images, at most; None: one per core.
            progress: gets the number of images that are newly done, and of all.
            dicom: folder for the results as DICOM: of masks a segmentation of each series, of labels a structured
                report of each study.

        Raises:
            FedMendError: nothing to read, images of another modality, or a folder with something else.
        """
        source, out = _path("source", source), _path("out", out, PLACE)
        accepted(progress, [that(callable, "a function of two numbers")], "progress", shown)
        how: dict[str, Any] = {"device": device, "progress": progress}
        how["processes"] = None if processes is None else accepted(processes, [whole(1)], "processes", shown)
        how["dicom"] = None if dicom is None else _path("dicom", dicom, PLACE)
        return predict(self, source, out, **how)

    def export(
        self, *, monai: Path | str | None = None, onnx: Path | str | None = None, torch: Path | str | None = None
    ) -> list[Path]:
        """Writes the model for other programs, in any of three forms; each gives the probabilities of :meth:`predict`.

        Args:
            monai: new folder for a MONAI bundle, which reads and prepares images without FedMend.
            onnx: new file ``.onnx``, from pixels in 0..1 to probabilities.
            torch: new file ``.pt2`` of ``torch.export``, from pixels in 0..1 to probabilities.

        Returns:
            What was written.

        Raises:
            FedMendError: no form is asked for, something is there already, or the form cannot hold the model.
        """
        from fedmend.package.export_graph import write_onnx, write_torch
        from fedmend.package.export_monai import write_bundle

        forms = ((write_bundle, monai, ""), (write_onnx, onnx, ".onnx"), (write_torch, torch, ".pt2"))
        asked = [(write, _path("export", out), suffix) for write, out, suffix in forms if out is not None]
        if not asked:
            raise FedMendError("export: expected one of --monai, --onnx and --torch with a place to write to, got none")
        if self.preprocessing.spacing:
            raise FedMendError("export: expected a model of slices, got one of volumes")
        if self.preprocessing.study_slices:
            raise FedMendError("export: expected a model of images, got one of whole studies")
        for _, out, suffix in asked:  # all, before the first is written
            if suffix and out.suffix != suffix:
                raise FedMendError(f"export: expected the name of a file that ends with {suffix}, got {out.name!r:.80}")
            if out.exists():
                what = "file" if suffix else "folder"
                raise FedMendError(f"export: expected the name of a new {what}, {out} is there")
        for write, out, _ in asked:
            write(self, out)
        return [out for _, out, _ in asked]

    def evaluate(
        self,
        folder: Path | str,
        out: Path | str = "",
        *,
        split: str = "test",
        by: Sequence[str] = (),
        min_count: int = 5,
        device: str = "",
    ) -> Evaluated:
        """Measures the model on a split of a site folder, held-out or external data that nobody has trained on.

        Images are read as at the sites that trained the model. With the settings of the training, the metrics are those
        that a site of the run has on this split.

        Args:
            folder: the site folder, with ``site.json``.
            out: folder for ``evaluation.html`` and ``evaluation.json``; empty: none are written.
            split: a name in the card's ``splits``.
            by: columns that the card lists and how they group samples: ``sex`` (each value), ``sex:F,M`` (these) or
                ``age:40,60`` (bands).
            min_count: a subgroup's number that describes fewer people is held back, and what would give it away.
            device: PyTorch's word; empty: a GPU where there is one.

        Raises:
            FedMendError: other classes, kind or modality, no such split or column, or images that cannot be read.
        """
        how: dict[str, Any] = {"split": split, "by": by, "min_count": min_count, "device": device}
        return evaluate_package(self, _path("folder", folder), _path("out", out, PLACE) if out else None, **how)


def _path(word: str, given: object, *checks: Check) -> Path:
    path: Path = accepted(given, [PATH, *checks], word, shown)
    return path
