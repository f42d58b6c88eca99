"""The report of one run: a folder of JSON files → one self-contained HTML page and a short plain text.

What it shows comes from the modules of :mod:`fedmend.report.sections`. Only sums over samples are read and shown.
"""

from html import escape
from pathlib import Path

from fedmend.basics.files import write_text
from fedmend.basics.page import compact, duration, phantom_note, section, table, whole_page
from fedmend.basics.words import rounds_text
from fedmend.records.run_folder import RunFiles, load_run
from fedmend.report.kinds import shown_as
from fedmend.report.parts import find_parts
from fedmend.report.tables import comparison

REPORT_NAME = "report.html"
PHANTOM_MIXED = (
    "Images of {} are synthetic, those of {} are not. The numbers of both together say nothing about patients; the "
    "model has learnt from patients all the same."
)
PHANTOM_SENTENCE = (
    "Every image of this run is synthetic. The numbers show that the software works; "
    "they say nothing about patients, hospitals or the quality of the method."
)


def write_report(run_dir: Path) -> Path:
    """Writes ``report.html`` into the run folder and, of a finished run, ``TABLES``.

    The same input gives the same bytes. Each file is written whole or not at all.

    Args:
        run_dir: as in :func:`load_run`.

    Returns:
        the path of the page.

    Raises:
        FedMendError: as in :func:`load_run`.
    """
    run = load_run(run_dir)
    for name, text in comparison({run.info["method"]: [run]}).items() if run.results and run.evaluations else ():
        write_text(run.folder / name, text)
    body = "".join(show(run) for part in find_parts() for show in part.sections) + glossary(run)
    phantom, title = run.info["phantom"], f"{run.info['run_name']} ({run.info['method']})"
    footer = escape(f"{'PHANTOM ' if phantom else ''}{title}")
    footer += " · FedMend report · sums over samples only, no patient data"
    page = whole_page(run.info["run_name"], _below(run), body, footer, phantom=phantom, title=title)
    write_text(run.folder / REPORT_NAME, page)
    return run.folder / REPORT_NAME


def summary_text(run_dir: Path) -> str:
    """What ran and what came out, in about fifteen lines of plain text.

    Args:
        run_dir: as in :func:`load_run`.

    Raises:
        FedMendError: as in :func:`load_run`.
    """
    run = load_run(run_dir)
    lines = [f"{run.info['run_name']}: {run.info['method']}, {', '.join(_facts(run))}"]
    if run.info["phantom"]:
        lines.append(f"PHANTOM: {_synthetic(run)}")
    for part in find_parts():
        lines += part.lines(run)
    return "\n".join([*lines, f"report: {run.folder / REPORT_NAME}"]) + "\n"


def _synthetic(run: RunFiles) -> str:
    """What is said of a run on a phantom, of which some sites may have had images of patients."""
    told = {site: said["phantom"] for site, said in run.info["sites"].items() if "phantom" in said}
    if all(told.values()):
        return PHANTOM_SENTENCE
    return PHANTOM_MIXED.format(*(", ".join(sorted(s for s, f in told.items() if f is flag)) for flag in (True, False)))


def _facts(run: RunFiles) -> list[str]:
    total = run.info["num_rounds"]
    seen = max((m["round"] for records in run.metrics.values() for m in records), default=0)
    rounds = rounds_text(total)
    state = f"finished, {rounds}" if run.results else f"not finished, {seen} of {rounds} evaluated"
    facts = [f"{len(run.info['sites'])} sites", shown_as(run).size(run), state]
    facts += [f"{run.warmup} of them warm-up"] if run.warmup else []
    return facts + ([f"took {duration(run.results['seconds'])}"] if "seconds" in run.results else [])


def _below(run: RunFiles) -> str:
    """What is below the heading: what ran, whether on synthetic data, settings."""
    info = run.info
    facts = [f"Method {info['method']}", *_facts(run)]
    facts += [f"{name} {info[name]}" for name in ("seed", "started") if name in info]
    below = f"<p class='sub'>{escape(' · '.join(facts))}</p>"
    below += phantom_note(_synthetic(run)) if info["phantom"] else ""
    settings = [(k, compact(v)) for k, v in info.get("settings", {}).items()]
    if settings:
        below += f"<details><summary>Settings ({len(settings)})</summary>"
        below += table("As given in the job", ["Setting", "Value"], settings) + "</details>"
    return below


def glossary(run: RunFiles) -> str:
    """The words of this page, for a clinician."""
    known = list(shown_as(run).glossary(run).items())
    for part in find_parts():
        words = [item for what, added in part.words.items() if run.decided(what, part.own) for item in added.items()]
        places = [i for i, (word, _) in enumerate(known) if word == part.words_before]
        place = places[0] if places else len(known)
        known[place:place] = words
    listed = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>\n" for word, meaning in known)
    return section("glossary", "Words", f"<dl>{listed}</dl>")
