"""The table of rules: when which advice holds, and what it rests on.

Of the rules that recommend a job the first that holds for the kind of labels counts, of the others all that hold. The
``evidence`` of a rule is a page of results, a heading there and numbers that stand below it, those of ``fedmend
compare`` where it has paired differences. Who measures something anew changes the rule with the page; a test compares
them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedmend.advice import reasons as why
from fedmend.advice.facts import Facts
from fedmend.labels import KIND_NAMES, MULTILABEL, SEGMENTATION, SINGLELABEL

FIRST, RUN, WATCH, UNKNOWN = PARTS = ("First", "Recommendation", "Look out for", "Not known")


@dataclass(frozen=True)
class Evidence:
    """What a rule rests on.

    Attributes:
        page: file in docs/; empty where nothing was measured.
        section: heading on the page.
        numbers: as they stand below it, the paired difference where there is one.
    """

    page: str
    section: str
    numbers: str

    def __str__(self) -> str:
        return f"{self.numbers} (docs/{self.page}, {self.section})" if self.page else self.numbers


NOT_MEASURED = Evidence("", "", "not measured yet")
CHECKED = Evidence("", "", "nothing to measure: it follows from the counts, or a job checks it")
NO_PAIRS = "paired difference not measured yet"
MISSING_PAGE, NOISY_PAGE = "results_missing_classes.md", "results_noisy_sites.md"
SETS_PAGE, MASKS_PAGE = "results_label_sets.md", "results_partial_masks.md"
VARIED, DERMOSCOPY = "Phantom CT, the data varied", "Phantom dermoscopy, the data varied"
FILMS = "Phantom chest films, the data varied"
CT, LESIONS = "FedMLP, phantom CT", "FedIA, phantom MS lesions"
ORGANS = "Missing organs, phantom CT"
HEADS = Evidence(
    MISSING_PAGE,
    VARIED,
    "FedMLP minus closed-form heads -4.1 [-6.0, -2.2] AUC, with ImageNet weights and larger images for the heads",
)
PARTIAL = Evidence(
    MASKS_PAGE,
    LESIONS,
    "Dice of the last ten rounds, FedIA minus FedAvg +14.6 [9.9, 19.2] and, with other patients in each run,"
    " +7.2 [-4.2, 18.7]; FedIA minus its correction alone +0.7 [-6.8, 8.2]",
)


@dataclass(frozen=True)
class Rule:
    """A line of the table.

    Attributes:
        why: facts → why it holds; empty where it does not.
        advice: what to do, or to keep in mind.
        evidence: what that rests on.
        job: folder in jobs/ that it recommends.
        variant: variant of the job.
        rows: other variants to compare with; None: the job itself refuses such sites, so that its variant runs alone.
        name: for tests.
        part: one of ``PARTS``.
        kinds: kinds of labels that it is about; an empty one: no kind that all sites have.
    """

    why: Callable[[Facts], str]
    advice: str
    evidence: Evidence
    job: str = ""
    variant: str = ""
    rows: Sequence[str] | None = ()
    name: str = ""
    part: str = ""
    kinds: Sequence[str] = ()


MULTI, SINGLE, MASKS = (MULTILABEL,), (SINGLELABEL,), (SEGMENTATION,)
LABELS, ANY = (*MULTI, *SINGLE), (*KIND_NAMES, "")
# (part, kinds) → name → the rest of the rule
TABLE: dict[tuple[str, Sequence[str]], dict[str, Rule]] = {}
TABLE[FIRST, ANY] = {
    "too few sites": Rule(why.too_few_sites, "A federation needs two sites that can be counted.", CHECKED),
    "kinds differ": Rule(
        why.kinds_differ, "A job needs one kind of labels at all sites: make a federation for each.", CHECKED
    ),
    "kind not said": Rule(
        why.kind_unsaid,
        "Run the audit with this version at all sites: without the kind of labels no job can be recommended.",
        CHECKED,
    ),
    "class nowhere": Rule(
        why.class_nowhere,
        "No method learns a class that nobody labels, and every job refuses it. Leave it out of the classes, or have it"
        " labelled.",
        CHECKED,
    ),
}
TABLE[FIRST, MULTI] = {
    "one value": Rule(
        why.one_value,
        "A job refuses such a site. Leave the column out there; the class then counts as not annotated.",
        CHECKED,
    ),
    "heads, several labels": Rule(
        why.nothing_to_train,
        "Run jobs/closed_form: heads solved on a network with ImageNet weights.",
        HEADS,
    ),
}
TABLE[FIRST, SINGLE] = {
    "one class": Rule(why.one_class, "A job refuses such a site: there is nothing to tell apart.", CHECKED),
    "unlabelled samples": Rule(
        why.unlabelled_alike,
        "FedNoRo and its baselines refuse a sample without a label, and FedLSM gives one a pseudo-label only where the"
        " site does not know every class. Leave these samples out of the training table, and audit again.",
        NOT_MEASURED,
    ),
    "heads, one label": Rule(
        why.nothing_to_train,
        "Run jobs/closed_form: heads solved on a network with ImageNet weights; with --variant label_sets where sites"
        " know other classes, with --variant noisy_sites where some may label carelessly.",
        Evidence(
            NOISY_PAGE,
            VARIED,
            "closed-form heads that judge minus FedLA +8.6 [3.2, 14.1] BACC, with ImageNet weights and larger images"
            " for the heads",
        ),
    ),
}
TABLE[RUN, MULTI] = {
    "rare classes missing": Rule(
        why.rare_gaps,
        "Run FedAvg*, whose classifier rows are averaged over the sites that know the class, and compare FedLSM with"
        " it, which ranked no better in our tests. FedMLP keeps its tags for good, and of its positive tags of rare"
        " findings most were wrong.",
        Evidence(
            SETS_PAGE,
            FILMS,
            "FedLSM minus FedAvg* -0.4 [-1.6, 0.9] AUC, +2.2 [0.7, 3.7] BACC at thresholds chosen on validation",
        ),
        job="fedlsm_cxr14",
        variant="fedavg_masked",
        rows=("fixmatch_masked",),
    ),
    "classes missing": Rule(
        why.gaps,
        "Run FedMLP, and compare it with federated averaging with a partial loss, which costs less. Plain FedAvg, which"
        " takes a missing label for a negative one, is not enough.",
        Evidence(MISSING_PAGE, VARIED, "FedMLP minus FedAvg-PL +1.6 [0.4, 2.9] AUC, +4.1 [0.7, 7.5] BACC"),
        job="fedmlp_ich",
        rows=("fedavg_pl", "fedavg"),
    ),
    "blank cells": Rule(
        why.blank_cells,
        "Run federated averaging with a partial loss, which leaves blanks out. FedMLP repairs a class only where a site"
        " annotates none of it.",
        NOT_MEASURED,
        job="fedmlp_ich",
        variant="fedavg_pl",
        rows=("fedavg",),
    ),
    "nothing missing": Rule(
        why.complete,
        "Plain FedAvg is enough: there is no missing label to repair.",
        Evidence(
            MISSING_PAGE, CT, "AUC of FedMLP on a fifth of the labels minus FedAvg on all of them -9.4 [-11.5, -7.2]"
        ),
        job="fedmlp_ich",
        variant="fedavg",
    ),
}
TABLE[RUN, SINGLE] = {
    "label sets differ": Rule(
        why.gaps,
        "Run candidate sets, and compare them with FedPU and FedLSM, which they beat in our tests. Candidate sets and"
        " FedPU need sites that label every picture of their classes. Plain FedAvg loses classes that few sites know."
        " For grey images add pixel_mean=[] pixel_deviation=[] vertical_flip=false to --set.",
        Evidence(
            SETS_PAGE,
            DERMOSCOPY,
            "macro F1, candidate sets minus FedPU +2.6 [0.7, 4.5], minus FedLSM +6.0 [3.5, 8.5], minus closed-form"
            " heads -2.0 [-11.9, 7.9]",
        ),
        job="fedlsm_isic2018",
        variant="candidate_sets",
        rows=("fedpu", "fssl", "fixmatch_masked", "fedavg_masked", "fedavg"),
    ),
    "noisy sites": Rule(
        why.judged_noisy,
        "Run FedNoRo, with pretrained weights if you have them, and then with refit=true in --set.",
        Evidence(
            NOISY_PAGE,
            "FedNoRo, real brain MR slices",
            "BACC, 128 × 128, ImageNet weights: FedNoRo minus FedLA +4.4 [0.0, 8.7], with a refit +3.9 [1.2, 6.5]",
        ),
        job="fednoro_ich",
        rows=("fedla", "fedavg"),
    ),
    "clean and balanced": Rule(
        why.clean_and_balanced,
        "Plain FedAvg is enough: there is neither noise nor imbalance to make up for.",
        NOT_MEASURED,
        job="fednoro_ich",
        variant="fedavg",
        rows=("fedla",),
    ),
    "clean": Rule(
        why.judged_clean,
        "Run federated averaging with logit adjustment (FedLA), which makes up for imbalance.",
        Evidence(
            NOISY_PAGE, "FedNoRo, phantom CT", "without a noisy site FedNoRo goes on as FedLA, BACC 82.4, one seed"
        ),
        job="fednoro_ich",
        variant="fedla",
        rows=("fedavg",),
    ),
    "too few sites to judge": Rule(
        why.few_to_judge,
        "Run federated averaging with logit adjustment (FedLA). FedNoRo refuses fewer than four sites.",
        Evidence(
            NOISY_PAGE,
            "FedNoRo, real brain MR slices",
            f"at eight sites FedLA 76.6 ± 1.6, FedAvg 73.2 ± 2.1; {NO_PAIRS}",
        ),
        job="fednoro_ich",
        variant="fedla",
        rows=None,
    ),
    "noise unknown": Rule(
        why.unjudged,
        "Run FedNoRo. Its warm-up compares the losses of the sites, and where it finds no noisy one it goes on as"
        " federated averaging with logit adjustment (FedLA), so that little is lost by asking.",
        Evidence(NOISY_PAGE, "FedNoRo, phantom CT", "without a noisy site every digit is FedLA's, BACC 82.4, one seed"),
        job="fednoro_ich",
        rows=("fedla", "fedavg"),
    ),
}
TABLE[RUN, MASKS] = {
    "structures missing": Rule(
        why.structures_missing,
        "Run ConDistFL, and the marginal loss alone beside it.",
        Evidence(
            MASKS_PAGE,
            ORGANS,
            "Dice per volume, ConDistFL minus the marginal loss +28.3 [11.1, 45.5], minus FedAvg +76.4 [64.6, 88.2]",
        ),
        job="condist_organs",
        rows=("marginal", "fedavg"),
    ),
    "structures marked": Rule(
        why.structures_marked, "Plain FedAvg is enough.", CHECKED, job="condist_organs", variant="fedavg"
    ),
    "masks complete": Rule(
        why.masks_complete,
        "Plain FedAvg is enough: whatever a correction adds to a complete mask is wrong.",
        Evidence(
            MASKS_PAGE, LESIONS, "masks complete, FedIA minus FedAvg: Dice +1.1 [-0.2, 2.4], precision -3.9 [-8.1, 0.3]"
        ),
        job="fedia_ms",
        variant="fedavg",
    ),
    "masks partial": Rule(
        why.masks_partial,
        "Run FedIA, and its correction alone beside it (jobs/fedia_lung for CT).",
        PARTIAL,
        job="fedia_ms",
        rows=("correction_only", "fedavg"),
    ),
    "masks unknown": Rule(
        why.masks_unknown,
        "Ask each site whether it marks all lesions. If all do, plain FedAvg is enough (--variant fedavg). If not, run"
        " FedIA, and its correction alone beside it (jobs/fedia_lung for CT).",
        PARTIAL,
        job="fedia_ms",
        rows=("correction_only", "fedavg"),
    ),
}
TABLE[RUN, LABELS] = {
    "not told": Rule(
        why.not_told,
        "No job yet. Ask these sites which classes they label; the numbers themselves may stay there.",
        CHECKED,
    )
}
TABLE[WATCH, ANY] = {
    "phantom": Rule(why.phantom, "The advice is about this phantom, not about any hospital.", CHECKED),
    "not counted": Rule(why.uncounted, "What they have may change the advice.", CHECKED),
    "held back": Rule(why.held_back, "No advice rests on one: it may be small, or next to such.", CHECKED),
}
TABLE[WATCH, LABELS] = {
    "few samples": Rule(
        why.few_samples,
        "The smallest sites of a measured federation had about 190.",
        Evidence(MISSING_PAGE, CT, "about 190 training slices at a site"),
    ),
    "few positives": Rule(why.few_positives, "Expect little of these classes.", NOT_MEASURED),
}
TABLE[WATCH, MULTI] = {
    "large sites": Rule(
        why.large_sites,
        "With more data FedMLP's lead over the partial loss (FedAvg-PL) shrinks.",
        Evidence(MISSING_PAGE, CT, "two thirds more slices: FedMLP minus FedAvg-PL +2.4 [0.9, 3.8] AUC"),
    ),
    "real images": Rule(
        why.real_images,
        "On real slices FedMLP was hardly better than the partial loss, and the partial loss better with a closed-form"
        " refit (variant fedavg_pl, refit=true): compare before you choose.",
        Evidence(
            MISSING_PAGE,
            "FedMLP, real brain MR slices",
            "AUC, FedMLP minus FedAvg-PL +0.8 [-0.5, 2.1]; FedAvg-PL refitted minus FedAvg-PL +1.0 [0.1, 1.9]",
        ),
    ),
    "one annotator": Rule(
        why.alone, "What is learnt of such a class comes from the labels of one site: have them checked.", NOT_MEASURED
    ),
}
TABLE[WATCH, SINGLE] = {
    "one site with the class": Rule(
        why.alone,
        "An average by samples loses such a class, one by class keeps it, as FedLSM does. It says nothing about noise.",
        Evidence(
            SETS_PAGE, "FedLSM, phantom dermoscopy", "F1 of three such classes: by samples 2, 4, 15, FedLSM 18, 77, 57"
        ),
    ),
    "vote share": Rule(
        why.votes,
        "A high share is no proof.",
        Evidence(
            NOISY_PAGE,
            "FedNoRo, how often the noisy sites are found",
            "it was 97 % although three of the seven sets were not exact",
        ),
    ),
}
TABLE[WATCH, MASKS] = {
    "real volumes": Rule(
        why.real_masks,
        "Methods for masks are measured on phantoms alone: compare them with FedAvg before you choose.",
        NOT_MEASURED,
    )
}
TABLE[UNKNOWN, SINGLE] = {
    "noise, one label": Rule(
        why.no_losses,
        "Counts cannot tell careless labels from careful ones. Losses after a warm-up can: with four sites or more,"
        " and a label for every sample, run jobs/fednoro_ich, then this command with --losses and its run folder.",
        Evidence(
            NOISY_PAGE,
            "FedNoRo, how often the noisy sites are found",
            "percent: exactly the noisy sites 57, recall 83, precision 95",
        ),
    ),
    "missing and noisy": Rule(
        why.missing_and_noisy,
        "FedLSM takes the labels that there are for right, and FedNoRo refuses blanks.",
        NOT_MEASURED,
    ),
    "class without a sample": Rule(
        why.without_sample, "The site may have no such case, or call it by another name: ask.", NOT_MEASURED
    ),
}
TABLE[UNKNOWN, MULTI] = {
    "noise, several labels": Rule(
        why.no_losses,
        "Counts cannot tell careless labels from careful ones: have a sample of each site's labels checked.",
        NOT_MEASURED,
    ),
    "missing, perhaps noisy": Rule(
        why.missing_and_noisy,
        "FedMLP takes the labels that there are for right. It withstood noise at least as well as the partial loss.",
        Evidence(
            MISSING_PAGE,
            "Labels both missing and noisy",
            "AUC minus FedAvg-PL: CT +2.3 [1.0, 3.7], MR +0.7 [-0.6, 2.0]",
        ),
    ),
    "two methods": Rule(why.two_methods, "Which does better on the same sites?", NOT_MEASURED),
}
TABLE[UNKNOWN, ANY] = {
    "class not told": Rule(
        why.doubtful,
        "It may be too rare to be learnt, and a class without a positive sample anywhere stops a job.",
        CHECKED,
    )
}
RULES = tuple(
    replace(rule, name=name, part=part, kinds=kinds)
    for (part, kinds), rules in TABLE.items()
    for name, rule in rules.items()
)
