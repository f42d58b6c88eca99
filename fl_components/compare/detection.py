"""The table of rules that find noisy sites: what they have found in runs, and which sites are noisy indeed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedmend.comparison.detection_table import DetectionTable, Found, found_by
from fedmend.data.card import load_card
from fedmend.errors import FedMendError
from fedmend.phantoms.sites import phantom_spec
from fedmend.records.run_folder import load_run
from fedmend.site.folder import site_folder
from fl_components.compare.job_tables import Level, level_words, read_tables
from fl_components.compare.runs import Case, Comparison, cases, federations
from fl_components.job.folder import Changes, changed, read_job
from fl_components.job.settings import has, parts
from fl_components.run.local import site_config

Make = Callable[[Comparison, Path], tuple[Sequence[Path], Comparison]]


def detection_table(comparison: Comparison, levels: Sequence[Level], out: Path, make: Make) -> DetectionTable:
    """The table of a job; a row that cannot learn from the data is left out, but for the first.

    Args:
        comparison: without rows.
        levels: none: the job's own data.
        out: folder of all runs.
        make: makes the runs of a comparison of one variant in a folder; returns theirs, and the comparison on its data.

    Raises:
        FedMendError: see :func:`fl_components.compare.runs.compare` and :func:`noisy_sites`.
    """
    about = read_tables(comparison.job).detection
    found: dict[str, dict[str, dict[int, Found]]] = {}
    without: dict[str, str] = {}
    for level in levels or [Level("", {})]:
        place, rules = out / level.folder if levels else out, found.setdefault(level.title, {})
        whole = replace(comparison, words=[*level_words(level, about), *comparison.words])
        for variant, title in about.rows.items():
            first = variant == next(iter(about.rows))
            try:
                one = comparison_of(whole, variant, strict=first)
                folders, one = make(one, place / variant)
                rules |= detections(one, folders, place / variant, title)
            except FedMendError as e:
                if first:
                    raise
                without[title or variant] = str(e)
    return DetectionTable(
        name=read_job(comparison.job).name,
        levels=found,
        source=about.protocol,
        # The job's own data, which no level names, are made with the settings of the table, as those of its level.
        published={r: {"": by[about.level], **by} if about.level in by else by for r, by in about.published.items()},
        left_out=without,
    )


def comparison_of(comparison: Comparison, variant: str, *, strict: bool) -> Comparison:
    """The comparison of one variant alone.

    Args:
        comparison: its job, seeds, settings and data.
        variant: the row.
        strict: the variant must have all settings; otherwise it takes those that it has.

    Raises:
        FedMendError: see :func:`fl_components.job.folder.changed`.
    """
    variants = [*comparison.variants, variant]
    having = parts(*changed(comparison.job, Changes(variants=variants)).configs)
    words = [word for word in comparison.words if strict or has(word.partition("=")[0], having)]
    return replace(comparison, rows=[], words=words, variants=variants)


def detections(one: Comparison, folders: Sequence[Path], out: Path, title: str) -> dict[str, dict[int, Found]]:
    """Rule → seed → what it has found, in the complete runs of one variant.

    Args:
        one: comparison of the variant alone.
        folders: of its complete runs.
        out: folder of the comparison.
        title: of the rule of a variant that has only one.

    Raises:
        FedMendError: data that do not say which sites are noisy.
    """
    found: dict[str, dict[int, Found]] = {}
    by_seed, of_seed = {case.seed: case for case in cases(one, out)}, federations(one)
    for run in map(load_run, folders):
        seed, phantom = run.info["seed"], bool(run.info["phantom"])
        for rule, (sites, share) in found_by(run, title).items():
            noisy = noisy_sites(by_seed[seed])
            found.setdefault(rule, {})[seed] = Found(sites, share, noisy, phantom, of_seed[seed])
    return found


def noisy_sites(case: Case) -> list[str]:
    """The sites whose labels were made noisy, by the cards of the site folders that a run was made on.

    Raises:
        FedMendError: a card that does not say whether its site is noisy.
    """
    settings = read_job(case.job, case.changes)
    phantom: Mapping = settings.site.get("phantom") or {}
    noisy, workspace = [], case.workspace.resolve()
    for site in settings.sites:
        folder = site_folder(site, site_config(workspace, site), phantom_spec(phantom) if phantom else None)
        told = load_card(folder, site).provenance.get("site", {})
        if "noisy" not in told:
            raise FedMendError(f"{site}: card, field provenance.site.noisy: expected true or false, got nothing")
        noisy += [site] if told["noisy"] else []
    return noisy
