"""The checks that a hospital runs before it joins: its computer, its settings, its data, the job, the way to the server.

At the top stands only what works without the packages that a job needs, so that a missing one is a line like any other.
"""

import importlib
import json
import logging
import platform
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import metadata
from itertools import chain
from pathlib import Path

from fedmend.errors import FedMendError

OK, WARN, FAIL, SKIP = "ok", "warn", "fail", "skip"
COLORS = {OK: 32, WARN: 33, FAIL: 31, SKIP: 2}  # ANSI: green, yellow, red, faint
GB = 1e9
MEMORY = 4 * GB  # FLARE's two processes of a site and a training; twice what was measured
STATE = 0.5 * GB  # optimizer moments or a few models, ledger
USUAL_SIZE = 224  # edge length in pixels of the papers, where no job says another
RENEWAL = timedelta(days=30)  # before the end of a certificate
MOST_ROWS = 10  # rows that are listed
METHODS = "fedmend.methods."


@dataclass(frozen=True)
class Result:
    """What one check found.

    Attributes:
        status: ``ok``, ``warn``, ``fail`` or ``skip``.
        text: what was expected and found.
        details: further lines.
    """

    status: str
    text: str
    details: Sequence[str] = ()


@dataclass(frozen=True)
class JobNeeds:
    """What a job asks of a site.

    Attributes:
        name: the job's name.
        classes: its classes.
        client: its client configuration with all variables put in.
        own_code: it brings code of its own.
    """

    name: str
    classes: tuple[str, ...]
    client: Mapping
    own_code: bool

    @property
    def image_size(self) -> int | None:
        """Edge length in pixels, where the job opens images."""
        return self.client.get("image_size")

    @property
    def batch_size(self) -> int:
        """Fewest training samples."""
        return self.client.get("batch_size", 0)

    def method(self) -> type | None:
        """The class of its method, or None of a job without one.

        Raises:
            FedMendError: the installed FedMend does not have it.
        """
        chosen = self.client.get("method")
        if chosen is None:
            return None
        path = next((c.get("path", "") for c in self.client.get("components", []) if c.get("id") == chosen), "")
        module, _, name = path.rpartition(".")
        if path.startswith(METHODS):  # importing runs code: nothing else that a job names
            with suppress(ImportError, AttributeError):
                return getattr(importlib.import_module(module), name)
        raise FedMendError(f"method {chosen}: expected in FedMend {metadata.version('fedmend')}, not found")

    def components(self) -> list[Mapping]:
        """Every mapping of the client configuration that names a class."""
        found, queue = [], [self.client]
        while queue:
            value = queue.pop(0)
            if isinstance(value, Mapping):
                found += [value] if "path" in value or "class_path" in value else []
                queue += value.values()
            elif isinstance(value, list):
                queue += value
        return found


def read_job(folder: Path) -> JobNeeds:
    """Reads what a job folder asks of a site.

    Raises:
        FedMendError: no job folder, or one whose files do not parse or lack classes.
    """
    from nvflare.fuel.utils.json_scanner import JsonScanner
    from nvflare.fuel.utils.wfconf import resolve_var_refs

    files = [folder / "meta.json"]
    for side in ("server", "client"):
        files += sorted(folder.glob(f"*/config/config_fed_{side}.json"))
    try:
        meta, server, client = (json.loads(file.read_text(encoding="utf-8")) for file in files)
        resolve_var_refs(JsonScanner(client), deepcopy(client))
        return JobNeeds(meta["name"], tuple(server["classes"]), client, any(folder.glob("*/custom")))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        raise FedMendError(
            "expected a job folder with meta.json and one configuration of the server, with classes, and one of the clients,"
            " got another"
        ) from None


class SiteCheck:
    """All checks of one site, in order; a later one uses what an earlier one has opened, and is skipped where it could not.

    Args:
        folder: the site folder; None: what ``data_root`` of the kit's ``fedmend.json`` names.
        kit: the site's startup kit, or None.
        job: a job folder, or None.
        classes: the job's classes where there is no job folder; empty: those of the card.
        max_unreadable: tolerated unreadable images per split; None: what ``fedmend.json`` says, or none.

    Raises:
        FedMendError: neither folder nor kit, or no startup kit of a site.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        kit: Path | None = None,
        job: Path | None = None,
        classes: Sequence[str] = (),
        max_unreadable: int | None = None,
    ):
        if folder is None and kit is None:
            raise FedMendError("sitecheck: expected a site folder or --kit, got neither")
        self._folder, self._kit, self._job_folder, self._given_classes = folder, kit, job, tuple(classes)
        self._max_unreadable = max_unreadable
        self.name = folder.resolve().name if kit is None else _name_of_kit(kit)
        self._config = self._job = self._annotation = self._data = None
        self._classes: tuple[str, ...] = ()
        self._samples: dict[str, tuple[Sequence[str], Sequence[str]]] = {}  # split → images, patients

    def run(self) -> Iterator[tuple[str, Result]]:
        """Check → what it found."""
        yield "python", self._try(self._python)
        packages = self._try(self._packages)
        yield "packages", packages
        if packages.status == FAIL:
            yield "all other checks", Result(SKIP, "need the packages")
            return
        checks = {
            "gpu": self._gpu,
            "memory": self._memory,
            "fedmend.json": self._settings,
            "job": self._read_job,
            "class policy": self._policy,
            "site card": self._card,
            "class names": self._class_names,
            "tables": self._tables,
            "images": self._images,
            "counts": self._counts,
            "overlap": self._overlap,
            "disk": self._disk,
            "clock": self._clock,
            "connection": self._connection,
        }
        with tempfile.TemporaryDirectory() as cache:
            self._cache = Path(cache)
            for title, check in checks.items():
                yield title, self._try(check)

    def _try(self, check: Callable[[], Result]) -> Result:
        try:
            return check()
        except FedMendError as e:
            return Result(FAIL, str(e).removeprefix(f"{self.name}: "))
        except OSError as e:  # its message holds a path
            return Result(FAIL, f"expected files and folders that can be read, got an error ({type(e).__name__})")

    # ---- the computer -----------------------------------------------------------------------------------------------
    def _python(self) -> Result:
        from packaging.specifiers import SpecifierSet

        wanted, found = _distribution().metadata["Requires-Python"], platform.python_version()
        return Result(OK if found in SpecifierSet(wanted) else FAIL, f"expected {wanted}, got {found}")

    def _packages(self) -> Result:
        from packaging.requirements import Requirement

        fedmend = _distribution()
        found, wrong = [f"fedmend {fedmend.version}"], []
        for requirement in map(Requirement, fedmend.requires or []):
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            wanted = f"{requirement.name}{requirement.specifier}"
            try:
                version = metadata.version(requirement.name)
            except metadata.PackageNotFoundError:
                wrong.append(f"expected {wanted}, not installed")
                continue
            found.append(f"{requirement.name} {version}")
            if not requirement.specifier.contains(version, prereleases=True):
                wrong.append(f"expected {wanted}, got {version}")
        return Result(FAIL, "; ".join(wrong)) if wrong else Result(OK, ", ".join(found))

    def _gpu(self) -> Result:
        import torch

        if not torch.cuda.is_available():
            return Result(WARN, "expected a GPU, got none: trainings run on the CPU")
        devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return Result(OK, ", ".join(f"{d.name}, {d.total_memory / GB:.1f} GB" for d in devices))

    def _memory(self) -> Result:
        import psutil

        free = psutil.virtual_memory().available
        text = f"expected {MEMORY / GB:.1f} GB free, got {free / GB:.1f} GB; {psutil.cpu_count()} CPU cores"
        return Result(OK if free >= MEMORY else WARN, text)

    # ---- settings, job and policy -----------------------------------------------------------------------------------
    def _settings(self) -> Result:
        from fl_components.site_config import CONFIG_NAME, read_site_config

        if self._kit is None:
            return Result(SKIP, "needs --kit")
        config = read_site_config(self._kit / "local" / CONFIG_NAME, self._kit.resolve(), self.name)
        self._config = config
        wrong = [f"{field}: expected a folder that can be written, got another" for field in self._not_writable()]
        if config.data_root and not config.data_root.is_dir():
            wrong.append("data_root: expected a folder, not found")
        if wrong:
            return Result(FAIL, "; ".join(wrong))
        if config.data_root is None:
            return Result(WARN, "data_root: expected a folder, got phantom: PHANTOM data")
        if self._folder and self._folder.resolve() != config.data_root:
            return Result(WARN, "data_root: expected the folder that is checked, got another: jobs will open that one")
        return Result(OK, f"complete, min_count {config.min_count}, max_unreadable {config.max_unreadable}")

    def _not_writable(self) -> Iterator[str]:
        for field in ("cache_dir", "state_dir"):
            try:
                with tempfile.TemporaryFile(dir=_existing(getattr(self._config, field))):
                    pass
            except OSError:
                yield field

    def _read_job(self) -> Result:
        if self._job_folder is None:
            return Result(SKIP, "needs --job")
        job = read_job(self._job_folder)
        method = job.method()
        self._job = job
        size = f", {job.image_size} pixels, batches of {job.batch_size}" if method else ""
        return Result(OK, f"{job.name}: {len(job.classes)} classes{size}")

    def _policy(self) -> Result:
        """FLARE itself decides: its authorizer reads the kit's ``local/resources.json``, or ``.default``, as it does in a job."""
        from nvflare.apis.fl_exception import UnsafeComponentError
        from nvflare.apis.workspace import Workspace
        from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

        if self._kit is None or self._job is None:
            return Result(SKIP, "needs --kit and --job")
        if self._job.own_code:
            return Result(FAIL, "expected a job without code of its own, got one with a custom folder")
        authorizer, workspace = ComponentPathAuthorizer(), Workspace(str(self._kit), self.name)
        authorizer.logger = logging.Logger("quiet", logging.CRITICAL)  # its warnings name paths

        def refused(component: Mapping) -> bool:
            try:
                authorizer.authorize_component_config(component, workspace=workspace)
            except UnsafeComponentError:
                return True
            except ValueError:
                raise FedMendError("local/resources.json: expected JSON, got a file that does not parse") from None
            return False

        components = self._job.components()
        unlisted = sorted({str(c.get("path", c.get("class_path"))) for c in components if refused(c)})
        if unlisted:
            return Result(FAIL, f"local/resources.json: expected on class_allow_list, not found: {', '.join(unlisted)}")
        if not refused({"path": "fedmend.sitecheck.NoSuchClass"}):
            return Result(
                WARN, "local/resources.json: expected a class_allow_list that is enforced, got one that is not"
            )
        return Result(OK, f"all {len(components)} classes of the job are on class_allow_list")

    # ---- the data ---------------------------------------------------------------------------------------------------
    def _card(self) -> Result:
        from fedmend.annotation import annotation_of
        from fedmend.data.manifest import load_card

        folder = self._folder or self._data_root()
        if folder is None:
            return Result(SKIP, "needs data_root")
        card = load_card(folder, self.name)
        self._annotation, self._classes = annotation_of(card), card.classes
        tasks = self._job.method().TASKS if self._job and self._job.method() else (card.task,)
        if card.task not in tasks:
            known = " or ".join(map(repr, tasks))
            return Result(FAIL, f"site.json, field task: expected {known} for the method of the job, got {card.task!r}")
        return Result(OK, f"{card.task}, {len(card.classes)} classes, splits {', '.join(card.splits)}")

    def _data_root(self) -> Path | None:
        from fedmend.datasets.phantom_sites import phantom_spec
        from fl_components.site_config import site_folder

        if self._config is None:
            return None
        given = self._job.client.get("phantom") if self._job else None
        return site_folder(self.name, self._config, phantom_spec(given) if given else None)

    def _class_names(self) -> Result:
        from fedmend.data.manifest import check_classes

        wanted = self._job.classes if self._job else self._given_classes
        if self._annotation is None or not wanted:
            return Result(SKIP, "needs the site card, and --job or --classes")
        check_classes(self._annotation.card, wanted)
        self._classes = wanted
        return Result(OK, f"the {len(wanted)} classes of the job")

    @property
    def _volumes(self) -> bool:
        from fedmend.data.manifest import SEGMENTATION

        return self._annotation.card.task == SEGMENTATION

    def _splits(self) -> dict[str, str]:
        """Split → file of those that a job opens."""
        from fedmend.data.site import EVALUATION_SPLITS

        card = self._annotation.card
        return {name: card.splits[name] for name in ("train", *EVALUATION_SPLITS) if name in card.splits}

    def _tables(self) -> Result:
        from fedmend.data.manifest import load_table
        from fedmend.data.volumes import load_datalist

        if self._annotation is None:
            return Result(SKIP, "needs the site card")
        card, samples = self._annotation.card, {}
        for name, file in chain(self._splits().items(), (("truth", f) for f in card.truth.values())):
            if self._volumes:
                items = load_datalist(card, file, "train" if name == "truth" else name)
                samples[name] = [item.name for item in items], ()
            else:
                table = load_table(card, file, self._classes)
                samples[name] = table.images, table.patients
        self._samples = {name: found for name, found in samples.items() if name != "truth"}
        return Result(OK, ", ".join(f"{name} {len(images)}" for name, (images, _) in samples.items()) + " images")

    def _images(self) -> Result:
        import torch

        if not self._samples:
            return Result(SKIP, "needs the tables")
        tolerated = self._max_unreadable
        if tolerated is None:
            tolerated = self._config.max_unreadable if self._config else 0
        try:
            data = self._annotation.load(
                self._classes,
                cache_dir=self._cache,
                image_size=self._annotation.check_size,
                device=torch.device("cpu"),
                max_unreadable=tolerated,
            )
            self._annotation.load_truth(data)
        except FedMendError:
            if rows := list(self._unreadable()):
                text = f"expected no missing image and at most {tolerated} unreadable ones per split, got"
                return Result(FAIL, f"{text} {len(rows)} in all", _first(rows))
            raise
        self._data = data
        if not self._volumes and sum(map(len, self._loaded().values())) < self._listed():
            rows = list(self._unreadable())
            text = f"expected every image readable, got {len(rows)} that are left out, as max_unreadable allows"
            return Result(WARN, text, _first(rows))
        return Result(OK, f"all {self._listed()} read")

    def _listed(self) -> int:
        return sum(len(images) for images, _ in self._samples.values())

    def _loaded(self) -> dict:
        return {"train": self._data.train, **self._data.evaluation}

    def _unreadable(self) -> Iterator[str]:
        """Every row whose image, or mask, cannot be read, and why."""
        from fedmend.data.manifest import load_table
        from fedmend.data.readers import UnreadableImage, read_image
        from fedmend.data.volumes import SECTIONS, load_datalist, read_pair

        card = self._annotation.card
        for name, file in self._splits().items():
            if self._volumes:
                for number, item in enumerate(load_datalist(card, file, name), 1):
                    try:
                        read_pair(item, f"{file}, {SECTIONS[name]} item {number}", card.foreground)
                    except FedMendError as e:
                        yield str(e)
                continue
            table = load_table(card, file, self._classes)
            for row, image in zip(table.rows, table.images, strict=True):
                try:
                    read_image(card.image_root / image, card.window, color=card.color)
                except FileNotFoundError:
                    yield f"{file} row {row}: expected a file below image_root, not found"
                except UnreadableImage as e:
                    yield f"{file} row {row}: {e}"
                except OSError as e:
                    yield f"{file} row {row}: expected a file that can be opened, got an error ({type(e).__name__})"

    def _counts(self) -> Result:
        if self._data is None:
            return Result(SKIP, "needs the images")
        details = self._annotation.describe(self._data)
        sizes = ", ".join(f"{name} {len(split)}" for name, split in self._loaded().items())
        least = self._job.batch_size if self._job else 0
        if len(self._data.train) < least:
            text = f"expected at least {least} training samples (batch_size of the job), got {len(self._data.train)}"
            return Result(FAIL, text, details)
        positives = self._annotation.positives(self._data)[self._data.annotated]
        min_count = self._config.min_count if self._config else 0
        if few := int((positives < min_count).sum()):
            text = f"expected at least min_count {min_count} positive training samples of each annotated class, got fewer of"
            return Result(WARN, f"{text} {few}; {sizes} samples", details)
        return Result(OK, f"{sizes} samples", details)

    def _overlap(self) -> Result:
        if not self._samples:
            return Result(SKIP, "needs the tables")
        images, patients = (
            sum(
                n > 1
                for n in Counter(chain.from_iterable(set(s[kind]) - {""} for s in self._samples.values())).values()
            )
            for kind in (0, 1)
        )
        named = any(any(keys) for _, keys in self._samples.values())
        found = f"{images} images and {patients} patients" if named else f"{images} images; no patients are named"
        return Result(WARN if images or patients else OK, f"expected nothing in two splits, got {found}")

    def _disk(self) -> Result:
        if self._config is None or self._data is None:
            return Result(SKIP, "needs fedmend.json and the images")
        card, samples = self._annotation.card, sum(map(len, self._loaded().values()))
        size = (self._job and self._job.image_size) or USUAL_SIZE
        needs = {"cache_dir": samples * size**2 * (3 if card.color or self._volumes else 1)}
        needs["state_dir"] = STATE
        wanted, free = Counter(), {}
        for field, need in needs.items():
            place = _existing(getattr(self._config, field))
            device = place.stat().st_dev
            wanted[device] += need
            free[device] = shutil.disk_usage(place).free
        least = min(free, key=lambda device: free[device] - wanted[device])
        told = " and ".join(f"{need / GB:.1f} GB in {field}" for field, need in needs.items())
        text = f"expected {told} ({samples} images of {size} pixels), got {free[least] / GB:.1f} GB"
        return Result(OK if free[least] >= wanted[least] else FAIL, text)

    # ---- the way to the server --------------------------------------------------------------------------------------
    def _clock(self) -> Result:
        """No server tells its time; but a clock outside the validity of the site's certificate gets no connection."""
        from cryptography import x509

        if self._kit is None:
            return Result(SKIP, "needs --kit, whose certificate says what time it can be")
        try:
            certificate = x509.load_pem_x509_certificate((self._kit / "startup" / "client.crt").read_bytes())
        except ValueError:
            raise FedMendError("startup/client.crt: expected a certificate, got another file") from None
        start, end, now = certificate.not_valid_before_utc, certificate.not_valid_after_utc, _now()
        text = (
            f"expected {start:%Y-%m-%d} to {end:%Y-%m-%d}, when the certificate is valid, got {now:%Y-%m-%d %H:%M} UTC"
        )
        if not start <= now <= end:
            return Result(FAIL, text)
        if end - now < RENEWAL:
            return Result(WARN, f"{text}: ask for a new certificate")
        return Result(OK, f"{text}, local time zone {time.strftime('%z')}")

    def _connection(self) -> Result:
        """The rule of FLARE's preflight check that opens a connection with the site's certificate. Its other half starts a
        client, which the server then takes for a present site for ten minutes."""
        from nvflare.tool.package_checker.check_rule import CHECK_PASSED, CheckServerAvailable
        from nvflare.tool.package_checker.utils import NVFlareRole

        if self._kit is None:
            return Result(SKIP, "needs --kit")
        try:
            found = CheckServerAvailable("connection", NVFlareRole.CLIENT)(str(self._kit), None)
        except (KeyError, IndexError, TypeError, ValueError):
            raise FedMendError("startup/fed_client.json: expected the address of a server, got none") from None
        if found.problem == CHECK_PASSED:
            return Result(OK, "the server accepts the certificate of this site")
        return Result(FAIL, f"expected a server that accepts the certificate of this site, got: {found.problem}")


def sitecheck(check: SiteCheck, *, show: Callable[[str], object] = print, color: bool = False) -> None:
    """Runs all checks and shows one line each as they end.

    Args:
        check: the site's checks.
        show: takes a line.
        color: with the colours of a terminal.

    Raises:
        FedMendError: a check failed.
    """
    statuses = Counter()
    for title, result in check.run():
        word = f"{result.status:<4}"
        show(
            f"\033[{COLORS[result.status]}m{word}\033[0m  {title}: {result.text}"
            if color
            else f"{word}  {title}: {result.text}"
        )
        for line in result.details:
            show(f"        {line}")
        statuses[result.status] += 1
    if statuses[FAIL]:
        raise FedMendError(f"{check.name}: expected every check to pass, got {statuses[FAIL]} that failed")
    show(f"{check.name}: ready ({statuses[OK]} ok, {statuses[WARN]} warnings, {statuses[SKIP]} skipped)")


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution("fedmend")
    except metadata.PackageNotFoundError:
        raise FedMendError("expected FedMend installed with pip, not found") from None


def _name_of_kit(kit: Path) -> str:
    try:
        about = json.loads((kit / "startup" / "fed_client.json").read_text(encoding="utf-8"))
        if (kit / "local").is_dir():
            return about["client"]["fqsn"].split(".")[-1]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise FedMendError(
        "--kit: expected the startup kit of a site, with startup/fed_client.json and local, got another folder"
    )


def _existing(folder: Path) -> Path:
    """The folder, or the one above it that there is."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def _first(rows: Sequence[str]) -> list[str]:
    more = len(rows) - MOST_ROWS
    return [*rows[:MOST_ROWS], *([f"and {more} more"] if more > 0 else [])]


def _now() -> datetime:
    return datetime.now(UTC)
