"""What a site promises its patients about differential privacy, and the account of what it has spent.

The promise, which each site makes for itself (``privacy`` in its ``fedmend.json``): whatever the server sends, and
whatever it works out from all that the site has ever answered with this setting, it learns hardly more about any one
patient than if that patient had not taken part: (epsilon, delta)-differential privacy under adding or removing all
training images of one patient.

Why DP-SGD at the site (Abadi et al., CCS 2016) and not one clipped and noised update per site (DP-FedAvg, McMahan et
al., ICLR 2018): there the unit is the site, and noise that hides one site of five leaves no model. Here the unit is a
patient; where the manifest has no patients, an image. The gradient of each patient is clipped, noise is added to the
sum of every step before the optimiser sees it (:mod:`fedmend.learning.patient_steps`), so the update that leaves, its
history and any average of it are covered. Everything else that a site computes from patients stays there.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmend.basics.checked import number, taking
from fedmend.basics.files import OWNER, locked, make_folder, write_text
from fedmend.errors import FedMendError, not_installed
from fedmend.site.accountants import Epsilon, Spent, epsilon_of

# In state_dir, beside the folders of runs, whose names start with a letter or number: the account with the marks of all
# that was ever spent, and apart from it the latest mark, without which an older copy of the account would pass.
FOLDER, MARKS = ".privacy", ".privacy_marks"
SMALLEST_NOISE = 0.1  # less protects nobody, and its epsilon may not be a finite number
LARGEST = 1e9
PATIENCE = 30.0  # seconds until another job of this site has written the account
ABOVE_0 = number("above 0", lambda value: 0 < value < LARGEST)
LARGEST_DELTA, SHARE_OF_A_PATIENT = 1e-5, 100  # the default of delta: see default_delta
# What a site's answer says of its privacy: ``epsilon`` is the smaller one of both accountants.
TOLD = ("epsilon", "epsilon_rdp", "delta", "clip", "noise_multiplier")


class OverBudget(FedMendError):
    """The site's policy allows no more steps."""


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The site's policy.

    Attributes:
        clip: largest L2 norm of the gradient of one patient.
        noise_multiplier: standard deviation of the noise on the sum of gradients, in units of ``clip``.
        delta: chance that the promise fails; 0: see :func:`default_delta`.
        max_epsilon: what all jobs together may spend at this site; 0: no limit.
    """

    clip: float = taking(ABOVE_0)
    noise_multiplier: float = taking(
        number(f"at least {SMALLEST_NOISE}", lambda value: SMALLEST_NOISE <= value < LARGEST)
    )
    delta: float = taking(number("above 0 and below 1", lambda value: 0 < value < 1), default=0.0)
    max_epsilon: float = taking(ABOVE_0, default=0.0)


class Account:
    """What a site has spent over all rounds of all jobs, on its disk; no job can reset it.

    Args:
        state_dir: of the site.
        site: its name.
        privacy: its policy.
        patients: P, training patients of the job at hand; fixes the default of delta.

    Raises:
        FedMendError: the package opacus is missing, or the account cannot be read or is an older copy.
    """

    def __init__(self, state_dir: Path, site: str, privacy: Privacy, patients: int):
        try:
            import opacus.accountants  # noqa: F401
        except ImportError:
            lacking = not_installed("opacus", "privacy")
            raise FedMendError(f"{site}: local/fedmend.json, field privacy: {lacking}") from None
        self._state_dir, self._file = state_dir, account_file(state_dir, site)
        self._site, self._privacy = site, privacy
        self.delta = privacy.delta or default_delta(patients)
        self._read()

    def epsilon(self, rate: float = 0.0, steps: int = 0) -> Epsilon:
        """What has been spent and, with ``steps`` at a sampling ``rate``, what it would be after them."""
        return epsilon_of(_merged([*self._read(), (self._privacy.noise_multiplier, rate, steps)]), self.delta)

    def spend(self, rate: float, steps: int) -> Epsilon:
        """Writes ``steps`` at a sampling ``rate`` down before they are made, so that no crash and no repeated round is
        for free; returns epsilon of all that has been spent.

        Raises:
            FedMendError: another process holds or has damaged the account, or it is an older copy.
            OverBudget: more than ``max_epsilon``; nothing is spent then.
        """
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with locked(self._file.with_suffix(".lock"), patience=PATIENCE) as alone:
            if not alone:
                raise FedMendError(f"{self._site}: privacy: expected to write the account of this site, got no lock")
            content = _content(self._state_dir, self._site)
            after = _merged([*_spent(content, self._site), (self._privacy.noise_multiplier, rate, steps)])
            self.check(epsilon := epsilon_of(after, self.delta))
            said = {"epsilon": str(epsilon), "delta": self.delta}  # for people; what counts is what was spent
            write_account(self._state_dir, self._site, after, content["marks"], **said)
        return epsilon

    def check(self, epsilon: Epsilon) -> None:
        """Refuses more than the policy allows.

        Raises:
            OverBudget: says the limit and what would be spent.
        """
        if 0 < self._privacy.max_epsilon < epsilon.value:
            raise OverBudget(
                f"{self._site}: privacy: expected to stay within max_epsilon {self._privacy.max_epsilon:g} over all"
                f" jobs of this site, got {epsilon} with one more round; it trains no more until its policy changes"
            )

    def told(self, epsilon: Epsilon) -> dict[str, float]:
        """What the server learns about the promise."""
        values = (epsilon.value, epsilon.rdp, self.delta, self._privacy.clip, self._privacy.noise_multiplier)
        return dict(zip(TOLD, values, strict=True))

    def _read(self) -> list[Spent]:
        return _spent(_content(self._state_dir, self._site), self._site)


def default_delta(patients: int) -> float:
    """The largest chance that the promise may fail at a site that does not say one: 0.00001, and less where there are
    more than 1,000 patients.

    Something that picks one of P patients and gives away all of that one keeps a promise with epsilon 0 and delta 1/P.
    At 1 / (100 P) the chance that it gives away anybody is at most 1 in 100.
    """
    return min(LARGEST_DELTA, 1 / (SHARE_OF_A_PATIENT * patients))


def account_file(state_dir: Path, site: str) -> Path:
    """Where the account of a ``site`` is in its ``state_dir``."""
    return state_dir / FOLDER / f"{site}.json"


def write_account(state_dir: Path, site: str, spent: Sequence[Spent], marks: Sequence[str], **more: object) -> str:
    """Writes an account with a new mark, and the mark beside it, in this order: a crash between them leaves a mark that
    the account knows.

    Args:
        state_dir: of the site.
        site: its name.
        spent: what has been spent.
        marks: of the accounts that it was made from.
        more: what else stands in the account.

    Returns:
        The text of the account.
    """
    mark = secrets.token_hex(8)
    text = json.dumps({"spent": spent, "marks": [*marks, mark], **more}) + "\n"
    for file, content in ((account_file(state_dir, site), text), (mark_file(state_dir, site), mark)):
        make_folder(file.parent)
        write_text(file, content, mode=OWNER)
    return text


def mark_file(state_dir: Path, site: str) -> Path:
    """Where the latest mark of the account of a ``site`` is."""
    return state_dir / MARKS / site


def carry_over(old: Path, new: Path, site: str) -> None:
    """Adds up the accounts of a site in two folders for state, and writes the sum into both. So neither forgets what
    the other has spent, and a call that was stopped between the two counts it twice rather than not at all.

    Args:
        old: the one that is left; without an account there, nothing is written.
        new: the one that the site goes on in.
        site: its name.

    Raises:
        FedMendError: an account is damaged or an older copy.
    """
    here, there = _content(old, site), _content(new, site)
    carried = "carried_over" in here and here == there  # by an earlier call, and nothing was spent since
    if not account_file(old, site).is_file() or carried:
        return
    total, marks = _merged([*_spent(here, site), *_spent(there, site)]), [*here["marks"], *there["marks"]]
    text = write_account(new, site, total, marks, carried_over=secrets.token_hex(8))
    write_text(account_file(old, site), text, mode=OWNER)


def _content(state_dir: Path, site: str) -> dict:
    """The account; refuses a damaged one, and one that lacks the latest mark. The mark is read first: what another
    process spends meanwhile is in the account before it is in the mark."""
    file, mark = account_file(state_dir, site), mark_file(state_dir, site)
    known = mark.read_text(encoding="utf-8") if mark.is_file() else ""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        content = {"spent": []}
    except ValueError:
        content = None
    if not isinstance(content, dict) or not isinstance(content.setdefault("marks", []), list):
        raise _damaged(site)
    if known and known not in content["marks"]:
        raise FedMendError(
            f"{site}: state_dir, account of the privacy spent: expected the one that this site wrote last, got an older"
            " copy or none, which has forgotten what was spent since; put the newest one back (fedmend restore takes"
            f" the larger numbers), or go on with this one by deleting {MARKS}"
        )
    return content


def _spent(content: Mapping, site: str) -> list[Spent]:
    try:
        spent = [(float(noise), float(rate), int(steps)) for noise, rate, steps in content["spent"]]
        if not all(0 < noise < LARGEST and 0 < rate <= 1 and steps > 0 for noise, rate, steps in spent):
            raise ValueError
    except (ValueError, TypeError, KeyError, OverflowError):
        raise _damaged(site) from None
    return spent


def _damaged(site: str) -> FedMendError:
    return FedMendError(
        f"{site}: state_dir, account of the privacy spent: expected what FedMend wrote, got a damaged file; restore it"
        " from a backup"
    )


def _merged(spent: list[Spent]) -> list[Spent]:
    """One entry for all steps of the same noise and rate: their order does not matter."""
    total: dict[tuple[float, float], int] = {}
    for noise, rate, steps in spent:
        total[noise, rate] = total.get((noise, rate), 0) + steps
    return [(noise, rate, steps) for (noise, rate), steps in total.items()]
