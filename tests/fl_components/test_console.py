"""What goes to which log."""

import json
import logging

from nvflare.fuel.utils.log_utils import BaseFormatter, JsonFormatter

from fl_components.console import PICTURES, log_picture


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
