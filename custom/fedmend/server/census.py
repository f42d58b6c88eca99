"""The census: what every site has, before anybody trains."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedmend.averaging import LARGEST_SHARE, capped
from fedmend.errors import FedMendError
from fedmend.kinds import Kind, kind_of
from fedmend.messages import KEEP_MODEL, SiteResult
from fedmend.method import SiteFacts
from fedmend.preprocessing import Preprocessing, as_told

LOG = logging.getLogger("fedmend.run")
BEST_SPLITS = ("val", "test")  # the first that there is chooses the best model


@dataclass(frozen=True)
class Census:
    """What the sites of a run have.

    Attributes:
        kind: kind of labels, the same at all sites.
        facts: site → samples, annotated classes, positives, in sorted order.
        sizes: site → samples per split.
        data: site → mark of each split's data.
        described: site → what ``run.json`` says of it.
        phantom: whether the data of a site are synthetic.
        prepared: site → how it prepares images.
        min_federation: site → fewest results of a round that it lets its own be averaged with, its own included.
        keepers: sites that want the model when the run is over.
    """

    kind: Kind
    facts: Mapping[str, SiteFacts]
    sizes: Mapping[str, Mapping[str, int]]
    data: Mapping[str, Mapping[str, str]]
    described: Mapping[str, dict]
    phantom: bool
    prepared: Mapping[str, Preprocessing]
    min_federation: Mapping[str, int]
    keepers: Collection[str] = ()

    @property
    def preprocessing(self) -> Preprocessing:
        """What is done with most training samples, of which one site among three or more has at most as many as all
        others; where as many are prepared otherwise, what more sites do, and then what the first site does."""
        counted = capped({site: facts.samples for site, facts in self.facts.items()}, LARGEST_SHARE)
        votes: dict[str, tuple[int, int]] = {}  # samples and sites
        first: dict[str, Preprocessing] = {}
        for site, prepared in self.prepared.items():
            words = repr(prepared.steps)
            samples, sites = votes.get(words, (0, 0))
            votes[words] = samples + counted[site], sites + 1
            first.setdefault(words, prepared)
        return first[max(votes, key=votes.__getitem__)]

    @property
    def differences(self) -> dict[str, dict[str, object]]:
        """Setting of the preprocessing in which sites differ → site → value; empty where all do the same."""
        told = {site: prepared.steps for site, prepared in self.prepared.items()}
        by_name = {name: {site: steps[name] for site, steps in told.items()} for name in self.preprocessing.steps}
        return {name: values for name, values in by_name.items() if len({*map(repr, values.values())}) > 1}

    def known(self, site: str) -> np.ndarray:
        """(C,) bool: classes that a site annotates and has."""
        return self.facts[site].annotated & (self.facts[site].positives > 0)

    def spent(self, told: Mapping[str, Mapping]) -> None:
        """Takes over what sites have told of their privacy since, so that packages say what the run has cost."""
        for site, privacy in told.items():
            self.described[site]["privacy"] = privacy

    @property
    def chooser(self) -> str:
        """The site among three or more that has most of the validation samples, and so all but chooses thresholds and
        the best model; empty: none."""
        own = {site: sizes.get("val", 0) for site, sizes in self.sizes.items()}
        counted = capped(own, LARGEST_SHARE)
        return next((site for site in own if counted[site] < own[site]), "")

    @property
    def choosing_split(self) -> str:
        """The split that chooses the best model, the same in all rounds, whoever is absent; empty: there is none."""
        return next((split for split in BEST_SPLITS if any(own.get(split) for own in self.sizes.values())), "")

    @property
    def unmeasured(self) -> str:
        """What a run misses in which no site evaluates."""
        private = any("privacy" in told for told in self.described.values())
        return f"expected a val or test split at a site{' without differential privacy' * private}, got none"

    def fewest(self, asked: Collection[str], least: int) -> int:
        """Fewest valid results of the sites ``asked`` out of which anything may be made: ``least``, and as many as each
        of these sites wants."""
        return max([least, *(self.min_federation[site] for site in asked)])

    def among_enough(self, sites: Sequence[str]) -> list[str]:
        """Those of some sites that are among as many as they want to be when these alone are asked."""
        alone = lonely({site: self.min_federation[site] for site in sites})
        return [site for site in sites if site not in alone]


def lonely(wanted: Mapping[str, int]) -> dict[str, int]:
    """Sites that want to be among more than there are, and then the others that want the same.

    Args:
        wanted: site → its ``min_federation``.

    Returns:
        site → how many there are.
    """
    there, found = dict(wanted), dict[str, int]()
    while alone := dict.fromkeys((site for site, least in there.items() if least > len(there)), len(there)):
        found |= alone
        there = {site: least for site, least in there.items() if site not in found}
    return found


def read_census(results: Mapping[str, SiteResult], classes: Sequence[str], *, goes_on: bool) -> Census:
    """Makes one census of the answers of all sites.

    Args:
        results: site → valid answer, in sorted order; at least one.
        classes: C class names.
        goes_on: an earlier job of the run has learnt every class once, so a class without annotator stops nothing; each
            round names it.

    Raises:
        FedMendError: different kinds of labels, or a class that no site annotates.
    """
    named: dict[str, list[str]] = {}
    for site, result in results.items():
        named.setdefault(result.census["kind"], []).append(site)
    if len(named) > 1:
        got = ", ".join(f"{kind} at {', '.join(sites)}" for kind, sites in sorted(named.items()))
        raise FedMendError(f"census: expected one kind of labels at all sites, got {got}")
    kind = kind_of(next(iter(named)))
    facts, described, prepared = {}, {}, {}
    for site, result in results.items():
        told = result.census
        annotated, positives = np.asarray(told["annotated"], dtype=bool), np.asarray(told["positives"])
        facts[site] = SiteFacts(result.samples, annotated, positives)
        prepared[site] = as_told(told["preprocessing"])
        described[site] = _description(result, facts[site], kind, classes)
        described[site]["preprocessing"] = prepared[site].described()
        prefix = "PHANTOM " if told["phantom"] else ""
        has = ", ".join(described[site]["annotated"])
        LOG.info("%s%s annotates %s, %s samples", prefix, site, has, told["sizes"]["train"])
    sizes = {site: dict(result.census["sizes"]) for site, result in results.items()}
    synthetic = {site: bool(result.census["phantom"]) for site, result in results.items()}
    phantom = any(synthetic.values())
    if phantom and not all(synthetic.values()):  # nobody may read that no patient is in the run
        for site, flag in synthetic.items():
            described[site]["phantom"] = flag
    data = {site: dict(result.census["data"]) for site, result in results.items()}
    wanted = {site: result.census["min_federation"] for site, result in results.items()}
    keepers = [site for site, result in results.items() if result.census.get(KEEP_MODEL)]
    census = Census(kind, facts, sizes, data, described, phantom, prepared, wanted, keepers)
    nowhere = [c for i, c in enumerate(classes) if not any(census.known(site)[i] for site in facts)]
    if nowhere and not goes_on:
        raise FedMendError(f"census: expected every class of the job to be annotated at a site, got none for {nowhere}")
    return census


def _description(result: SiteResult, facts: SiteFacts, kind: Kind, classes: Sequence[str]) -> dict:
    known = kind.known_classes(facts.annotated, facts.positives)
    positives = zip(classes, facts.annotated, facts.positives.tolist(), strict=True)
    described = {
        "annotated": [c for c, flag in zip(classes, known, strict=True) if flag],
        **result.census["sizes"],
        "positives": {c: n for c, annotated, n in positives if annotated},
    }
    if result.privacy:
        del described["positives"]  # stay at the site
        described["privacy"] = dict(result.privacy)
    if "lesions" in result.census:
        described["lesions"] = result.census["lesions"].tolist()
    return described
