"""What a power failure leaves on a disk: a real file system, of which only what was synced is looked at again."""

import numpy as np
import pytest
from power_loss import power  # noqa: F401

from fedmend.checkpoint import Checkpoint
from fedmend.files import whole_folder, write_text
from fedmend.repairs.label_ledger import LabelLedger, Repairs
from fedmend.state import StateStore

pytestmark = pytest.mark.slow


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
    return max(int((folder / "sub" / "number").read_text()) for folder in disk.glob("store-?"))


def keep_checkpoint(disk, value):
    checkpoint = Checkpoint(disk / "run" / "server", "run-1", {})
    checkpoint.save(value, {"w": np.ones(3, np.float32)}, files_memory(), "", finished=False)


def files_memory():
    from fedmend.method import Workflow

    return Workflow.Memory()


def read_checkpoint(disk):
    return Checkpoint(disk / "run" / "server", "run-1", {}).load().done


def open_ledger(disk):
    path = disk / "run" / "site" / "ledger.sqlite"
    return LabelLedger(path, fingerprint="ab", images=list("wxyz"), classes=["a", "b"], site="site-1")


def keep_ledger(disk, value):
    repairs = Repairs(np.array([value]), np.array([1]), np.array([1]), np.array([0.5]))
    open_ledger(disk).record("rule", value, np.full((4, 2), -1, np.int8), repairs)


def read_ledger(disk):
    return max(round_num for *_, round_num in open_ledger(disk).in_force())


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
