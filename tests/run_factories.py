"""Run folders as the server leaves them, small enough to count by hand."""

import json
import re

from fedmend.records.run_folder import RunFiles

CLASSES = ["bleed", "mass <5 mm"]
SKIN = ["nevus", "melanoma", "rare <1 %"]
EVIL = "<script>alert('site')</script>"
CHEST = ["edema", "mass <5 mm"]
CHEST_SITES = {
    "site-1": {"annotated": ["edema"], "train": 100, "test": 6, "positives": {"edema": 30}},
    "site-2": {"annotated": ["mass <5 mm"], "train": 100, "test": 6, "positives": {"mass <5 mm": 40}},
    "<b>": {"annotated": CHEST, "train": 50, "test": 6, "positives": {"edema": 9, "mass <5 mm": 5}},
}
CHEST_DECISIONS = [
    {"round": 1, "what": "class_knowledge", "value": {"site-1": [30.0, 0.0], "site-2": [0.0, 40.0], "<b>": [9.0, 5.0]}},
    {"round": 1, "what": "uncertainty", "value": {"site-1": [0, 0, 0, 100], "site-2": [0, 0, 10, 90]}},
    {"round": 2, "what": "class_knowledge", "value": {"site-1": [30.0, 10.0], "site-2": [30.0, 40.0]}},
    {"round": 2, "what": "uncertainty", "value": {"site-1": [15, 25, 40, 20]}},
]
TAGS = [
    {"round": 1, "site": site, "class": name, "positive": positive, "negative": 6, "untagged": 70}
    | {"correct_positive": correct, "correct_negative": 5}
    for site, name, positive, correct in (("site-1", CHEST[1], 8, 6), ("site-2", CHEST[0], 12, 9))
]
LESION_SITES = {
    "site-1": {"annotated": ["lesion"], "train": 30, "test": 8, "positives": {"lesion": 12}, "lesions": [10, 40]},
    "site-2": {"annotated": ["lesion"], "train": 50, "test": 8, "positives": {"lesion": 48}, "lesions": [30, 40]},
    "<b>": {"annotated": ["lesion"], "train": 20, "test": 8, "positives": {"lesion": 20}, "lesions": [20, 20]},
}
MASK_REPAIRS = [
    {"round": 4, "site": "site-2", "class": "lesion", "positive": 8, "negative": 0, "untagged": 0}
    | {"correct_positive": 6, "correct_negative": 0, "missing": 24},
    {"round": 3, "site": "<b>", "class": "lesion", "positive": 2, "negative": 0, "untagged": 0}
    | {"correct_positive": 0, "correct_negative": 0, "missing": 0},
]
LESION_DECISIONS = [
    {
        "round": 2,
        "what": "completeness",
        "value": {
            "site-1": {"annotated": 20, "predicted": 100, "estimate": 0.2},
            "site-2": {"annotated": 60, "predicted": 50, "estimate": 1.2},
            "<b>": {"annotated": 20, "predicted": 25, "estimate": 0.8},
        },
    },
    {"round": 2, "what": "iou_line", "value": {"site-1": [0.1, 0.0], "site-2": [0.2, 0.1], "<b>": [0.3, 0.3]}},
    *(
        {"round": r, "what": "iou", "value": {"site-1": 0.1, "site-2": value, "<b>": 0.4}}
        for r, value in ((1, 0.2), (2, 0.3), (3, 0.3), (4, 0.45))
    ),
    {"round": 2, "what": "triggered", "value": ["<b>"]},
    {"round": 3, "what": "corrected", "value": ["<b>"]},
    {"round": 3, "what": "triggered", "value": ["site-2"]},
    {"round": 4, "what": "corrected", "value": ["site-2"]},
    {"round": 3, "what": "completeness_weights", "value": {"site-1": 0.1, "site-2": 0.6, "<b>": 0.3}},
    {"round": 4, "what": "completeness_weights", "value": {"site-1": 0.05, "site-2": 0.7, "<b>": 0.25}},
    {"round": 3, "what": "best_model", "value": {"dice": 0.6, "split": "test"}},
]


def make_run(folder, *, drop=(), **changes):
    """Two sites, two classes, two rounds; the second class has no positive in the test split at the end."""
    info = {
        "run_name": "demo",
        "method": "FedMLP",
        "phantom": False,
        "classes": CLASSES,
        "num_rounds": 2,
        "warmup_rounds": 1,
        "sites": {
            "site-1": {"annotated": ["bleed"], "train": 40, "val": 5, "test": 6, "positives": {"bleed": 17}},
            EVIL: {"annotated": ["bleed"], "train": 60, "val": 7, "test": 8},
        },
        "settings": {"learning_rate": 0.00123},
    }
    metrics = [
        {
            "round": r,
            "split": "test",
            "macro": {"auc": auc, "map": 0.25, "bacc": 0.5},
            "per_class": {"auc": [auc, None], "ap": [0.25, None], "bacc": [0.5, None]},
            "positives": [4, 0],
            "negatives": [10, 14],
        }
        for r, auc in ((0, 0.512), (1, 0.734), (2, 0.623))
    ]
    repairs = [
        {"round": 1, "site": "site-1", "class": CLASSES[1], "positive": 8, "negative": 20, "untagged": 12}
        | {"correct_positive": 6, "correct_negative": 19},
        {"round": 1, "site": EVIL, "class": CLASSES[1], "positive": 5, "negative": 9, "untagged": 46}
        | {"correct_positive": None, "correct_negative": None},
    ]
    decisions = [
        {"round": 0, "what": "learning_degree", "value": {"bleed": 0.5, CLASSES[1]: 0.25}},
        {"round": 1, "what": "best_model", "value": {"auc": 0.7, "split": "val"}},
        {"round": 1, "what": "refused", "value": {"site": EVIL, "reason": "shape of fc.weight & more"}},
        {"round": 1, "what": "other_data", "value": {EVIL: ["train", "test"]}},
        {"round": 1, "what": "noisy_clients", "value": ["site-1"]},
    ]
    results = {"final": {"test": metrics[-1]["macro"]}, "files": {"best model": "models/best.pt"}, "seconds": 7260}
    files = {"run": info, "metrics": metrics, "repairs": repairs, "decisions": decisions, "results": results}
    write_files(folder, {name: content for name, content in (files | changes).items() if name not in drop})
    return files


def write_files(folder, files):
    for name, content in files.items():
        if isinstance(content, list):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in content))
        else:
            (folder / f"{name}.json").write_text(json.dumps(content))


def make_single_label_run(folder, *, drop=(), **changes):
    """Three sites and one that stays silent, three classes, twelve rounds; no test sample has the third class."""
    counts = {"site-1": [30, 10, 0], "site-2": [30, 10, 0], EVIL: [10, 9, 1], "site-4": [0, 0, 0]}
    info = {
        "run_name": "skin",
        "method": "fednoro",
        "phantom": False,
        "classes": SKIN,
        "num_rounds": 12,
        "warmup_rounds": 2,
        "sites": {
            name: {"annotated": SKIN, "train": sum(row), "test": 5, "positives": dict(zip(SKIN, row, strict=True))}
            for name, row in counts.items()
        },
    }
    metrics = [
        {
            "round": r,
            "stage": "robust",
            "split": "test",
            "per_class": {
                "recall": [0.8, 0.75, None],
                "precision": [0.889, 0.6, None],
                "f1": [0.842, 0.667, None],
                "auc": [0.925, 0.925, None],
            },
            "macro": {
                "bacc": 0.9 if r == 11 else r / 20,
                "f1": 0.754,
                "auc": 0.925,
                "precision": 0.744,
                "accuracy": 0.786,
            },
            "confusion": [[8, 2, 0], [1, 3, 0], [0, 0, 0]] if r > 11 else [[9, 1, 0], [4, 0, 0], [0, 0, 0]],
            "positives": [10, 4, 0],
        }
        for r in range(13)
    ]
    detection = {
        "class_loss": {EVIL: [0.9, 1.7, 2.5], "site-1": [0.4, 0.7, None], "site-2": [1.4, 1.2, None]},
        "normalised": {EVIL: [0.5, 1.0, 0.0], "site-1": [0.0, 0.0, 0.0], "site-2": [1.0, 0.5, 0.0]},
        "noisy": [EVIL, "site-2"],
        "vote_share": 8 / 9,
        "covariance": "spherical",
        "absent": ["site-4"],
    }
    decisions = [
        {"round": 2, "what": "noisy_client_detection", "value": detection | {"noisy": [], "vote_share": 0.1}},
        {"round": 2, "what": "noisy_client_detection", "value": detection},  # of a resumed run: this one counts
        {"round": 3, "what": "distillation_weight", "value": 0.05},
        {"round": 4, "what": "distillation_weight", "value": 0.76},
        {"round": 3, "what": "aggregation_weights", "value": {"site-1": 0.6, "site-2": 0.3, EVIL: 0.1}},
        {"round": 4, "what": "aggregation_weights", "value": {"site-1": 0.5, "site-2": 0.25, "site-4": 0.25}},
        {"round": 11, "what": "best_model", "value": {"bacc": 0.9, "split": "test"}},
        {"round": 2, "what": "fallback", "value": "federated averaging"},
    ]
    results = {
        "final": {"test": metrics[12]["macro"]},
        "best": {"round": 11, "test": metrics[11]["macro"]},
        "seconds": 60,
    }
    files = {"run": info, "metrics": metrics, "decisions": decisions, "results": results} | changes
    write_files(folder, {name: content for name, content in files.items() if name not in drop})
    return files


def make_label_set_run(
    folder=None, *, decisions=CHEST_DECISIONS, settings=None, known=CHEST_SITES, repairs=(), confusion=False
):
    """A finished run of two rounds and three sites; site-2 has no histogram in the last one, <b> has none at all."""
    evaluation = {
        "round": 2,
        "split": "test",
        "macro": {"auc": 0.5},
        "per_class": {"auc": [0.5, 0.5]},
        "positives": [4, 4],
        "negatives": [4, 4],
    } | ({"confusion": [[4, 0], [0, 4]]} if confusion else {})
    info = {
        "run_name": "demo",
        "method": "fedlsm",
        "phantom": False,
        "classes": CHEST,
        "num_rounds": 2,
        "warmup_rounds": 0,
        "sites": known,
        "settings": {"high": 0.3, "low": 20} if settings is None else settings,
    }
    return RunFiles(folder, info, {"test": [evaluation]}, list(repairs), list(decisions), {"final": {}})


def lesion_evaluation(round_num, dice, volume_dice):
    values = {"dice": dice, "volume_dice": volume_dice, "precision": 0.75, "recall": 0.5}
    record = {"round": round_num, "split": "test", "macro": values, "positives": [1200]}
    return record | {"per_class": {name: [value] for name, value in values.items()}}


def make_lesion_run(
    folder=None, *, decisions=LESION_DECISIONS, repairs=MASK_REPAIRS, known=LESION_SITES, evaluations=None, **changes
):
    """A finished run of four rounds, two of them warm-up, and three sites."""
    if evaluations is None:
        evaluations = [lesion_evaluation(r, r / 5, r / 10) for r in range(4)] + [lesion_evaluation(4, 0.5, 0.7)]
    info = {
        "run_name": "ms",
        "method": "fedia",
        "phantom": False,
        "task": "segmentation",
        "classes": ["lesion"],
        "num_rounds": 4,
        "warmup_rounds": 2,
        "sites": known,
    } | changes
    return RunFiles(folder, info, {"test": evaluations}, list(repairs), list(decisions), {"final": {}})


def write_run(folder, run):
    (folder / "run.json").write_text(json.dumps(run.info))
    (folder / "results.json").write_text(json.dumps(run.results))
    for name, lines in (("metrics", run.evaluations), ("repairs", run.repairs), ("decisions", run.decisions)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def rows_in(html):
    """Table rows as lists of cell texts."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", html, flags=re.DOTALL)
    return [re.findall(r"<t[dh][^>]*>(?:<code>)?(.*?)(?:</code>)?</t[dh]>", row) for row in rows]


def rows_of(page, anchor):
    """Table rows of one section as lists of cell texts."""
    return rows_in(page.split(f'<section id="{anchor}">')[1].split("</section>")[0])
