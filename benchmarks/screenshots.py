r"""Takes the pictures of ``docs/review.md`` in Chromium, at the page that ``fedmend review`` serves.

Needs Debian's packages chromium and chromium-driver, and the states of two runs, here of their first sites::

    fedmend simulate jobs/fedmlp_ich --local --workspace runs/ich --site state_dir=runs/labels/{SITE_NAME}
    fedmend simulate jobs/fedia_ms --local --workspace runs/ms --site state_dir=runs/masks/{SITE_NAME}
    python benchmarks/screenshots.py --labels runs/labels/site-1 --masks runs/masks/site-1

Eight repairs of the first run are judged in a copy of its state, so that the page to sign has something to say.
"""

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from fedmend.repairs.verdicts import ACCEPT, REJECT
from fedmend.review.desk import REPAIRS, Choice, Desk, reviewable
from fedmend.review.sign_off import PAGE, export

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

ROOT = Path(__file__).resolve().parents[1]
SIZE, COLOURS = (1100, 900), 96
WAIT = "const done = arguments[0]; Promise.all([...document.images].map((i) => i.decode().catch(() => 0))).then(done)"
WINDOW = "const s = document.getElementById('window'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))"


@contextmanager
def browser() -> "Iterator[Chrome]":
    """Chromium without a window."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for word in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        driver.set_window_size(*SIZE)
        yield driver
    finally:
        driver.quit()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The link of a review of a run."""
    words = [sys.executable, "-u", "-m", "fl_components.cli", "review", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout  # a pipe
        try:
            yield [process.stdout.readline() for _ in range(2)][1].strip()
        finally:
            process.kill()


def shoot(driver: "Chrome", file: Path) -> None:
    """What the browser shows, in few colours."""
    driver.execute_async_script(WAIT)
    Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB").quantize(COLOURS).save(file, optimize=True)
    print(f"{file} {file.stat().st_size // 1000} kB")


def enter(driver: "Chrome", link: str) -> str:
    """Opens the page; its address."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.expected_conditions import presence_of_element_located, staleness_of
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(link)
    field = WebDriverWait(driver, 10).until(presence_of_element_located((By.ID, "reviewer")))
    field.send_keys("AB", Keys.ENTER)
    WebDriverWait(driver, 10).until(staleness_of(field))  # the queue that follows would replace a page opened at once
    return link.split("/?")[0]


def take(labels: Path, masks: Path, out: Path) -> None:
    """All four pictures, of ``<state_dir>/<run>/<site>`` of a run that set labels, and of one that changed masks."""
    with tempfile.TemporaryDirectory() as temporary, browser() as driver:
        copy = Path(shutil.copytree(labels, Path(temporary) / "state" / labels.parent.name / labels.name))
        desk = Desk(copy)
        for number, item in enumerate(desk.queue(Choice(what=REPAIRS))[:8]):
            desk.judge(item, REJECT if number in (1, 4) else ACCEPT, reviewer="AB")
        with served(copy) as link:
            page = enter(driver, link)
            driver.get(f"{page}/queue?state=all&what={REPAIRS}")
            shoot(driver, out / "review_queue.png")
            driver.get(f"{page}/next?what={REPAIRS}")
            driver.execute_script(WINDOW, "subdural")
            shoot(driver, out / "review_label.png")
        export(desk, Path(temporary) / "corrected")
        driver.get((Path(temporary) / "corrected" / PAGE).as_uri())
        shoot(driver, out / "review_sign_off.png")
        with served(masks) as link:
            page = enter(driver, link)
            largest = max(Desk(masks).items(), key=lambda item: item.new - item.old)
            driver.get(f"{page}/item/{largest.sample}/{largest.label_class}")
            shoot(driver, out / "review_mask.png")


def main() -> None:
    """Finds the runs and takes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=Path, required=True, help="state of a run that set labels, of one site")
    parser.add_argument("--masks", type=Path, required=True, help="state of a run that marked lesions, of one site")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures")
    args = parser.parse_args()
    take(reviewable(args.labels)[0], reviewable(args.masks)[0], args.out)


if __name__ == "__main__":
    main()
