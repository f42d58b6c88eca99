import math
import time

import numpy as np
import pytest
from scipy import optimize, stats

from fedmend.site import accountants
from fedmend.site.accountants import Epsilon, epsilon_of

rdp = pytest.importorskip("opacus.accountants.analysis.rdp")
ORDERS = [1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64))  # opacus' own


def gaussian_epsilon(noise, steps, delta):
    """Exact epsilon of steps that take all patients, which are one Gaussian mechanism (Balle and Wang, ICML 2018)."""
    mu = steps**0.5 / noise

    def excess(epsilon):
        over, under = stats.norm.cdf(mu / 2 - epsilon / mu), stats.norm.cdf(-mu / 2 - epsilon / mu)
        return over - math.exp(epsilon) * under - delta

    return optimize.brentq(excess, 0, 100)


def deltas(parts, epsilon, mesh=2e-3, most=60.0):
    """Delta at this epsilon for steps of noise and rate, with a patient taken out and with one put in: the loss of each
    step is rounded to a grid and convolved, by no code of opacus."""
    grid = np.arange(-most, most, mesh)
    found = []
    for sign in (1, -1):
        density = np.ones(len(grid) // 2 + 1, complex)
        for noise, rate, steps in parts:
            x = np.linspace(-12 * noise, 1 + 12 * noise, 400_001)
            without, shifted = (stats.norm.pdf(x, centre, noise) for centre in (0, 1))
            mixed = (1 - rate) * without + rate * shifted
            loss = sign * (np.log1p(-rate + rate * np.exp((2 * x - 1) / (2 * noise**2))))
            mass = (mixed if sign == 1 else without) * (x[1] - x[0])
            place = np.rint(loss / mesh).astype(int) % len(grid)  # 0 stands first, as the transform wants it
            density *= np.fft.rfft(np.bincount(place, mass, len(grid))) ** steps
        total = np.fft.fftshift(np.fft.irfft(density, len(grid)))
        above = grid > epsilon
        found.append(float((total[above] * (1 - np.exp(epsilon - grid[above]))).sum()))
    return found


def test_rdp_of_steps_with_all_patients_is_that_of_the_gaussian_mechanism_by_hand():
    # Renyi divergence of order a: T a / (2 s^2); Canonne et al. 2020 turn it into epsilon.
    steps, noise, delta = 10, 2.0, 1e-3
    by_hand = min(
        steps * a / (2 * noise**2) + math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in ORDERS
    )
    assert epsilon_of([(noise, 1.0, steps)], delta).rdp == pytest.approx(by_hand, rel=1e-9)


def test_rdp_of_sampled_steps_is_what_opacus_says():
    total = rdp.compute_rdp(q=0.05, noise_multiplier=2.0, steps=100, orders=ORDERS)
    total = total + rdp.compute_rdp(q=0.2, noise_multiplier=1.5, steps=7, orders=ORDERS)
    expected, _ = rdp.get_privacy_spent(orders=ORDERS, rdp=total, delta=1e-3)
    assert epsilon_of([(2.0, 0.05, 100), (1.5, 0.2, 7)], 1e-3).rdp == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("noise", "steps", "delta"), [(2.0, 10, 1e-3), (1.0, 1, 1e-5), (8.0, 56, 1e-7)])
def test_prv_is_above_the_exact_epsilon_by_no_more_than_twice_its_error(noise, steps, delta):
    found, exact = epsilon_of([(noise, 1.0, steps)], delta), gaussian_epsilon(noise, steps, delta)
    assert exact < found.prv < exact + 2.1 * 0.01 * found.rdp
    assert found.value == found.prv < found.rdp


@pytest.mark.parametrize("parts", [[(1.0, 0.15, 56)], [(2.0, 0.05, 100), (1.5, 0.2, 7)]], ids=["one job", "two jobs"])
def test_prv_holds_whether_a_patient_is_taken_out_or_put_in(parts):
    delta = 1e-4
    found = epsilon_of(parts, delta).prv
    taken_out, put_in = deltas(parts, found)
    assert put_in < taken_out <= delta
    assert max(deltas(parts, found - 2.5 * 0.1)) > delta  # and hardly less would be too little


@pytest.mark.parametrize(
    ("spent", "delta"),
    [
        ([(0.1, 1.0, 1000)], 1e-4),  # 41 GB of grid
        ([(2.0, 0.1, 10)], 1e-12),
        ([(50.0, 0.001, 10**8)], 1e-5),
        ([(2.0, 0.1 / part, 1) for part in range(1, 13)], 1e-5),
    ],
    ids=["hardly any noise", "a tiny delta", "many steps", "many kinds of steps"],
)
def test_where_prv_would_take_long_or_its_digits_do_not_suffice_rdp_stands(spent, delta):
    found = epsilon_of(spent, delta)
    assert (found.prv, found.value) == (math.inf, found.rdp)
    assert str(found).endswith(" (RDP)")


def test_both_accountants_together_are_quick_at_the_largest_account_that_prv_is_asked_about():
    start = time.process_time()
    assert epsilon_of([(20.0, 0.01, accountants.MOST_STEPS)], 1e-5).prv < math.inf
    assert time.process_time() - start < 4


@pytest.mark.parametrize("answer", [math.nan, math.inf, -1.0, ValueError("means differ"), RuntimeError("no epsilon")])
def test_an_answer_of_prv_that_is_none_leaves_rdp(monkeypatch, answer):
    def said(*args, **kwargs):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("opacus.accountants.PRVAccountant.get_epsilon", said)
    assert epsilon_of([(2.0, 0.1, 10)], 1e-3).prv == math.inf


def test_words_say_whose_epsilon_it_is():
    assert str(Epsilon(9.031, 7.934)) == "7.93 (PRV; RDP 9.03)"
    assert str(Epsilon(9.031, 9.2)) == str(Epsilon(9.031)) == "9.03 (RDP)"


def test_the_logarithm_of_0_in_prv_of_a_step_with_all_patients_is_no_warning_in_any_thread():
    with np.errstate(divide="raise"):  # Python's filters of warnings are shared by threads
        assert epsilon_of([(1.0, 1.0, 1)], 1e-5).value < 5
