"""What a power failure leaves on a disk: a real file system, of which only what was synced is looked at again.

SIGKILL and the like, in ``test_killed_processes.py``, keep what a program has written; a power failure does not.
"""

import numpy as np
import pytest
from factories import CLASSES, make_site_folder
from federation_factories import small_world
from power_loss import power  # noqa: F401
from torch_factories import PlainMethod, PlainRound

from fedmend.basics import files
from fedmend.basics.files import whole_folder, write_text
from fedmend.basics.state import StateStore
from fedmend.errors import FedMendError
from fedmend.local.local_federation import LocalTransport, run_locally
from fedmend.method import Workflow
from fedmend.methods.baselines import FedAvgWorkflow
from fedmend.repairs import ledger
from fedmend.repairs.label_ledger import LabelLedger, Repairs
from fedmend.repairs.ledger import read_history
from fedmend.server.checkpoint import Checkpoint
from fedmend.site.config import SiteConfig

pytestmark = pytest.mark.slow


# ---- one file -------------------------------------------------------------------------------------------------------
def keep_text(disk, value):
    write_text(disk / "text", str(value))


def read_text(disk):
    return int((disk / "text").read_text())


def keep_state(disk, value):
    StateStore(disk / "run" / "site").save("state", value)


def read_state(disk):
    return StateStore(disk / "run" / "site").load("state")


def keep_folder(disk, value):
    with whole_folder(disk / f"store-{value}") as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "number").write_text(str(value))


def read_folder(disk):
    return max((int((folder / "sub" / "number").read_text()) for folder in disk.glob("store-?")), default=None)


def keep_checkpoint(disk, value):
    model = {"w": np.full(3, value, np.float32)}
    Checkpoint(disk / "run" / "server", "run-1", {}).save(value, model, Workflow.Memory(), "", marks={}, data={})


def read_checkpoint(disk):
    saved = Checkpoint(disk / "run" / "server", "run-1", {}).load()
    return saved and saved.done


def open_ledger(disk):
    path = disk / "run" / "site" / "ledger.sqlite"
    return LabelLedger(path, fingerprint="ab", images=list("wxyz"), classes=["a", "b"], site="site-1")


def keep_ledger(disk, value):
    repairs = Repairs(np.array([value]), np.array([1]), np.array([1]), np.array([0.5]))
    open_ledger(disk).record("rule", value, np.full((4, 2), -1, np.int8), repairs)


def read_ledger(disk):
    return max((entry.round_num for entry in open_ledger(disk).in_force()), default=None)


WAYS = {
    "text": (keep_text, read_text),
    "state": (keep_state, read_state),
    "folder": (keep_folder, read_folder),
    "checkpoint": (keep_checkpoint, read_checkpoint),
    "ledger": (keep_ledger, read_ledger),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_was_kept_is_there_after_a_power_failure(power, way):  # noqa: F811
    keep, read = WAYS[way]
    disk = power.disk("disk")
    for value in (1, 2, 3):
        keep(disk, value)
        assert read(power.cut(disk)) == value


@pytest.mark.parametrize("way", WAYS)
def test_without_the_syncs_the_last_one_is_lost_so_the_disk_shows_it(power, monkeypatch, way):  # noqa: F811
    keep, read = WAYS[way]
    disk, sync = power.disk("disk"), files.sync
    keep(disk, 1)
    monkeypatch.setattr(files, "sync", lambda path: None if path.is_dir() else sync(path))
    monkeypatch.setattr(ledger, "SYNCHRONOUS", "FULL")  # SQLite's default
    keep(disk, 2)
    assert read(power.cut(disk)) == 1


@pytest.mark.parametrize(("level", "lost"), [("EXTRA", False), ("FULL", True), ("OFF", True)])
def test_a_ledger_keeps_its_last_round_with_extra_alone(power, monkeypatch, level, lost):  # noqa: F811
    disk = power.disk("disk")
    keep_ledger(disk, 1)
    monkeypatch.setattr(ledger, "SYNCHRONOUS", level)
    keep_ledger(disk, 2)
    told = open_ledger(disk).mark()
    after = power.cut(disk)
    assert read_ledger(after) == (1 if lost else 2)
    if lost:  # it is noticed
        with pytest.raises(FedMendError, match="got a ledger without the latest"):
            open_ledger(after).check_mark(told)
    else:
        open_ledger(after).check_mark(told)


def fill(file):
    with open(file, "wb", buffering=0) as stream:
        while True:
            stream.write(bytes(2**12))


def test_a_full_disk_keeps_what_was_there(power):  # noqa: F811
    disk = power.disk("disk", megabytes=8)
    keep_checkpoint(disk, 1)
    keep_ledger(disk, 1)
    with pytest.raises(OSError, match="No space left"):
        fill(disk / "filler")
    with pytest.raises(OSError, match="No space left"):
        keep_checkpoint(disk, 2)
    with pytest.raises(FedMendError, match="site-1: label ledger: expected a file that can be opened and written"):
        keep_ledger(disk, 2)
    assert (read_checkpoint(disk), read_ledger(disk)) == (1, 1)
    (disk / "filler").unlink()
    keep_checkpoint(disk, 3)
    keep_ledger(disk, 3)
    assert (read_checkpoint(disk), read_ledger(disk)) == (3, 3)


# ---- a run ----------------------------------------------------------------------------------------------------------
class TaggingRound(PlainRound):
    """Sets a label in every round, and trains on all that are in force."""

    def __init__(self, *args):
        super().__init__(*args)
        site, chosen = self.site, np.array([self.task.round_num])
        repairs = Repairs(chosen, np.array([1]), np.array([1]), np.array([0.9]))
        site.ledger.record("rule", self.task.round_num, site.data.train.labels, repairs)
        self._labels = site.ledger.apply(site.data.train.labels)

    def loss(self, index):
        return super().loss(index) * float((self._labels[:, 1] == 1).sum())


class Tagging(PlainMethod):
    ROUND = TaggingRound


ROUNDS = 4
RUN = {"run_name": "run-1", "classes": CLASSES, "network": "tiny", "num_rounds": ROUNDS, "seed": 3}


@pytest.fixture
def run(tmp_path, power, monkeypatch):  # noqa: F811
    """Runs a job with server and sites on disks of their own; one may lose power."""
    labels = np.array([[1, 0, 1], [0, -1, 0], [1, 0, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0]], dtype=np.int8)
    for number in (1, 2):
        make_site_folder(tmp_path / "data" / f"site-{number}", labels, splits=("val", "test"))

    def play(name, disks, *, cut=None, **changes):
        """``cut``: its power fails when it has answered, or asked, for the last time in round 2; the run ends in round
        3."""
        left = dict(disks)

        def config(site):
            place = disks["server" if site == "server" else site]
            return SiteConfig(tmp_path / "data" / site, tmp_path / "cache", place, 1, threads=1)

        exchange = LocalTransport.exchange

        def cut_after(transport, question, receive, enough):
            now = (question.name, next(iter(question.tasks.values())).round_num)
            if cut and now == ("train", 3):
                raise FedMendError("the power failed")
            exchange(transport, question, receive, enough)
            if cut and now == ("train", 2):
                left[cut] = power.cut(disks[cut])

        with small_world(), monkeypatch.context() as patched:
            patched.setattr(LocalTransport, "exchange", cut_after)
            try:
                folder = run_locally(
                    workflow=FedAvgWorkflow(),
                    method=Tagging(),
                    run={**RUN, **changes},
                    site={"image_size": 32, "batch_size": 4, "learning_rate": 0.1},
                    sites=["site-1", "site-2"],
                    workspace=tmp_path / name,
                    config_of=config,
                    settings={},
                    threads=1,
                )
            except FedMendError as e:
                return str(e), left
        return (folder.parent / "app_server" / "FL_global_model.pt").read_bytes(), disks

    return play


def disks_of(power, name):  # noqa: F811
    return {who: power.disk(f"{name}-{who}") for who in ("server", "site-1", "site-2")}


def rows(disks, site):
    return [row for row in read_history(disks[site] / "run-1" / site / "ledger.sqlite") if row["in_force"]]


@pytest.mark.parametrize("who", ["server", "site-1"])
def test_a_run_whose_server_or_site_lost_power_goes_on_to_the_same_bytes(run, power, who):  # noqa: F811
    whole, there = run("whole", disks_of(power, "whole"))
    said, left = run("cut", disks_of(power, "cut"), cut=who)
    assert said == "the power failed"
    model, left = run("cut", left)
    assert model == whole
    for site in ("site-1", "site-2"):
        assert rows(left, site) == rows(there, site)
        assert len(rows(left, site)) == ROUNDS


def test_a_site_whose_disk_loses_what_it_said_to_have_kept_says_so(run, power, monkeypatch):  # noqa: F811
    """As on a disk that lies about syncs, or with an older copy of the ledger; before there were marks, the run went on
    with other labels."""
    whole, _ = run("whole", disks_of(power, "whole"))
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "SYNCHRONOUS", "OFF")
        _, left = run("cut", disks_of(power, "cut"), cut="site-1")
    said, _ = run("cut", left)
    assert said == (
        "census of round 0: expected valid results from 2 sites, got 1: site-1: label ledger: expected all repairs"
        " that this run has recorded, got a ledger without the latest (an older copy, or a new file); put the right one"
        ' back, or let the lead go on with this one by allow_changes=["ledgers"]'
    )
    model, _ = run("cut", left, allow_changes=["ledgers"])
    assert isinstance(model, bytes)
    assert model != whole
    assert [row["round"] for row in rows(left, "site-1")] == [3]  # nothing else had been synced
