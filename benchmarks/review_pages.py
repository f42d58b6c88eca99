"""Measures how long the pages of a review take where ten thousand repairs wait.

One command: ``python benchmarks/review_pages.py``. A site of a quarter as many images of noise, 64 x 64, has one class
of its own and four that a rule has set on every image, and opinions of a model. The pages are asked for without a
browser, each after another until its last byte: the first one, which opens data and ledger, then pages of the queue,
an item with its image, and a verdict, after which the queue is read anew. Prints the seconds of each.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from starlette.testclient import TestClient

from fedmend.basics.state import StateStore
from fedmend.data.card import load_card, write_card
from fedmend.data.site import Opening
from fedmend.data.tables import write_table
from fedmend.kinds.multilabel import MultiLabel
from fedmend.labels import MULTILABEL
from fedmend.repairs.label_ledger import Repairs
from fedmend.repairs.site_run import LEDGER_NAME, OPINIONS, save_opened
from fedmend.repairs.verdicts import ACCEPT
from fedmend.review.app import Session, review_app
from fedmend.review.desk import Desk

if TYPE_CHECKING:
    from httpx2 import Response

CLASSES, EDGE, HOST = ("own", "a", "b", "c", "d"), 64, "127.0.0.1:5000"


def make_run(folder: Path, repairs: int) -> Path:
    """A site folder, and the state that a run with so many repairs, a multiple of four, leaves: its folder."""
    rng, count = np.random.default_rng(0), repairs // (len(CLASSES) - 1)
    images = [f"image{i}.png" for i in range(count)]
    (folder / "data" / "images").mkdir(parents=True)
    for image in images:
        Image.fromarray(rng.integers(0, 256, (EDGE, EDGE), dtype=np.uint8)).save(folder / "data" / "images" / image)
    write_table(folder / "data" / "train.csv", images, rng.integers(0, 2, (count, 1)), CLASSES[:1])
    splits = {"train": "train.csv"}
    write_card(folder / "data", task=MULTILABEL, classes=CLASSES, splits=splits, image_root="images")
    card, run = load_card(folder / "data", "site-1"), folder / "state" / "run" / "site-1"
    opening, kind = Opening(folder / "cache", 32, torch.device("cpu")), MultiLabel()
    data = kind.load(card, CLASSES, opening)
    ledger, state = kind.open_ledger(run / LEDGER_NAME, card, data), StateStore(run)
    sample, label_class = (axis.ravel() for axis in np.indices((count, len(CLASSES) - 1)))
    set_to, sure = rng.integers(0, 2, len(sample)), rng.random(len(sample))
    ledger.record("benchmark", 0, data.train.labels, Repairs(sample, label_class + 1, set_to, sure))
    save_opened(state, card, CLASSES, opening, data.train)
    state.save(OPINIONS, torch.from_numpy(rng.random((count, len(CLASSES)), dtype=np.float32)))
    return run


def measure(run: Path, times: int) -> dict[str, float]:
    """Seconds of each kind of page: the median, but for the first one."""
    started, session = time.perf_counter(), Session()
    desk = Desk(run)
    client = TestClient(review_app(desk, session, lambda: {HOST}), base_url=f"http://{HOST}")
    client.get(f"/?token={session.token}")
    headers = {"origin": f"http://{HOST}"}
    client.post("/hello", data={"form": session.form, "reviewer": "AB"}, headers=headers)
    found = {"first page, with opening the run": time.perf_counter() - started}

    def median(do: Callable[[int], "Response"]) -> float:
        seconds = []
        for number in range(times):
            before = time.perf_counter()
            assert do(number).status_code == 200
            seconds.append(time.perf_counter() - before)
        return statistics.median(seconds)

    def judge(_: int) -> "Response":
        here = client.get("/next", follow_redirects=False).headers["location"].replace("item", "judge")
        return client.post(here, data={"form": session.form, "word": ACCEPT, "seen": ""}, headers=headers)

    found["page of the queue"] = median(lambda number: client.get(f"/queue?page={number}"))
    found["item"] = median(lambda number: client.get(f"/item/{number}/1"))
    found["image"] = median(lambda number: client.get(f"/picture/{number}.png"))
    found["next item, verdict and the item after it"] = median(judge)
    assert len(desk.ledger.verdicts()) == times
    return found


def main() -> None:
    """Makes the run, asks for pages and prints their seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repairs", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=20, help="of each kind of page")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), args.repairs)
        for page, seconds in measure(run, args.times).items():
            print(f"{page}: {seconds:.2f} s")


if __name__ == "__main__":
    main()
