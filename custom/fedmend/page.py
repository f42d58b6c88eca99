"""Pieces of the report page: style sheet, words, number formats, tables. Every string is escaped where it enters."""

import json
from collections.abc import Iterable, Sequence
from html import escape

GLOSSARY = {
    "Annotated class": "A finding that a site has labelled in its images, present or absent. The other findings are "
    "unknown there, not absent.",
    "AUC": "Area under the ROC curve: how often a random image with the finding gets a higher score than a random one "
    "without it. 0.5 is guessing, 1 is perfect.",
    "AP, mAP": "Average precision: the share of flagged images that truly have the finding, averaged over all "
    "sensitivities. Guessing gives the share of positive images. mAP is its mean over classes.",
    "BACC": "Balanced accuracy: mean of sensitivity and specificity when a score above 0.5 counts as a finding. "
    "0.5 is guessing.",
    "Macro": "Plain mean over the classes that could be measured, each counting the same however rare it is.",
    "Pseudo-label": "A label that the method sets at a site for a finding the site has not annotated. It is used for "
    "training only, stays at the site and never replaces an expert's label.",
    "Precision of pseudo-labels": "Share of pseudo-labels that agree with the truth. It needs the true labels, so "
    "it is known in experiments only.",
    "Prototype": "The mean internal description (feature vector) that the model gives to images with a finding, or to "
    "images without it. The clearest images get the pseudo-label of the prototype that they resemble more.",
    "Learning degree": "How well the model has learnt a class so far, from 0 to 1: the share of images on which it is "
    "sure. The higher it is, the more pseudo-labels are set in the next round.",
    "Warm-up": "The first rounds, in which each site learns from its own annotated classes only.",
}
SINGLE_LABEL_GLOSSARY = {
    "Recall": "Sensitivity: the share of the samples of a class that the model finds. Guessing one of C classes at random "
    "finds 1/C of them.",
    "Precision": "Of the samples that the model assigns to a class, the share that truly belong to it.",
    "F1": "Harmonic mean of recall and precision of a class: high only when both are. Macro F1 is its mean over classes.",
    "AUC": "Area under the ROC curve of one class against the rest: how often a random sample of the class gets a higher "
    "probability of it than a random sample of the other classes. 0.5 is guessing, 1 is perfect.",
    "BACC": "Balanced accuracy: the mean recall over classes, each counting the same however rare it is. The model's answer "
    "is the class with the highest score. Guessing gives 1 divided by the number of classes.",
    "Accuracy": "Share of all samples that the model gets right. Frequent classes dominate it.",
    "Macro": GLOSSARY["Macro"],
    "Last, Best": "As the FedNoRo paper reports: Last is the mean BACC of the last ten evaluated rounds, Best is the highest "
    "BACC over all rounds. Best is picked on the split that it is measured on, so it flatters; Last does not.",
    "Confusion matrix": "How many samples of each true class (row) the model assigns to each class (column). Right answers "
    "are on the diagonal.",
    "Warm-up": "The first rounds, in which every site learns from its labels as they are.",
}
NOISY_CLIENT_GLOSSARY = {
    "Noisy site (noisy client)": "A site whose labels are wrong so often that the model fits them badly. It is told from the clean ones "
    "by the mean losses of its classes after the warm-up; no label leaves the site for that. It is a judgement, not a proof: "
    "unusual images raise the losses too.",
    "Normalised loss": "The mean loss of a class at a site on the scale from 0 (lowest of all sites) to 1 (highest), so that "
    "a rare class counts as much as a frequent one.",
    "Detection vote share": "The mixture model that splits sites into clean and noisy is fitted several times from different "
    "starts. This is the share of fits that found exactly the noisy sites reported here; the lower it is, the less certain "
    "they are.",
    "Knowledge distillation weight": "How much a noisy site learns from the answers of the global model, the rest being "
    "from its own labels: 0 is labels only, 1 is the global model only. It grows over rounds.",
    "Distance-aware aggregation": "The average of the sites' models, in which a noisy site counts the less the further its "
    "model is from the nearest clean one. Without it, each site counts by its number of samples.",
}
SEGMENTATION_GLOSSARY = {
    "Dice": "Overlap of the marked and the true lesion pixels of a slice: 0 is none, 1 is perfect. The mean is over the slices "
    "whose true mask has a lesion; false alarms on the others count in precision and volume Dice.",
    "Volume Dice": "The same overlap of all voxels of a volume at once, averaged over the volumes with a lesion. Large lesions count more.",
    "Precision": "Of the voxels that the model marks as lesion, the share that truly are.",
    "Recall": "Sensitivity: of the true lesion voxels, the share that the model marks.",
    "Last, Best": "As the FedIA paper reports, Last is the mean of the last ten evaluated rounds. Best is the highest value over all "
    "rounds; it is picked on the split that it is measured on, so it flatters; Last does not.",
    "Warm-up": "The first rounds, in which every site learns from its masks as they are.",
}
COMPLETENESS_GLOSSARY = {
    "Annotation completeness": "The share of the lesions in its images that a site has marked. Nobody knows it outside experiments. "
    "The estimate compares the marked lesions with those that the global model finds after the warm-up, counted slice by slice; "
    "only the two counts leave a site. Compare sites by it rather than read it as a percentage: it can exceed 1.",
    "IoU": "Intersection over union of what the model marks and the site's own mask, from the training loss: 0 is none, 1 is the same.",
    "Expected line": "The straight line through a site's IoU during the warm-up, carried on. A site whose IoU falls behind it has "
    "probably begun to learn unmarked lesions as healthy tissue, which triggers the correction. A bad round can do so too.",
    "Correction": "Pixels that a site adds to its masks, once, where the global model is sure of a lesion. Nothing that an expert "
    "has marked is ever removed, and the expert's own file stays as it is.",
    "Completeness-aware aggregation": "The average of the sites' models, in which a site counts the more the more complete its "
    "annotation and the smaller its loss. Without it, each site counts by its number of slices.",
}
LABEL_SET_GLOSSARY = {
    "Uncertainty": "How evenly the model's answers are spread: the entropy of its probabilities on the scale from 0 (sure) to 1 (it "
    "cannot tell). With several findings per image it is the mean over the findings that the site does not label.",
    "Confident pool, uncertain pool": "The images of a site that the model is most and least sure of; chosen anew in every round. "
    "Images of the uncertain pool are used in mixed pairs only.",
    "Mixed pair (MixUp)": "An image of the uncertain pool blended with one of the confident pool, and their labels in the same "
    "proportion, so that the model also learns from images it is unsure of.",
    "Class knowledge q": "How many samples of a class a site has to learn from: those with a label where it identifies the class, "
    "those with a positive pseudo-label elsewhere.",
    "AWPA (adaptive weighted proxy aggregation)": "The average of the sites' models, in which the part that decides on a class "
    "counts by the class knowledge q of each site, and all other parts by its samples.",
}
CSS = """
:root{color-scheme:light}*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:28px 32px 48px;background:#fff;color:#1f2933;
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,"DejaVu Sans",sans-serif}
h1{font-size:28px;line-height:1.2;margin:0;overflow-wrap:anywhere}
h2{font-size:20px;margin:40px 0 8px;padding-top:12px;border-top:1px solid #d5dbe1}
h3{font-size:15px;margin:20px 0 6px}p{margin:6px 0 10px;max-width:75ch}
.sub{color:#52606b;margin:4px 0 12px;max-width:none}
nav{margin:14px 0 0;font-size:14px}nav a{color:#00558a;margin-right:16px;white-space:nowrap}
.badge{display:inline-block;background:#9c1c1c;color:#fff;font-weight:700;letter-spacing:.08em;font-size:14px;
padding:3px 10px;border-radius:4px;vertical-align:5px;margin-left:10px}
.phantom,.flag{border-left:5px solid #9c1c1c;background:#fdf1f0;padding:9px 14px;margin:14px 0;max-width:none}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:14px;margin:12px 0}
.card{border:1px solid #d5dbe1;border-radius:8px;padding:12px 16px}
.card b{display:block;font-size:34px;line-height:1.15;
font-variant-numeric:tabular-nums}.card span{color:#52606b;font-size:13px}
.card table{width:100%;margin:8px 0 0;font-size:13px}.card td{padding:1px 0;border:0}
.scroll{overflow-x:auto;margin:10px 0}table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
caption{text-align:left;color:#52606b;font-size:13px;padding-bottom:4px}
th,td{padding:4px 12px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid #e6eaee}
thead th{border-bottom:1.5px solid #7b8794;font-size:13px;vertical-align:bottom}
tbody th{font-weight:600;white-space:nowrap}
table.wide{font-size:12px}table.wide td{padding:4px 5px;white-space:normal}
table.wide thead th+th{writing-mode:vertical-rl;transform:rotate(180deg);padding:2px 4px;text-align:left;vertical-align:middle}
th.n,td.n{text-align:right;padding-left:12px}tr.sum th,tr.sum td{border-top:1.5px solid #7b8794;font-weight:600}
td.yes{background:#e3f0f8}td.no,.na{color:#5b6770}td.bad{background:#fdf1f0;color:#9c1c1c;font-weight:700}
td.yes,td.no,td.bad{padding-left:12px;white-space:nowrap}
td.wrap{max-width:70ch;overflow-wrap:anywhere}
.fine{font-size:13px;color:#52606b;max-width:100ch}
code{font:.93em ui-monospace,Consolas,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere}
figure{margin:8px 0 4px}svg{display:block;width:100%;height:auto}
svg *{stroke-linejoin:round;stroke-linecap:butt}svg text{font-family:inherit!important}
details{margin:12px 0}summary{cursor:pointer;color:#00558a}dt{font-weight:600;margin-top:8px}dd{margin:0;max-width:80ch}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:2px solid #0072b2;outline-offset:2px}
footer{margin-top:40px;border-top:1px solid #d5dbe1;padding-top:8px}
@media print{body{max-width:none;padding:0;font-size:11px}nav{display:none}h2,h3{break-after:avoid;margin-top:20px}
figure,.card,tr,dt,dd{break-inside:avoid}dt{break-after:avoid}.scroll{overflow:visible}
.badge,.phantom,.flag,.card,td.yes,td.bad{-webkit-print-color-adjust:exact;print-color-adjust:exact}
table,caption,thead th,.fine,.card span,.card table{font-size:10px}th,td{padding-right:8px}
tbody th,td.yes,td.bad{white-space:normal}}
"""
# Chromium prints this into the margin of every page.
PHANTOM_CSS = "@page{@top-right{content:'PHANTOM data';color:#9c1c1c;font:bold 11px sans-serif}}"


# Dark text has a contrast of at least 4.5 : 1 on every shade.
HEAT = (76, 159, 207)
HEAT_CSS = """
td.heat{padding-left:8px;white-space:nowrap;border:1px solid #fff}tr:has(td.heat)>th{white-space:normal}td.heat small{display:block;color:inherit;font-size:11px}
td.hit{font-weight:700;box-shadow:inset 0 0 0 2px #1f2933}
@media print{td.heat{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""


WIDE = 12  # columns; the heads of a table with more of them stand upright


class Markup(str):
    """HTML that is escaped already; every other string is escaped where it enters a page."""


def number(value: float | None) -> str:
    """A metric with three digits; ``None`` reads n/a."""
    return "n/a" if value is None else f"{value:.3f}"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def compact(value: object) -> str:
    """A JSON value on one line: four significant digits, 300 characters at most."""
    short = json.loads(json.dumps(value), parse_float=lambda f: float(f"{float(f):.4g}"))
    text = short if isinstance(short, str) else json.dumps(short, ensure_ascii=False).replace('"', "").strip("{}")
    return text if len(text) <= 300 else text[:299] + "…"


def td(value: object, style: str = "") -> Markup:
    """A table cell; a number is aligned to the right, ``None`` reads n/a."""
    style += " n" if value is None or isinstance(value, int | float) else ""
    style += " na" if value is None else ""
    text = f"{value:,}" if isinstance(value, int) else value if isinstance(value, str) else number(value)
    return Markup(f'<td class="{style.strip()}">{escape(text)}</td>' if style else f"<td>{escape(text)}</td>")


def heat(text: str, share: float | None, *, below: str = "", style: str = "") -> Markup:
    """A table cell, shaded from white (0) to blue (1); no shade for ``None``."""
    shade = ""
    if share is not None:
        red, green, blue = (round(255 + (end - 255) * min(max(share, 0.0), 1.0)) for end in HEAT)
        shade = f' style="background:#{red:02x}{green:02x}{blue:02x}"'
    small = f"<small>{escape(below)}</small>" if below else ""
    return Markup(f'<td class="{f"heat {style}".strip()}"{shade}>{escape(text)}{small}</td>')


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], total: Sequence[object] = ()) -> Markup:
    """A table whose first column names the row; cells are :class:`Markup` or values for :func:`td`."""
    rows = list(rows)
    body = ""
    for row in [*rows, total] if total else rows:
        cells = "".join(cell if isinstance(cell, Markup) else td(cell) for cell in row[1:])
        kind, name = "sum" if row is total else "row", escape(str(row[0]))
        body += f'<tr class="{kind}"><th scope="row">{name}</th>{cells}</tr>\n'
    numeric = [bool(rows) and (rows[0][i] is None or isinstance(rows[0][i], int | float)) for i in range(len(head))]
    heads = "".join(
        f'<th scope="col" class="{"n" if right else "w"}">{escape(word)}</th>'
        for word, right in zip(head, numeric, strict=True)
    )
    words, wide = escape(caption), ' class="wide"' if len(head) > WIDE else ""
    return Markup(
        f'<div class="scroll" role="region" tabindex="0" aria-label="{words}"><table{wide}><caption>{words}</caption>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def section(anchor: str, title: str, body: str) -> str:
    """A part of the page under a heading, reachable as ``#anchor``; ``body`` is HTML."""
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>\n{body}</section>\n'
