"""Why a rule of :mod:`fedmend.advice.rules` holds, in the numbers of the federation; empty where it does not.

A number that a site holds back makes no rule hold that needs it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedmend.advice.facts import Facts

MIN_SITES = 4  # FedNoRo refuses fewer
RARE = 0.1  # the median class of the phantom CT is positive in 13 % of its samples, that of the chest films in 5 %
ALIKE = 2.0  # samples of the largest class per sample of the smallest: little for logit adjustment to do
FEW_SAMPLES, MANY_SAMPLES, FEW_POSITIVES = 190, 300, 10
MOST_NAMES = 4  # sites or classes that a sentence names


def few_names(names: Sequence[str]) -> str:
    """The first names, and how many there are beyond them."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def by_site(sentence: str, found: Mapping[str, Sequence[str]], facts: Facts) -> str:
    """A sentence with sites and their classes in brackets; empty where there are none."""
    every = len(facts.classes)
    said = [f"{site}: {few_names(names) if len(names) < every else 'all'}" for site, names in found.items()]
    more = len(said) - MOST_NAMES
    inside = "; ".join(said[:MOST_NAMES]) + (f"; and {more} more" if more > 0 else "")
    return f"{sentence} ({inside})." if said else ""


def _of(names: Sequence[str], sentence: str) -> str:
    return f"{few_names(names)}: {sentence}" if names else ""


# ---- what stops a job -----------------------------------------------------------------------------------------------
def too_few_sites(facts: Facts) -> str:
    """Fewer than two."""
    return f"{len(facts.counted)} of {len(facts.sites)} sites counted." if len(facts.counted) < 2 else ""


def kinds_differ(facts: Facts) -> str:
    """Several kinds of labels."""
    said = [f"{kind or 'not said'} at {few_names(sites)}" for kind, sites in sorted(facts.kinds.items())]
    return f"{'; '.join(said)}." if len(said) > 1 else ""


def kind_unsaid(facts: Facts) -> str:
    """A site that does not say its kind of labels."""
    return _of(facts.kinds.get("", []), "no kind of labels in the audit.")


def class_nowhere(facts: Facts) -> str:
    """A class that no site has."""
    return f"No site has a positive sample of {few_names(facts.nowhere)}." if facts.counted and facts.nowhere else ""


def one_value(facts: Facts) -> str:
    """A column with one value."""
    return by_site("Columns with nothing but 1, or nothing but 0", facts.one_value, facts)


def one_class(facts: Facts) -> str:
    """A site with one class."""
    return _of(facts.one_class, "labels of fewer than two classes.")


def unlabelled_alike(facts: Facts) -> str:
    """Samples without a label where no class is known to be left out."""
    if facts.gaps or not facts.unlabelled:
        return ""
    return _of([*facts.unlabelled], "samples without a label, although no class is known to be left out.")


def nothing_to_train(facts: Facts) -> str:
    """Enough sites, and every class somewhere."""
    ready = len(facts.counted) > 1 and not facts.nowhere
    return "A model that nobody has to train is the one to beat, and takes minutes on a CPU." if ready else ""


# ---- which job ------------------------------------------------------------------------------------------------------
def gaps(facts: Facts) -> str:
    """Classes that sites do not know."""
    return by_site("Classes that sites do not know", facts.gaps, facts)


def rare_gaps(facts: Facts) -> str:
    """The same where classes are rare."""
    share = facts.median_share
    if not facts.gaps or share is None or share >= RARE:
        return ""
    return f"{gaps(facts)} The median class is positive in {share:.1%} of its annotated samples."


def blank_cells(facts: Facts) -> str:
    """Blanks, but not in whole columns."""
    if facts.gaps:
        return ""
    return by_site("No class is known to be left out by a site, but there are blanks", facts.unlabelled, facts)


def complete(facts: Facts) -> str:
    """Nothing is missing."""
    return "Every training sample has a label of every class." if facts.complete else ""


def unjudged(facts: Facts) -> str:
    """Nothing is missing, sites are enough, and nothing tells noisy ones."""
    if not facts.complete or len(facts.counted) < MIN_SITES:
        return ""
    if facts.losses:
        return "Every sample has a label, but the losses take every site for noisy, so they tell none apart."
    return "Every sample has a label; whether it is right, counts cannot tell."


def judged_noisy(facts: Facts) -> str:
    """The losses tell sites apart."""
    losses = facts.losses
    if not facts.complete or not losses or not 0 < len(losses.noisy) < len(losses.judged):
        return ""
    judged, noisy = len(losses.judged), few_names(losses.noisy)
    return f"Of {judged} sites, the losses after the warm-up take these for noisy: {noisy}."


def judged_clean(facts: Facts) -> str:
    """The losses find no noisy site."""
    held = facts.complete and facts.losses and not facts.losses.noisy
    return "Every sample has a label, and the losses after the warm-up take no site for noisy." if held else ""


def clean_and_balanced(facts: Facts) -> str:
    """The same, and classes are about as frequent as each other."""
    if not judged_clean(facts) or facts.imbalance is None or facts.imbalance > ALIKE:
        return ""
    return f"{judged_clean(facts)} The largest class has {facts.imbalance:.1f} times the samples of the smallest."


def few_to_judge(facts: Facts) -> str:
    """Nothing is missing, and sites are too few for FedNoRo."""
    few = facts.complete and len(facts.counted) < MIN_SITES
    return f"Every sample has a label; {len(facts.counted)} sites are too few to tell noisy ones." if few else ""


def structures_missing(facts: Facts) -> str:
    """Masks of a site do not show some of several structures."""
    return by_site("Masks do not show some structures", facts.gaps, facts) if facts.structures else ""


def structures_marked(facts: Facts) -> str:
    """Masks of all sites show all of several structures."""
    return "Masks show every structure at every site." if facts.structures and not facts.gaps else ""


def masks_unknown(facts: Facts) -> str:
    """A site does not say how complete its masks are."""
    return "Which lesions a mask leaves out, no count tells." if set(facts.counted) - set(facts.left) else ""


def masks_partial(facts: Facts) -> str:
    """A card says that lesions were left out."""
    said = [f"{site} {share:.0%}" for site, share in facts.left.items()]
    some = any(share < 1 for share in facts.left.values())
    return f"The cards say which share of the lesions is marked: {few_names(said)}." if some else ""


def masks_complete(facts: Facts) -> str:
    """All cards say that none was."""
    known = set(facts.left) == set(facts.counted) and all(share == 1 for share in facts.left.values())
    return "The cards say that every lesion is marked at every site." if facts.left and known else ""


def not_told(facts: Facts) -> str:
    """What decides is held back."""
    if facts.complete or facts.gaps or facts.unlabelled:
        return ""
    return by_site("Whether labels are missing depends on numbers that sites do not tell", facts.untold, facts)


# ---- what to look out for -------------------------------------------------------------------------------------------
def phantom(facts: Facts) -> str:
    """Synthetic data."""
    return _of([name for name, site in facts.counted.items() if site.phantom], "PHANTOM data, no patient was examined.")


def uncounted(facts: Facts) -> str:
    """Sites that could not be counted."""
    problems = [site.problem for site in facts.sites.values() if site.problem]
    more = [f"and {len(problems) - MOST_NAMES} more"] if len(problems) > MOST_NAMES else []
    return f"Not counted: {'; '.join([*problems[:MOST_NAMES], *more])}." if problems else ""


def held_back(facts: Facts) -> str:
    """Numbers that stay at the sites."""
    return by_site("Numbers that sites do not tell", facts.untold, facts)


def few_samples(facts: Facts) -> str:
    """Small sites."""
    small = [f"{name} {site.samples}" for name, site in facts.counted.items() if site.samples < FEW_SAMPLES]
    return f"Sites with fewer than {FEW_SAMPLES} training samples: {few_names(small)}." if small else ""


def few_positives(facts: Facts) -> str:
    """Small classes."""
    positive = facts.numbers("positive")
    few = facts.where((positive > 0) & (positive < FEW_POSITIVES))
    return by_site(f"Classes with fewer than {FEW_POSITIVES} positive samples at a site", few, facts)


def large_sites(facts: Facts) -> str:
    """Missing classes, not rare, at sites that are all large."""
    large = facts.gaps and not rare_gaps(facts) and min(site.samples for site in facts.counted.values()) >= MANY_SAMPLES
    return f"Every site has at least {MANY_SAMPLES} training samples." if large else ""


def real_images(facts: Facts) -> str:
    """Missing classes, not rare, of real images."""
    real = facts.gaps and not rare_gaps(facts) and not facts.phantom
    return "These are not the phantoms on which FedMLP was ahead." if real else ""


def alone(facts: Facts) -> str:
    """Classes at one site."""
    return by_site("Classes with positive samples at one site alone", facts.alone, facts)


def votes(facts: Facts) -> str:
    """How sure the detection of noisy sites is."""
    found = facts.losses
    return f"{found.vote_share:.0%} of the fits agree on the noisy sites." if found and found.noisy else ""


def real_masks(facts: Facts) -> str:
    """Real volumes."""
    return "" if facts.phantom or not facts.counted else "These are volumes of patients."


# ---- what is not known ----------------------------------------------------------------------------------------------
def no_losses(facts: Facts) -> str:
    """Nothing was trained yet."""
    return "There is no loss profile." if facts.counted and not facts.losses else ""


def without_sample(facts: Facts) -> str:
    """Classes that a site has no sample of, although it labelled everything."""
    none = np.full(facts.numbers("positive").shape, facts.complete) & (facts.numbers("positive") == 0)
    return by_site("Classes without a sample", facts.where(none), facts)


def doubtful(facts: Facts) -> str:
    """Classes of which no positive sample is told."""
    names = few_names(facts.doubtful)
    return f"No site tells a positive sample of {names}, and some do not tell." if names else ""


def missing_and_noisy(facts: Facts) -> str:
    """Two imperfections at once, or possibly."""
    if not facts.gaps and not facts.unlabelled:
        return ""
    if facts.losses and facts.losses.noisy:
        return f"Labels are missing, and the losses take these sites for noisy: {few_names(facts.losses.noisy)}."
    return "Labels are missing, and those that there are may be wrong."


def two_methods(facts: Facts) -> str:
    """FedMLP and FedLSM are both for missing classes."""
    return "Both FedMLP and FedLSM repair missing classes." if facts.gaps else ""
