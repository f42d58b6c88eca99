import json
import math
import shutil
import sys

import pytest
from factories import refused

from fedmend.basics.checked import checked
from fedmend.site.accountants import Epsilon, epsilon_of
from fedmend.site.privacy import (
    FOLDER,
    MARKS,
    Account,
    OverBudget,
    Privacy,
    account_file,
    carry_over,
    default_delta,
    mark_file,
)

POLICY = Privacy(clip=1.0, noise_multiplier=2.0, delta=1e-3)
FIELDS = ["clip", "noise_multiplier", "delta", "max_epsilon"]
NOISE = ".noise_multiplier: expected a number at least 0.1, got"


def account(folder, privacy=POLICY, patients=50):
    return Account(folder, "site-1", privacy, patients)


def test_steps_of_several_jobs_add_up_in_the_file_which_also_says_what_they_cost_and_by_which_accountant(tmp_path):
    account(tmp_path).spend(0.05, 40)
    account(tmp_path).spend(0.05, 60)  # another job: the account is on the disk
    other = Privacy(clip=3.0, noise_multiplier=1.5, delta=1e-3)
    spent = [(2.0, 0.05, 100), (1.5, 0.2, 7)]
    expected = epsilon_of(spent, 1e-3)
    assert account(tmp_path, other).spend(0.2, 7) == account(tmp_path).epsilon() == expected
    content = json.loads((tmp_path / FOLDER / "site-1.json").read_text())
    assert len(content.pop("marks")) == 3
    assert content == {"spent": [list(part) for part in spent], "epsilon": str(expected), "delta": 1e-3}
    assert content["epsilon"].endswith(f"(PRV; RDP {expected.rdp:.3g})")


def test_what_the_server_learns_is_the_smaller_epsilon_and_that_of_rdp(tmp_path):
    own = account(tmp_path)
    found = own.spend(1.0, 10)
    told = {"epsilon": found.prv, "epsilon_rdp": found.rdp, "delta": 1e-3, "clip": 1.0, "noise_multiplier": 2.0}
    assert own.told(found) == told
    assert found.prv < found.rdp


def test_a_site_that_has_spent_nothing_has_epsilon_0(tmp_path):
    own = account(tmp_path)
    assert own.epsilon().value == 0
    assert str(own.epsilon()) == "0 (RDP)"


@pytest.mark.parametrize(("patients", "delta"), [(1, 1e-5), (1000, 1e-5), (20_000, 5e-7)])
def test_without_a_delta_the_chance_that_anybody_is_given_away_is_at_most_1_in_100(tmp_path, patients, delta):
    assert default_delta(patients) == pytest.approx(delta)
    assert account(tmp_path, Privacy(clip=1.0, noise_multiplier=1.0), patients).delta == default_delta(patients)
    assert default_delta(patients) * patients <= 0.0100001


def test_a_round_above_the_limit_is_refused_and_costs_nothing(tmp_path):
    limited = Privacy(clip=1.0, noise_multiplier=2.0, delta=1e-3, max_epsilon=5.0)
    before = account(tmp_path, limited).spend(1.0, 4)
    too_much = account(tmp_path, limited).epsilon(1.0, 40)
    with refused(
        "site-1: privacy: expected to stay within max_epsilon 5 over all jobs of this site, got"
        f" {too_much} with one more round; it trains no more until its policy changes"
    ):
        account(tmp_path, limited).spend(1.0, 40)
    assert account(tmp_path, limited).epsilon() == before


def test_a_round_that_rdp_alone_would_refuse_is_allowed_where_prv_shows_that_it_costs_less(tmp_path):
    cost = account(tmp_path).epsilon(1.0, 10)
    between = Privacy(clip=1.0, noise_multiplier=2.0, delta=1e-3, max_epsilon=(cost.prv + cost.rdp) / 2)
    assert account(tmp_path, between).spend(1.0, 10) == cost


def test_asking_what_a_job_would_cost_spends_nothing(tmp_path):
    own = account(tmp_path)
    assert own.epsilon(1.0, 10).value > 0
    assert own.epsilon().value == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"spent": [[1, 2]]}',
        '{"spent": [[1.0, 0.0, 3]]}',
        '{"spent": "no"}',
        f'{{"spent": [[1{"0" * 400}, 1, 3]]}}',
        '{"spent": [[NaN, 1, 3]]}',
    ],
)
def test_a_damaged_account_stops_the_site_instead_of_counting_as_nothing(tmp_path, text):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "site-1.json").write_text(text)
    with refused(
        "site-1: state_dir, account of the privacy spent: expected what FedMend wrote, got a damaged file; restore it"
        " from a backup"
    ):
        account(tmp_path)


OLDER = (
    "site-1: state_dir, account of the privacy spent: expected the one that this site wrote last, got an older copy or"
    " none, which has forgotten what was spent since; put the newest one back (fedmend restore takes the larger"
    " numbers), or go on with this one by deleting .privacy_marks"
)


def test_an_older_copy_of_the_account_or_none_is_noticed_and_spends_nothing(tmp_path):
    file = account_file(tmp_path, "site-1")
    account(tmp_path).spend(0.05, 40)
    older = file.read_text()
    running = account(tmp_path)
    running.spend(0.05, 60)
    newer = file.read_text()
    for put_back in (lambda: file.write_text(older), file.unlink):
        put_back()
        with refused(OLDER):
            account(tmp_path)
        with refused(OLDER):
            running.spend(0.05, 1)
    file.write_text(newer)
    account(tmp_path).spend(0.05, 1)
    assert json.loads(file.read_text())["spent"] == [[2.0, 0.05, 101]]


def test_a_person_can_go_on_with_an_older_account(tmp_path):
    account(tmp_path).spend(0.05, 40)
    account_file(tmp_path, "site-1").unlink()
    shutil.rmtree(tmp_path / MARKS)
    assert account(tmp_path).epsilon().value == 0


def test_a_crash_between_account_and_mark_is_no_older_account(tmp_path):
    account(tmp_path).spend(0.05, 40)
    mark = mark_file(tmp_path, "site-1").read_text()
    account(tmp_path).spend(0.05, 40)
    mark_file(tmp_path, "site-1").write_text(mark)
    account(tmp_path).spend(0.05, 40)
    assert json.loads(account_file(tmp_path, "site-1").read_text())["spent"] == [[2.0, 0.05, 120]]


def test_a_site_without_opacus_says_so_before_it_trains(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with refused(
        "site-1: local/fedmend.json, field privacy: expected the package opacus (pip install 'fedmend[privacy]'), not"
        " found"
    ):
        account(tmp_path)


def read(raw):
    return checked(Privacy, raw, "site-1: local/fedmend.json", inside="privacy")


def test_the_policy_of_a_site_is_read_from_its_settings():
    read_policy = read({"clip": 1, "noise_multiplier": 1.1})
    assert read_policy == Privacy(clip=1.0, noise_multiplier=1.1)
    assert type(read_policy.clip) is float
    full = {"clip": 0.5, "noise_multiplier": 2, "delta": 1e-5, "max_epsilon": 8}
    assert read(full) == Privacy(clip=0.5, noise_multiplier=2.0, delta=1e-5, max_epsilon=8.0)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (7, ": expected a JSON object, got another int"),
        ({"clip": 1}, f"{NOISE} nothing"),
        ({"clip": 1, "noise_multiplier": 1, "sigma": 2}, f": expected the fields {FIELDS}, got also ['sigma']"),
        ({"clip": 0, "noise_multiplier": 1}, ".clip: expected a number above 0, got another int"),
        ({"clip": 10**400, "noise_multiplier": 1}, ".clip: expected a number above 0, got another int"),
        ({"clip": math.nan, "noise_multiplier": 1}, ".clip: expected a number above 0, got another float"),
        ({"clip": math.inf, "noise_multiplier": 1}, ".clip: expected a number above 0, got another float"),
        ({"clip": 1, "noise_multiplier": 0.01}, f"{NOISE} another float"),
        ({"clip": 1, "noise_multiplier": True}, f"{NOISE} another bool"),
        (
            {"clip": 1, "noise_multiplier": 1, "delta": 1},
            ".delta: expected a number above 0 and below 1, got another int",
        ),
        (
            {"clip": 1, "noise_multiplier": 1, "max_epsilon": "8"},
            ".max_epsilon: expected a number above 0, got another str",
        ),
    ],
)
def test_a_policy_that_promises_nothing_is_refused(raw, words):
    with refused(f"site-1: local/fedmend.json, field privacy{words}"):
        read(raw)


def test_what_is_spent_may_reach_the_limit_but_not_pass_it(tmp_path):
    own = account(tmp_path, Privacy(clip=1.0, noise_multiplier=2.0, delta=1e-3, max_epsilon=8.0))
    own.check(Epsilon(8.0))
    with pytest.raises(OverBudget):
        own.check(Epsilon(8.0001))


def test_an_account_that_was_carried_over_is_not_added_again_unless_more_was_spent(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    account(old).spend(0.05, 40)
    account(new).spend(0.05, 2)

    def steps():
        carry_over(old, new, "site-1")
        return [json.loads(account_file(folder, "site-1").read_text())["spent"] for folder in (old, new)]

    assert steps() == steps() == [[[2.0, 0.05, 42]]] * 2
