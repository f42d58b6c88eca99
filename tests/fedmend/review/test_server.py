import re
import socket
import sys

import pytest
from factories import refused
from review_factories import make_desk

from fedmend.review.server import LOOPBACK, serve


class Enough(Exception):
    pass


def test_a_browser_may_follow_the_link_as_soon_as_it_is_shown(tmp_path):
    pytest.importorskip("uvicorn")
    shown = []

    def show(line):
        shown.append(line)
        if link := re.match(rf"http://{re.escape(LOOPBACK)}:(\d+)/\?token=\S{{32}}$", line):
            socket.create_connection((LOOPBACK, int(link[1])), timeout=5).close()
            raise Enough

    with pytest.raises(Enough):
        serve(make_desk(tmp_path, (0, 1, 1, 0, 0.9)), show=show)
    assert shown[0].startswith("run run-1, site-1: open this link in a browser on this machine")


def test_a_port_that_is_taken_is_one_sentence(tmp_path):
    pytest.importorskip("uvicorn")
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with refused(f"--port: expected a free port, {port} is taken or not allowed"):
            serve(make_desk(tmp_path, (0, 1, 1, 0, 0.9)), port=port)


def test_without_the_packages_of_the_page_the_sentence_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with refused("review: expected the package uvicorn (pip install 'fedmend[review]'), not found"):
        serve(make_desk(tmp_path, (0, 1, 1, 0, 0.9)))
