"""The site policy that follows from the code: which classes a job may name, which fields may leave, and tables of both.

Everything comes from the classes in :mod:`fedmend.methods` and :mod:`fedmend.baselines`, their typed fields, and what
the jobs name. ``fedmend policy`` writes it into tracked files, which people review: a list, never a prefix, because
FLARE would take a prefix for leave to call whatever is imported below it.
"""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedmend.basics.discovery import modules_of
from fedmend.basics.files import write_text
from fedmend.errors import FedMendError
from fedmend.fields import UNBOUNDED, Field, counted
from fedmend.method import LocalMethod, Workflow
from fedmend.preprocessing import FIELDS as PREPROCESSING
from fl_components.job.reading import BASELINES, GUARD
from fl_components.policy.classes import GROUPS, allowed_classes, class_table

RESOURCES = Path("simulator_workspace") / "local" / "resources.json"
PRIVACY = Path("simulator_workspace") / "local" / "privacy.json"
DATA_PROTECTION = Path("provisioning") / "data_protection.md"
CLASSES = Path("provisioning") / "allowed_classes.md"
FOR_COMPARISONS = Path("provisioning") / "baselines.json"
BEGIN, END = "<!-- made by `fedmend policy`: begin -->", "<!-- made by `fedmend policy`: end -->"


def method_classes() -> list[type]:
    """All methods and workflows that a job may name, by their full names."""
    found = []
    rooms = ("fedmend.methods", "fedmend.baselines", "fedmend.evaluation")
    for module in (module for room in rooms for module in modules_of(room)):
        for _, cls in inspect.getmembers(module, inspect.isclass):
            method = issubclass(cls, LocalMethod) and hasattr(cls, "ROUND")
            workflow = issubclass(cls, Workflow) and not inspect.isabstract(cls)
            if cls.__module__ == module.__name__ and (method or workflow):
                found.append(cls)
    return sorted(found, key=_path)


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def report_fields() -> dict[str, Field]:
    """Every field that a method may report.

    Raises:
        FedMendError: two methods give one name to different fields.
    """
    return _merged("FIELDS")


def _merged(attribute: str) -> dict[str, Field]:
    found: dict[str, Field] = {}
    for cls in method_classes():
        for name, field in getattr(cls, attribute, {}).items():  # a workflow has those of its method
            if found.setdefault(name, field) != field:
                raise FedMendError(f"{_path(cls)}, field {name}: expected one meaning of a name, got two")
    return found


def policy_files(root: Path) -> dict[Path, str]:
    """File below ``root`` → what must stand in it."""
    resources = json.loads((root / RESOURCES).read_text(encoding="utf-8"))
    methods = method_classes()
    resources["class_allow_list"] = allowed_classes(root, methods)
    privacy = json.loads((root / PRIVACY).read_text(encoding="utf-8"))
    fields = report_fields()
    _merged("KNOWLEDGE")
    product = [cls for cls in methods if issubclass(cls, LocalMethod) and not _path(cls).startswith(BASELINES)]
    of_the_product = {name for cls in product for name in cls.FIELDS}
    for_comparisons = {
        "classes": [path for path in resources["class_allow_list"] if path.startswith(BASELINES)],
        "fields": sorted(set(fields) - of_the_product),
    }
    for scope in privacy["scopes"]:
        for chosen in scope["task_result_filters"]:
            if chosen["path"] == GUARD:
                chosen["args"] |= {"fields": _described(fields), "counts": counted(fields)}
    return {
        RESOURCES: json.dumps(resources, indent=2) + "\n",
        PRIVACY: json.dumps(privacy, indent=2) + "\n",
        FOR_COMPARISONS: json.dumps(for_comparisons, indent=2) + "\n",
        DATA_PROTECTION: _with_tables(root, DATA_PROTECTION, data_protection_tables()),
        CLASSES: _with_tables(root, CLASSES, class_table(root, methods)),
    }


def _described(fields: Mapping[str, Field]) -> dict[str, dict]:
    """What the ReportGuard is told of each field."""
    return {
        name: {"shape": list(field.shape), "dtype": field.dtype, "low": field.low, "high": field.high}
        | ({"of_samples": True} if field.of_samples else {})
        | ({"allowed_by": field.allowed_by} if field.allowed_by else {})
        for name, field in sorted(fields.items())
    }


def stale(root: Path) -> list[Path]:
    """Files that do not say what the code says."""
    wanted = policy_files(root)
    return [file for file, text in wanted.items() if (root / file).read_text(encoding="utf-8") != text]


def write_policy(root: Path) -> list[Path]:
    """Brings the files up to date; returns those that changed."""
    changed, wanted = stale(root), policy_files(root)
    for file in changed:
        write_text(root / file, wanted[file])
    return changed


def _with_tables(root: Path, file: Path, tables: str) -> str:
    before, begin, rest = (root / file).read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise FedMendError(f"{file}: expected the lines {BEGIN} and {END}, not found")
    return f"{before}{BEGIN}\n\n{tables}\n{END}{after}"


def data_protection_tables() -> str:
    """Markdown: what a site tells of its preprocessing; for each group what the reports of methods hold, and what the
    server sends besides the weights."""
    head = ["| field | shape | range | what it is | risk |", "|---|---|---|---|---|"]
    rows = [_row(name, field, field.risk) for name, field in PREPROCESSING.items()]
    parts = [
        "### How images are prepared\n",
        "\n".join(["In `census`, under `preprocessing`:", "", *head, *rows]) + "\n",
    ]
    for baseline, group in GROUPS.items():
        classes = [cls for cls in method_classes() if _path(cls).startswith(BASELINES) == baseline]
        parts.append(f"### {group}\n")
        for title, attribute in (("A site reports", "FIELDS"), ("The server sends", "KNOWLEDGE")):
            head = ["| method | field | shape | range | what it is | risk |", "|---|---|---|---|---|---|"]
            of_methods = [f"**{title}**, besides the weights:", "", *head, *_rows(classes, attribute)]
            parts.append("\n".join(of_methods) + "\n")
    return "\n".join(parts)


def _rows(classes: Sequence[type], attribute: str) -> Iterator[str]:
    told: dict[str, list[str]] = {}
    for cls in classes:
        if issubclass(cls, LocalMethod) and getattr(cls, attribute):
            told.setdefault(json.dumps(sorted(getattr(cls, attribute))), []).append(cls.__name__)
    by_name: Mapping[str, type] = {cls.__name__: cls for cls in classes}
    for names in told.values():
        method, fields = ", ".join(names), getattr(by_name[names[0]], attribute)
        guarded = {*counted(fields), *counted(fields).values()} if attribute == "FIELDS" else set()
        for name, field in fields.items():
            yield f"| {method} {_row(name, field, f'**guarded**; {field.risk}' if name in guarded else field.risk)}"
            method = ""


def _row(name: str, field: Field, risk: str) -> str:
    shape = " × ".join(map(str, field.shape)) or "1"
    span = " to ".join("any" if abs(bound) >= UNBOUNDED else f"{bound:g}" for bound in (field.low, field.high))
    return f"| `{name}` | {shape} | {span} | {field.meaning} | {risk} |"
