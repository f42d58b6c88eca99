"""Checks of a site's settings, of the job and of the policy that lets it run."""

import logging
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from fedmend.basics.words import rounds_text
from fedmend.errors import FedMendError, not_installed
from fedmend.labels import SEGMENTATION
from fl_components.job.reading import refuse_baseline
from fl_components.kit_state import check_state
from fl_components.run.start import check_paths
from fl_components.sitecheck.job import read_needs
from fl_components.sitecheck.site import FAIL, OK, OTHERS, SKIP, WARN, CheckedSite, Result, existing


def settings(site: CheckedSite) -> Result:
    """``fedmend.json`` of the kit, and the folders that it names."""
    from fedmend.site.config import CONFIG_NAME, read_site_config
    from fl_components.policy import report_fields

    if site.kit is None:
        return Result(SKIP, "needs --kit")
    check_paths(site.kit.resolve())
    config = read_site_config(site.kit / "local" / CONFIG_NAME, site.kit.resolve(), site.name)
    site.config = config
    check_state(site.kit.resolve(), config, site.name)
    unknown = sorted(set(config.refuse_fields) - set(report_fields())) if config.refuse_fields else []
    wrong = [f"refuse_fields: expected fields that methods report, got {', '.join(unknown)}"] if unknown else []
    wrong += [f"{field}: expected a folder that can be written, got another" for field in _not_writable(site)]
    if config.data_root and not config.data_root.is_dir():
        wrong.append("data_root: expected a folder, not found")
    if wrong:
        return Result(FAIL, "; ".join(wrong))
    if config.data_root is None:
        return Result(WARN, "data_root: expected a folder, got phantom: PHANTOM data")
    if site.folder and site.folder.resolve() != config.data_root:
        return Result(WARN, "data_root: expected the folder that is checked, got another: jobs will open that one")
    if loose := [field for field in ("state_dir", "cache_dir") if _open_to_others(getattr(config, field))]:
        return Result(
            WARN, f"{', '.join(loose)}: expected a folder for its owner alone, got one with more rights (chmod 700)"
        )
    if config.min_federation < 2:
        text = "min_federation: expected at least 2, got 1: a lead could get a model that is this site's alone"
        return Result(WARN, text)
    return Result(OK, f"complete, min_count {config.min_count}, max_unreadable {config.max_unreadable}")


def _open_to_others(folder: Path) -> bool:
    return folder.is_dir() and bool(folder.stat().st_mode & OTHERS)


def _not_writable(site: CheckedSite) -> Iterator[str]:
    for field in ("cache_dir", "state_dir"):
        try:
            with tempfile.TemporaryFile(dir=existing(getattr(site.config, field))):
                pass
        except OSError:
            yield field


def job(site: CheckedSite) -> Result:
    """The job folder, and whether this FedMend has its method."""
    if site.job_folder is None:
        return Result(SKIP, "needs --job")
    found = read_needs(site.job_folder)
    method = found.method()
    site.job = found
    size = f", {found.site['image_size']} pixels, batches of {found.site['batch_size']}" if method else ""
    return Result(OK, f"{found.name}: {len(found.classes)} classes{size}")


def policy(site: CheckedSite) -> Result:
    """Whether the site's policy allows every class of the job.

    FLARE itself decides: its authorizer reads the kit's ``local/resources.json``, or ``.default``, as it does in a job.
    """
    from nvflare.apis.fl_exception import UnsafeComponentError
    from nvflare.apis.workspace import Workspace
    from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

    if site.kit is None or site.job is None:
        return Result(SKIP, "needs --kit and --job")
    if site.job.own_code:
        return Result(FAIL, "expected a job without code of its own, got one with a custom folder")
    authorizer, workspace = ComponentPathAuthorizer(), Workspace(str(site.kit), site.name)
    authorizer.logger = logging.Logger("quiet", logging.CRITICAL)  # its warnings name paths

    def refused(component: Mapping) -> bool:
        try:
            authorizer.authorize_component_config(component, workspace=workspace)
        except UnsafeComponentError:
            return True
        except ValueError:
            raise FedMendError("local/resources.json: expected JSON, got a file that does not parse") from None
        return False

    components = site.job.components
    unlisted = sorted({str(c.get("path", c.get("class_path"))) for c in components if refused(c)})
    for path in unlisted:
        refuse_baseline(path)
    if unlisted:
        return Result(FAIL, f"local/resources.json: expected on class_allow_list, not found: {', '.join(unlisted)}")
    if not refused({"path": "fedmend.sitecheck.NoSuchClass"}):
        return Result(WARN, "local/resources.json: expected a class_allow_list that is enforced, got one that is not")
    return Result(OK, f"all {len(components)} classes of the job are on class_allow_list")


def agreed(site: CheckedSite) -> Result:
    """Whether the kit's policy is the one that the hospitals have agreed to."""
    from fl_components.policy.agreed import differing, policy_hash

    if site.kit is None:
        return Result(SKIP, "needs --kit")
    found = policy_hash(site.kit)
    if site.agreed is None:
        return Result(SKIP, f"needs --policy, the hash that the lead tells you; here it is {found}")
    if others := differing(found, site.agreed):
        names = ", ".join(f"local/{part}.json" for part in others)
        return Result(FAIL, f"{names}: expected the policy that was agreed, got another ({found})")
    return Result(OK, "local/resources.json, authorization.json and privacy.json are what was agreed")


def guard(site: CheckedSite) -> Result:
    """Whether all that leaves in a job passes the ReportGuard."""
    from fl_components.job_check import check_guarded

    if site.kit is None:
        return Result(SKIP, "needs --kit")
    check_guarded(site.kit / "local" / "privacy.json")
    return Result(OK, "local/privacy.json: every result passes the ReportGuard before it leaves")


def limits(site: CheckedSite) -> Result:
    """Whether the job stays within what the site gives a job, and within its privacy."""
    if site.config is None or site.job is None:
        return Result(SKIP, "needs fedmend.json and the job")
    if site.job.method_part is None:
        return Result(SKIP, "the job trains no model")
    from fedmend.data.inputs import Inputs
    from fedmend.method import RoundTask
    from fedmend.site.devices import device_of
    from fedmend.site.limits import check_fields_wanted, check_order, check_step, step_bytes
    from fedmend.site.private_site import check_bearable

    config, run, asked = site.config, site.job.run, site.job.site
    method = site.job.method()(**site.job.method_part.args)
    check_fields_wanted(site.name, config, method.FIELDS)
    check_order(site.name, config, RoundTask("", 0, run["num_rounds"]), asked.get("local_epochs", 1))
    step = Inputs.of(asked).step(asked["batch_size"])
    need = step_bytes(run["network"], len(run["classes"]), *step, masks=SEGMENTATION in method.KINDS)
    check_step(site.name, config, device_of(site.name, config.gpu), need)
    if config.privacy:
        check_bearable(site.name, method, run["network"], decay=asked.get("decay", "coupled"))
        if find_spec("opacus") is None:
            return Result(FAIL, f"field privacy: {not_installed('opacus', 'privacy')}")
    return Result(OK, f"{rounds_text(run['num_rounds'])} and the memory are what the site's fedmend.json allows")


CHECKS = {
    "fedmend.json": settings,
    "agreed policy": agreed,
    "guard": guard,
    "job": job,
    "class policy": policy,
    "limits": limits,
}
