"""The page of a review in real browsers, Chromium and Firefox, driven through Selenium, against the command itself."""

import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from factories import ROOT, make_dicom, make_site_folder
from review_factories import RULE, open_run

from fedmend.repairs.label_ledger import Repairs
from fedmend.review.desk import Desk

selenium = pytest.importorskip("selenium")
from selenium import webdriver  # noqa: E402
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

pytestmark = pytest.mark.slow
CHROMIUM, FIREFOX = "chromium", "firefox"
PROGRAMS = {CHROMIUM: ("chromium", "chromedriver"), FIREFOX: ("firefox-esr", "geckodriver")}
OPTIONS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
SAMPLES = 24


@pytest.fixture
def run(tmp_path):
    """A site of CT slices of three patients, on which a rule has labelled class 1."""
    labels = np.array([[i % 2, -1] for i in range(SAMPLES)])
    make_site_folder(tmp_path / "data", labels, classes=("edema", "bleeding"), suffix=".dcm", window="brain", size=64)
    images = sorted((tmp_path / "data" / "images").glob("*.dcm"))
    for number, image in enumerate(images):
        make_dicom(image, np.arange(64 * 64).reshape(64, 64) % 200 - number)
    table = tmp_path / "data" / "train.csv"
    table.write_text(re.sub(r",p(\d+)", lambda m: f",patient {int(m[1]) // 8}", table.read_text()))
    data, ledger, _ = open_run(tmp_path, classes=("edema", "bleeding"))
    every = np.arange(SAMPLES)
    repairs = Repairs(every, np.ones(SAMPLES), every % 2, np.linspace(0.5, 0.9, SAMPLES))
    ledger.record(RULE, 0, data.train.labels, repairs)
    return tmp_path / "state" / "run-1" / "site-1"


def start_chromium(program, driver, profile):
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for word in [*OPTIONS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(word)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


def start_firefox(program, driver, profile):
    options = webdriver.FirefoxOptions()
    options.binary_location = program
    options.add_argument("-headless")
    return webdriver.Firefox(options=options, service=webdriver.FirefoxService(driver))


@pytest.fixture(params=PROGRAMS)
def browser(request, tmp_path):
    found = [shutil.which(program) for program in PROGRAMS[request.param]]
    if not all(found):
        pytest.skip(f"needs {' and '.join(PROGRAMS[request.param])} on the PATH")
    start = {CHROMIUM: start_chromium, FIREFOX: start_firefox}[request.param]
    driver = start(*found, tmp_path / "profile")
    driver.set_window_size(1280, 900)
    yield driver
    driver.quit()


class Server:
    """The command, and the link that it prints."""

    def __init__(self, run, port=0):
        words = [sys.executable, "-u", "-m", "fl_components.cli", "review", run, "--port", port]
        env = {"PYTHONPATH": f"{ROOT / 'custom'}:{ROOT}", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*map(str, words)], env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        said = [self.process.stdout.readline() for _ in range(3)]
        self.link = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=\S+", "".join(said))
        assert self.link, said
        self.port = int(self.link[1])

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def server(run):
    started = Server(run)
    yield started
    started.kill()


def enter(browser, server):
    browser.get(server.link[0])
    until(browser, lambda: browser.find_elements(By.ID, "reviewer"))
    browser.find_element(By.ID, "reviewer").send_keys("AB", Keys.ENTER)
    until(browser, lambda: "/queue" in browser.current_url)


def open_first(browser, server):
    enter(browser, server)
    browser.find_element(By.ID, "start").click()
    until(browser, lambda: "/item/" in browser.current_url)


def until(browser, holds):
    """Waits; an element may go while the next page comes."""
    going = (NoSuchElementException, StaleElementReferenceException)
    WebDriverWait(browser, 20, ignored_exceptions=going).until(lambda _: holds())


def press(browser, *keys):
    ActionChains(browser).send_keys(*keys).perform()


def image_size(browser):
    return browser.execute_script("const i = document.getElementById('picture'); return [i.naturalWidth, i.complete]")


def judge_by_key(browser, key):
    """Presses a key and waits for the next page."""
    before = browser.current_url
    press(browser, key)
    until(browser, lambda: browser.current_url != before)


def test_twenty_repairs_by_keyboard_a_window_by_drag_and_on_after_the_server_was_killed(run, browser, server):
    open_first(browser, server)
    until(browser, lambda: image_size(browser) == [64, True])
    assert browser.find_element(By.ID, "place").text.endswith(" of 8")

    before = browser.find_element(By.ID, "picture").get_attribute("src")
    stack = browser.find_element(By.ID, "stack")
    ActionChains(browser).drag_and_drop_by_offset(stack, 60, 40).perform()
    until(browser, lambda: "centre=" in browser.find_element(By.ID, "picture").get_attribute("src"))
    assert browser.find_element(By.ID, "picture").get_attribute("src") != before
    assert re.fullmatch(r"centre \d+, width \d+", browser.find_element(By.ID, "levels").text)
    place = browser.find_element(By.ID, "place").text
    press(browser, Keys.ARROW_UP if place.startswith("8 ") else Keys.ARROW_DOWN)
    until(browser, lambda: browser.find_element(By.ID, "place").text != place)

    for number in range(10):
        judge_by_key(browser, "ar"[number % 2])
    port = server.port
    server.kill()  # in the middle
    again = Server(run, port)
    try:
        enter(browser, again)
        assert "10 of 24 judged" in browser.find_element(By.TAG_NAME, "main").text
        browser.find_element(By.ID, "start").click()
        until(browser, lambda: "/item/" in browser.current_url)
        for number in range(10):
            judge_by_key(browser, "ur"[number % 2])
        desk = Desk(run)
        words = [v.word for v in desk.ledger.verdicts()]
        assert words == ["accept", "reject"] * 5 + ["unsure", "reject"] * 5
        assert (desk.ledger.repairs()[:, 1] >= 0).sum() == SAMPLES - 10
    finally:
        again.kill()


def test_a_note_and_taking_back(run, browser, server):
    open_first(browser, server)
    here = browser.current_url
    press(browser, "n")
    browser.switch_to.active_element.send_keys("rare, and a key in a note")
    assert browser.current_url == here  # r and a are letters there
    browser.find_element(By.CSS_SELECTOR, "[data-key=r]").click()
    until(browser, lambda: browser.current_url != here)
    browser.get(here)
    assert "rejected, AB" in browser.find_element(By.ID, "verdict").text
    assert "rare, and a key in a note" in browser.find_element(By.ID, "verdict").text
    press(browser, "z")
    until(browser, lambda: not browser.find_elements(By.ID, "verdict"))
    assert [v.word for v in Desk(run).ledger.verdicts()] == ["reject", "withdraw"]


def test_keys_with_caps_lock_and_on_a_keyboard_with_other_letters(run, browser, server):
    open_first(browser, server)
    judge_by_key(browser, "A")
    here = browser.current_url
    pressed = "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'к', code: 'KeyR', bubbles: true}))"
    browser.execute_script(pressed)
    until(browser, lambda: browser.current_url != here)
    assert [v.word for v in Desk(run).ledger.verdicts()] == ["accept", "reject"]


def test_the_last_verdict_is_taken_back_by_one_key(run, browser, server):
    open_first(browser, server)
    here = browser.current_url
    judge_by_key(browser, "a")
    press(browser, "z")
    until(browser, lambda: browser.current_url == here)
    assert [v.word for v in Desk(run).ledger.verdicts()] == ["accept", "withdraw"]


def test_the_browser_asks_before_it_leaves_a_note_that_was_not_sent(browser, server):
    asks = """const leaving = new Event("beforeunload", {cancelable: true});
        window.dispatchEvent(leaving);
        return leaving.defaultPrevented"""
    open_first(browser, server)
    assert not browser.execute_script(asks)
    press(browser, "n")
    browser.switch_to.active_element.send_keys("motion")
    assert browser.execute_script(asks)
    browser.execute_script("document.getElementById('judge').dataset.sent = 'yes'")
    assert not browser.execute_script(asks)


def test_a_slice_beside_it_that_cannot_be_read_is_a_sentence(tmp_path, browser, server):
    open_first(browser, server)
    own = int(re.search(r"/item/(\d+)/", browser.current_url)[1])
    beside = own - 1 if own % 8 else own + 1
    sorted((tmp_path / "data" / "images").glob("*.dcm"))[beside].unlink()
    unread = browser.find_element(By.ID, "unread")
    assert not unread.is_displayed()
    press(browser, Keys.ARROW_UP if own % 8 else Keys.ARROW_DOWN)
    until(browser, unread.is_displayed)
    assert unread.text == "image: expected a file that can be read, got none"
    press(browser, Keys.ARROW_DOWN if own % 8 else Keys.ARROW_UP)
    until(browser, lambda: not unread.is_displayed())


def test_the_page_behind_the_back_button_knows_of_the_verdict_and_takes_it_back(run, browser, server):
    open_first(browser, server)
    here = browser.current_url
    judge_by_key(browser, "a")
    browser.back()
    until(browser, lambda: browser.current_url == here and browser.find_elements(By.ID, "verdict"))
    press(browser, "z")
    until(browser, lambda: not browser.find_elements(By.ID, "verdict"))
    assert [v.word for v in Desk(run).ledger.verdicts()] == ["accept", "withdraw"]


def test_the_link_can_be_clicked_in_a_page_of_another_server(tmp_path, browser, server):
    (tmp_path / "notebook.html").write_text(f'<a id="link" href="{server.link[0]}">review</a>')
    browser.get((tmp_path / "notebook.html").as_uri())
    browser.find_element(By.ID, "link").click()
    until(browser, lambda: browser.find_elements(By.ID, "reviewer"))
    assert browser.current_url.endswith("/hello")


def test_the_map_comes_with_the_image_of_the_label_and_not_over_its_neighbour(browser, server):
    open_first(browser, server)
    own = browser.find_element(By.ID, "place").text
    press(browser, Keys.ARROW_UP if own.startswith("8 ") else Keys.ARROW_DOWN)
    until(browser, lambda: browser.find_element(By.ID, "place").text != own)
    press(browser, "h")
    until(browser, lambda: browser.find_element(By.ID, "map-words").is_displayed())
    assert browser.find_element(By.ID, "place").text == own


def test_neither_a_held_key_nor_a_double_click_judges_a_label_that_nobody_has_seen(browser, server):
    def judged():
        return int(browser.find_element(By.TAG_NAME, "progress").get_attribute("value"))

    open_first(browser, server)
    here = browser.current_url
    button = browser.find_element(By.CSS_SELECTOR, "[data-key=a]")
    ActionChains(browser, duration=0).move_to_element(button).click().pause(0.3).click().perform()
    until(browser, lambda: browser.current_url != here and judged() > 0)
    assert judged() == 1
    if hasattr(browser, "execute_cdp_cmd"):  # Firefox's driver holds no key
        for repeat in (False, True, True):
            held = {"type": "keyDown", "key": "a", "text": "a", "autoRepeat": repeat}
            browser.execute_cdp_cmd("Input.dispatchKeyEvent", held)
            until(browser, lambda: judged() > 1)
        browser.refresh()
        assert judged() == 2


def test_at_125_percent_nothing_is_cut_off_and_every_control_has_a_name(browser, server):
    open_first(browser, server)
    browser.execute_script("document.documentElement.style.fontSize = '125%'")
    browser.execute_script("document.querySelector('h1').textContent = 'W'.repeat(120)")
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    for control in browser.find_elements(By.CSS_SELECTOR, "main button, main select, main textarea, main a"):
        assert control.accessible_name
    if hasattr(browser, "get_log"):  # Firefox's driver tells nothing of its console
        severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert severe == []


def test_the_queue_fits_a_narrow_screen_and_its_table_is_scrolled_by_itself(browser, server):
    enter(browser, server)
    assert len(browser.find_elements(By.CSS_SELECTOR, "tbody tr")) > 1
    browser.execute_script("document.documentElement.style.fontSize = '400%'")  # as 320 of 1280 pixels
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    region = browser.find_element(By.CSS_SELECTOR, "[role=region]")
    assert browser.execute_script("return arguments[0].scrollWidth > arguments[0].clientWidth", region)
    assert region.accessible_name == "Queue"
    assert region.get_attribute("tabindex") == "0"
