"""Pages that a run leaves, in a real browser on a narrow screen."""

import shutil

import pytest
from run_factories import make_run, write_files

from fedmend.report.report import write_report

selenium = pytest.importorskip("selenium")
from selenium import webdriver  # noqa: E402

pytestmark = pytest.mark.slow
PHONE = {"width": 320, "height": 800, "deviceScaleFactor": 1, "mobile": False}
LONG = "a-hospital-whose-name-somebody-has-typed-in-full-with-its-department"
FILES = {"global model": "/srv/federation/workspace/job-1/app_server/FL_global_model.pt"}


@pytest.fixture
def phone(tmp_path):
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (program and driver):
        pytest.skip("needs chromium and chromedriver on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for word in ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(word)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    yield browser
    browser.quit()


def sizes(browser, selector, side):
    found = "return [...document.querySelectorAll(arguments[0])].map(e => e.getBoundingClientRect()[arguments[1]])"
    return browser.execute_script(found, selector, side)


def test_on_a_phone_a_report_fits_and_its_figures_captions_and_paths_can_be_read(tmp_path, phone):
    files = make_run(tmp_path, drop=("repairs", "decisions"))
    site = files["run"]["sites"]["site-1"]
    run = files["run"] | {"run_name": LONG.replace("-", "_"), "sites": {LONG: site}}
    write_files(tmp_path, {"run": run, "results": {"final": {}, "files": FILES}})
    phone.get(write_report(tmp_path).as_uri())
    assert phone.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert min(sizes(phone, "figure text", "height")) >= 8
    assert min(sizes(phone, "td code", "width")) >= 100
    assert max(sizes(phone, "caption", "width")) <= 256
    assert max(sizes(phone, "tbody th", "width")) <= 320
