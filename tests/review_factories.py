"""A site's run as a worker leaves it, ready for a review, and a browser at its page."""

import html
import re

import numpy as np
import torch
from factories import CLASSES, make_site_folder
from nifti_factories import lesion, make_volume_site

from fedmend.basics.state import StateStore
from fedmend.data.card import load_card
from fedmend.data.site import Opening
from fedmend.kinds import kind_of
from fedmend.repairs.label_ledger import Repairs
from fedmend.repairs.site_run import LEDGER_NAME, OPINIONS, save_opened
from fedmend.review.desk import Desk

RULE = "fedmlp.missing_label_detection"
HOST = "127.0.0.1:5000"
ORIGIN = {"origin": f"http://{HOST}"}


def open_run(folder, *, classes=CLASSES, size=32, study_slices=0):
    """Ledger and state of a run on the site folder ``folder / "data"``; what the worker notes is there."""
    card = load_card(folder / "data", "site-1")
    kind, opening = kind_of(card.kind), Opening(folder / "cache", size, torch.device("cpu"), study_slices=study_slices)
    data = kind.load(card, classes, opening)
    run = folder / "state" / "run-1" / "site-1"
    ledger, state = kind.open_ledger(run / LEDGER_NAME, card, data), StateStore(run)
    save_opened(state, card, classes, opening, data.train)
    return data, ledger, state


def make_run(folder, *repairs, opinions=None, labels=None, classes=CLASSES, study_slices=0, **options):
    """A run with repaired labels.

    Args:
        folder: made here.
        repairs: rows of (sample, class, new, round, confidence).
        opinions: (N, C) probabilities of the final model.
        labels: of the site; default: those of ``make_site_folder``.
        classes: names.
        study_slices: that are opened of each study.
        options: of ``make_site_folder``.
    """
    given = {} if labels is None else {"labels": labels}
    make_site_folder(folder / "data", classes=classes, **given, **options)
    data, ledger, state = open_run(folder, classes=classes, study_slices=study_slices)
    for round_num in sorted({r[3] for r in repairs}):
        sample, label_class, new, _, sure = np.array([r for r in repairs if r[3] == round_num], dtype=float).T
        ledger.record(RULE, round_num, data.train.labels, Repairs(sample, label_class, new, sure))
    if opinions is not None:
        state.save(OPINIONS, torch.tensor(np.asarray(opinions), dtype=torch.float32))
    return folder / "state" / "run-1" / "site-1"


def make_desk(folder, *repairs, **options):
    """The desk of :func:`make_run`."""
    return Desk(make_run(folder, *repairs, **options))


def make_mask_run(folder, *slices):
    """A run in whose round 2 the pixel (5, 5) of these slices of 8 x 8 became lesion."""
    make_volume_site(folder / "data", [lesion(((2, 4), (2, 4), (1, 2)))])
    data, ledger, _ = open_run(folder, classes=("lesion",), size=8)
    change = np.zeros(data.train.masks.shape, dtype=np.int8)
    change[list(slices), 5, 5] = 1
    ledger.record("fedia.correction", 2, change, np.full(len(change), 0.9))
    return folder / "state" / "run-1" / "site-1"


ORGANS = ("liver", "spleen", "kidneys")


def make_organ_run(folder):
    """A run whose masks show the spleen, value 7 in the files, and in whose slice 1 the pixel (5, 5) became liver and
    (6, 6) and (6, 7) became kidneys; the final model gives the second 0.75."""
    masks = [lesion(((2, 4), (2, 4), (1, 2))).astype(np.uint8) * 7]
    make_volume_site(folder / "data", masks, test=(), classes=ORGANS, values=[5, 7, 9], annotated={"train": ["spleen"]})
    data, ledger, state = open_run(folder, classes=ORGANS, size=8)
    change = np.zeros(data.train.masks.shape, dtype=np.int8)
    change[1, 5, 5] = 1
    change[1, 6, 6:] = 3
    ledger.record("condist.pseudo_label", 2, change, np.full((len(change), 3), 0.9))
    state.save(OPINIONS, torch.tensor([[0.0, 0, 0], [0.5, 0, 0.25], [0, 0, 0], [0, 0, 0]]))
    return folder / "state" / "run-1" / "site-1"


class Browser:
    """A browser at a desk; it has taken the link and given its initials unless told otherwise."""

    def __init__(self, desk, *, enter=True):
        from starlette.testclient import TestClient

        from fedmend.review.app import Session, review_app

        self.desk, self.session = desk, Session()
        self.token = self.session.token
        app = review_app(desk, self.session, lambda: {HOST})
        self.client = TestClient(app, base_url=f"http://{HOST}", follow_redirects=False)
        if enter:
            assert self.get(f"/?token={self.token}").text.count('url=/hello"') == 1
            assert self.post("/hello", reviewer="AB").headers["location"] == "/queue"

    def get(self, address, **options):
        return self.client.get(address, **options)

    def post(self, address, *, headers=ORIGIN, form=None, **fields):
        return self.client.post(address, data={"form": form or self.session.form, **fields}, headers=headers)

    def judge(self, sample, word, **fields):
        return self.post(f"/judge/{sample}/1", word=word, **{"seen": "", **fields})


def words(answer):
    """The text of a page, without markup."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", answer.text)))
