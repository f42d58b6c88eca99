import errno
import json
import shutil
from pathlib import Path

from factories import refused
from sitecheck_factories import allow, change_settings, found, shown

from fl_components.sitecheck import run, sitecheck
from fl_components.sitecheck.site import Result

NO_KIT = "expected the startup kit of a site, with startup/fed_client.json and local, got another folder"


def test_every_check_has_one_line_and_a_site_without_failures_is_ready(site):
    lines = [line for line in shown(site) if not line.startswith("        ")]
    computer = ["python", "packages", "gpu", "memory"]
    settings = ["fedmend.json", "agreed policy", "guard", "job", "class policy", "limits"]
    data = ["site card", "class names", "tables", "images", "looks", "counts", "lesions", "privacy", "overlap", "disk"]
    titles = [line[6:].split(": ")[0] for line in lines[:-1]]
    assert titles == [*computer, *settings, *data, "clock", "connection"]
    statuses = [line[:4].strip() for line in lines[:-1]]
    counts = [statuses.count(status) for status in ("ok", "warn", "skip")]
    assert lines[-1] == "site-1: ready ({} ok, {} warnings, {} skipped)".format(*counts)


def test_failures_are_counted_and_the_checks_behind_them_go_on(site):
    (site / "images" / "img1.png").unlink()
    lines = []
    with refused("site-1: expected every check to pass, got 2 that failed"):
        sitecheck(site, classes=("edema",), show=lines.append)
    assert [line[6:].split(": ")[0] for line in lines if line.startswith("fail")] == ["class names", "images"]
    assert lines[-1] == "skip  connection: needs --kit"


def test_a_terminal_shows_colours_and_a_file_does_not(site):
    assert "\033" not in "".join(shown(site))
    assert "\033[2mskip\033[0m  connection: needs --kit" in shown(site, color=True)
    assert any(line.startswith("\033[32mok  \033[0m  images: ") for line in shown(site, color=True))


def test_a_name_of_a_job_or_file_does_not_steer_the_terminal(site, monkeypatch):
    found = Result("ok", "classes a\x1b[2J", ["b\nready"])
    monkeypatch.setattr(run, "_results", lambda checked: iter([("class names", found)]))
    assert shown(site)[:2] == ["ok    class names: classes a\\x1b[2J", "        b\\nready"]


def test_no_line_names_an_image_a_patient_or_a_path(tmp_path, site, kit, job):
    (site / "images" / "img1.png").unlink()
    (site / "images" / "img2.png").write_text("no picture")
    shutil.copy(site / "train.csv", site / "test.csv")
    card = json.loads((site / "site.json").read_text())
    (site / "site.json").write_text(json.dumps({**card, "splits": {"train": "train.csv", "test": "test.csv"}}))
    allow(kit, ["*"])
    change_settings(kit, cache_dir=str(site / "site.json"), data_root=str(tmp_path / "no"))
    text = "\n".join(shown(site, kit=kit, job=job))
    assert "train.csv row 3" in text
    assert not [word for word in (str(tmp_path), "img", "p1", "p2") if word in text]


def test_what_cannot_be_opened_is_a_line_without_its_path(site, monkeypatch):
    read = Path.read_text

    def denied(path, **options):
        if path.name == "site.json":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", denied)
        lines = found("site card", site)
    assert lines == ["fail  site card: expected files and folders that can be read, got an error (PermissionError)"]
    (site / "site.json").unlink()
    assert found("images", site) == ["skip  images: needs the tables"]


def test_neither_folder_nor_kit_is_refused(tmp_path, site):
    with refused("sitecheck: expected a site folder or --kit, got neither"):
        sitecheck(None)
    with refused(f"--kit: {NO_KIT}"):
        sitecheck(None, kit=site)
