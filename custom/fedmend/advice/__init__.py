"""Advice on a label audit: which job to run, what to look out for, and what the counts cannot tell.

The rules are the table in :mod:`fedmend.advice.rules`; :mod:`fedmend.advice.facts` is what they look at.
"""

import json
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmend.advice.facts import Facts, Losses, read_losses
from fedmend.advice.rules import CHECKED, PARTS, RULES, RUN, Rule

__all__ = ["NO_JOB", "PARTS", "RUN", "Facts", "Losses", "advice_text", "advise", "next_command", "read_losses"]
NAME = "advised"  # of the job or the runs that the command makes
WIDTH = 100  # characters of a line of text
NO_JOB = "No job yet: see the other points."


@dataclass(frozen=True)
class Finding:
    """A rule that holds, and why."""

    rule: Rule
    why: str

    @property
    def text(self) -> str:
        """Advice and reason; a recommendation comes before its reason, everything else after it."""
        return f"{self.rule.advice} Why: {self.why}" if self.rule.part == RUN else f"{self.why} {self.rule.advice}"

    @property
    def evidence(self) -> str:
        """What the rule rests on, for people; empty where it needs no measurement."""
        return "" if self.rule.evidence is CHECKED else str(self.rule.evidence)


def advise(facts: Facts) -> list[Finding]:
    """The rules that hold, in the order of the table; of those that recommend a job the first."""
    found: list[Finding] = []
    for rule in RULES:
        passed = rule.part == RUN and (len(facts.counted) < 2 or any(f.rule.part == RUN for f in found))
        if facts.kind in rule.kinds and not passed and (reason := rule.why(facts)):
            found.append(Finding(rule, reason))
    return found


def next_command(findings: Sequence[Finding], facts: Facts, data: Path | None = None) -> str:
    """The command to run next; empty where no job is recommended.

    Args:
        findings: of :func:`advise`.
        facts: what they are about.
        data: folder with all site folders, where they are on this machine; without it the command only writes the job.
    """
    rule = next((f.rule for f in findings if f.rule.job), None)
    if rule is None:
        return ""
    job, sites = f"jobs/{rule.job}", ["--sites", str(len(facts.counted))]
    settings = ["--set", f"run_name={NAME}", f"classes={json.dumps(list(facts.classes), ensure_ascii=False)}"]
    variant, where = ["--variant", rule.variant] if rule.variant else [], ["--site", f"data_root={data}/{{SITE_NAME}}"]
    # A run on one machine calls its sites site-1, site-2, ...
    here = data is not None and set(facts.counted) == {f"site-{i + 1}" for i in range(len(facts.counted))}
    if not here:
        words = ["configure", job, NAME, *variant, *sites, *settings]
    elif rule.rows is None:
        words = ["simulate", job, "--local", *variant, *sites, *where, *settings]
    else:
        rows = ["--rows", ",".join(row for row in (rule.variant, *rule.rows) if row)]
        words = ["compare", job, *rows, "--seeds", "0-2", *sites, *where, *settings, "--out", f"runs/{NAME}"]
    return shlex.join(["fedmend", *words])


def headline(facts: Facts) -> str:
    """What was looked at."""
    counted = f"{len(facts.counted)} of {len(facts.sites)} sites counted"
    classes = f"{len(facts.classes)} class{'es' * (len(facts.classes) > 1)}"
    return f"{'PHANTOM, ' * facts.phantom}{counted}, {classes}{f' of {facts.kind} labels' * bool(facts.kind)}"


def advice_text(facts: Facts, data: Path | None = None) -> str:
    """Advice as plain text: each part with its findings, then the command to run next.

    Args:
        facts: of the federation.
        data: as for :func:`next_command`.
    """
    findings, lines = advise(facts), [headline(facts)]
    for part in PARTS:
        found = [f for f in findings if f.rule.part == part]
        if not found and part == RUN:
            lines += ["", part, *_wrapped(NO_JOB)]
        lines += ["", part] if found else []
        for finding in found:
            lines += _wrapped(finding.text)
            if finding.evidence:
                lines += _wrapped(f"Evidence: {finding.evidence}", first="    ")
    command = next_command(findings, facts, data)
    return "\n".join([*lines, *(["", "Next:", f"  {command}"] if command else [])])


def _wrapped(text: str, first: str = "  - ") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
