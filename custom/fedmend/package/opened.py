"""A model package as it is read: everything but what it is used for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend.basics.checked import FLAG, OBJECT, PATH, TEXT, accepted, checked, one_of, shown, taking, that
from fedmend.errors import FedMendError
from fedmend.labels import KIND_NAMES, MULTILABEL
from fedmend.preprocessing import READER, Preprocessing
from fedmend.records.package_files import ABOUT, SUFFIX, WEIGHTS, package_digest, read_package, read_weights
from fedmend.records.run_folder import RUN_FOLDER

if TYPE_CHECKING:
    from torch.nn import Module

NAMES = that(
    lambda v: isinstance(v, list) and v and all(isinstance(name, str) for name in v) and len({*v}) == len(v),
    "a list of different names",
)
NETWORK = that(lambda v: isinstance(v, dict) and isinstance(v.get("name"), str), "a JSON object with the name of one")
LOCAL = "local"  # as fedmend.learning.local_norm has it, which imports PyTorch
MOST_PIXELS = 2**28  # that a network sees at once, as fedmend.data.inputs has it, which imports PyTorch
DEFAULT = 0.5  # threshold where no validation split has chosen one


@dataclass(frozen=True)
class _About:
    """The fields of ``package.json`` that the code uses."""

    name: str = taking(TEXT)
    phantom: bool = taking(FLAG)
    kind: str = taking(one_of(KIND_NAMES))
    classes: Sequence[str] = taking(NAMES)
    network: Mapping[str, Any] = taking(NETWORK)
    preprocessing: Preprocessing = taking(Preprocessing)
    thresholds: Mapping[str, Any] = taking(OBJECT)


class OpenedPackage:
    """The content of a package; :class:`fedmend.package.Package` is what people open.

    Args:
        folder: as there.

    Raises:
        FedMendError: as there.
    """

    def __init__(self, folder: Path | str):
        self.folder = find_package(accepted(folder, [PATH], "package", shown))
        self.info = read_package(self.folder)
        where = f"package {self.folder.name}, {ABOUT}"
        prepared = self.info.get("preprocessing")
        reader = prepared.get("reader") if isinstance(prepared, Mapping) else None
        if reader != READER:
            raise FedMendError(
                f"{where}, field preprocessing.reader: expected {READER}, got {reader!r:.20}; use the FedMend that"
                " made the package"
            )
        about = checked(_About, self.info, where, others=True)
        self.name, self.kind, self.classes, self.phantom = about.name, about.kind, tuple(about.classes), about.phantom
        self.preprocessing, self._network, self._chosen = about.preprocessing, about.network, about.thresholds
        pixels = max(1, about.preprocessing.study_slices) * about.preprocessing.image_size**2
        if pixels > MOST_PIXELS:
            most = f"at most {MOST_PIXELS} pixels of a study"
            raise FedMendError(f"{where}, field preprocessing: expected {most}, got {pixels}")
        reasons = self._chosen.get("not_fitted", [""] * len(self.classes))
        if not isinstance(reasons, list) or [type(reason) for reason in reasons] != [str] * len(self.classes):
            raise FedMendError(f"{where}, field thresholds.not_fitted: expected a text for each class, got others")
        temperatures = self._chosen.get("temperature", [1.0] * len(self.classes))
        listed = temperatures if isinstance(temperatures, list) else [None]
        if not all(type(t) is float and 0 < t < math.inf for t in listed):
            raise FedMendError(f"{where}, field thresholds.temperature: expected numbers > 0, got others")
        if len(listed) != len(self.classes):
            raise FedMendError(f"{where}, field thresholds.temperature: expected one for each class, got others")
        cuts = self._chosen.get("threshold", [DEFAULT] * len(self.classes))
        if not _are_shares(cuts, len(self.classes)):
            raise FedMendError(
                f"{where}, field thresholds.threshold: expected a number from 0 to 1 for each class, got others"
            )
        bands = self._chosen.get("not_sure", [[cut, cut] for cut in cuts])
        if not (isinstance(bands, list) and len(bands) == len(cuts) and all(_are_shares(pair, 2) for pair in bands)):
            raise FedMendError(
                f"{where}, field thresholds.not_sure: expected two numbers from 0 to 1 for each class, got others"
            )

    @property
    def digest(self) -> str:
        """SHA-256 that stands for all of its files."""
        return package_digest(self.folder)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """C probabilities, calibrated where the package calibrates, above which a score counts as the class; 0.5 where
        none were chosen."""
        return tuple(self._chosen.get("threshold", [DEFAULT] * len(self.classes)))

    @property
    def calibrated(self) -> bool:
        """Whether probabilities are calibrated on the validation split of the run."""
        return self.kind == MULTILABEL and "temperature" in self._chosen and not all(self.not_fitted)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """C numbers by which logits are divided before they become probabilities; 1 where none were fitted."""
        return tuple(self._chosen["temperature"]) if self.calibrated else (1.0,) * len(self.classes)

    @property
    def not_sure(self) -> tuple[tuple[float, float], ...]:
        """C pairs of probabilities; between them another validation split might have decided otherwise."""
        return tuple((low, high) for low, high in self._chosen.get("not_sure", [[t, t] for t in self.thresholds]))

    @property
    def not_fitted(self) -> tuple[str, ...]:
        """C texts, why the validation split could choose no threshold and temperature of a class, which has 0.5 and 1;
        empty where it could, or where the package does not say."""
        return tuple(self._chosen.get("not_fitted", [""] * len(self.classes)))

    def network(self) -> "Module":
        """The network with its weights, on the CPU, ready to be asked (``eval``).

        Raises:
            FedMendError: the weights do not fit the network, or its normalisation layers stayed at the sites.
        """
        if self.info.get("norm") == LOCAL:
            raise FedMendError(
                f"package {self.folder.name}: expected a whole model, its normalisation layers stayed at the sites"
                " (norm local); `fedmend personalise` at a site makes a package that has the site's own"
            )
        return self.network_without_norm()

    def network_without_norm(self) -> "Module":
        """:meth:`network`, also where normalisation layers stayed at the sites and the network has initial ones.

        Raises:
            FedMendError: the weights do not fit the network.
        """
        import torch

        from fedmend.learning.networks import build_network
        from fedmend.learning.weights import check_fit, set_weights

        weights = {name: torch.from_numpy(value) for name, value in read_weights(self.folder).items()}
        named = self._network["name"], len(self.classes)
        with torch.device("meta"):  # a small package may name a network that no memory holds
            empty = build_network(*named)
        try:
            check_fit(empty, weights)
            model = build_network(*named)
            set_weights(model, weights)
        except FedMendError as e:
            raise FedMendError(f"package {self.folder.name}, {WEIGHTS}: {e}") from None
        return model.eval()

    def __repr__(self) -> str:
        phantom = "PHANTOM " if self.phantom else ""
        chosen = self._chosen and not all(self.not_fitted)
        decides = "thresholds chosen on validation" if chosen else "no thresholds chosen"
        probabilities = ", calibrated probabilities" if self.calibrated else ""
        words = f", {decides}{probabilities}" if self.kind == MULTILABEL else ""
        for reason in [*dict.fromkeys(filter(None, self.not_fitted))]:
            names = [name for name, why in zip(self.classes, self.not_fitted, strict=True) if why == reason]
            words += f"; {', '.join(names)} n/a: {reason}"
        return f"{phantom}package {self.name}: {self._network.get('name')} for {', '.join(self.classes)}{words}"


def _are_shares(values: object, count: int) -> bool:
    """Whether these are so many numbers from 0 to 1."""
    if not isinstance(values, list) or len(values) != count:
        return False
    return all(type(v) in (int, float) and 0 <= v <= 1 for v in values)


def find_package(folder: Path) -> Path:
    """The package that somebody means: a folder, or the only package with a final model in it; in the workspace of a
    simulation the server's, as sites may keep copies.

    Raises:
        FedMendError: there is none in it, or more than one.
    """
    if (folder / ABOUT).is_file() or not folder.is_dir():
        return folder
    place = folder / RUN_FOLDER if (folder / RUN_FOLDER).is_dir() else folder
    found = sorted(file.parent for file in place.rglob(f"*{SUFFIX}/{ABOUT}") if not file.parent.stem.endswith("-best"))
    if len(found) != 1:
        raise FedMendError(f"package: expected one {SUFFIX} in {folder}, found {len(found) or 'none'}")
    return found[0]
