"""What goes to which log."""

import json
import logging

from nvflare.fuel.utils.log_utils import BaseFormatter, JsonFormatter

from fl_components.console import PICTURES, last_error, log_picture


def test_a_picture_goes_to_the_log_that_its_submitter_may_read_and_to_no_other(tmp_path, monkeypatch):
    handlers = []
    for name, formatter in (("log.json", JsonFormatter()), ("log.txt", BaseFormatter()), ("console", None)):
        handler = logging.FileHandler(tmp_path / name)
        handler.setFormatter(formatter)
        handlers.append(handler)
    monkeypatch.setattr(logging.getLogger(), "handlers", handlers)
    picture = {"state": "runs", "reason": "[identity=x]: é"}
    log_picture(picture)
    for handler in handlers:
        handler.close()
    entry = json.loads((tmp_path / "log.json").read_text())
    assert (entry["fullName"], json.loads(entry["message"])) == (PICTURES, picture)
    assert [(tmp_path / name).read_text() for name in ("log.txt", "console")] == ["", ""]


def test_of_a_process_that_died_the_error_is_said_and_not_that_a_traceback_follows(tmp_path):
    lines = ["Execute exception: OSError: disk", "Traceback (most recent call last):"]
    log = "".join(f"2026-11-26 05:46:43,213 - MPM - ERROR - {line}\n" for line in lines)
    (tmp_path / "log.txt").write_text(log + '  File "client_train.py", line 125, in main\n')
    assert last_error(tmp_path / "log.txt") == "Execute exception: OSError: disk"


def test_a_sentence_of_ours_is_the_reason_where_flares_own_error_follows_it(tmp_path):
    lines = [
        "2026-11-29 - Simulator - ERROR - FL server execution exception: ConfigError: Error processing",
        "Traceback (most recent call last):",
        "fedmend.errors.FedMendError: server: expected the package datadog, not found",
        "nvflare.fuel.common.excepts.ConfigError: Error processing",
        "2026-11-29 - Simulator - ERROR - Simulator run error: RuntimeError: Could not start the Server App.",
    ]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    assert last_error(tmp_path / "log.txt") == "server: expected the package datadog, not found"
