"""What a trained model must be like before it may enter the average."""

import numpy as np
import pytest
import torch
from factories import refused
from federation_factories import Run, Script, failing, in_rounds, plain_answers, same_models
from torch_factories import TinyNetwork

from fedmend.learning.weights import check_range
from fedmend.messages import CENSUS, COLLECT, TRAIN
from fedmend.methods.baselines import FedAvgWorkflow
from fedmend.server.federation import RunSettings
from fedmend.server.safety_net import (
    SafetyNet,
    clipped,
    head_outliers,
    least_variances,
    outliers,
    suspect,
    update_norms,
)

THREE = {f"site-{i}": [1, 1] for i in (1, 2, 3)}
TWO = {f"site-{i}": [1, 1] for i in (1, 2)}
SENT = {
    "conv.weight": np.zeros((2, 2), np.float32),
    "norm.running_mean": np.array([3, 4], np.float32),
    "norm.running_var": np.array([0, 12], np.float32),
    "bias": np.array([6, 8], np.float32),
}


def moved(**steps):
    """``SENT`` with these numbers added; ``_`` stands for ``.``."""
    changes = {name.replace("_", ".", 1): step for name, step in steps.items()}
    return {name: value + np.float32(changes.get(name, 0)) for name, value in SENT.items()}


# ---- pure functions -------------------------------------------------------------------------------------------------


def test_a_variance_below_zero_is_out_of_range_and_nothing_else_is():
    check_range("norm.running_var", np.array([0.0, 1e9]), "here")
    check_range("norm.running_mean", np.array([-1.0]), "here")
    check_range("running_var.bias", np.array([-1.0]), "here")
    with refused("here: expected numbers >= 0, got smaller ones"):
        check_range("norm.running_var", np.array([1.0, -1e-30]), "here")


def test_the_norm_of_an_update_is_taken_over_parameters_and_statistics_apart():
    model = moved(conv_weight=3, bias=4, norm_running_mean=1, norm_running_var=-7)
    # 4 weights by 3 and 2 biases by 4; 2 means by 1 and 2 variances by -7
    assert update_norms(model, SENT) == {"parameters": pytest.approx(68**0.5), "statistics": pytest.approx(10.0)}


def test_the_norm_of_a_huge_update_does_not_overflow():
    assert update_norms(moved(bias=1e30), SENT)["parameters"] == pytest.approx(2**0.5 * 1e30)


def norms(*numbers, statistics=1.0):
    return {f"site-{i}": {"parameters": n, "statistics": statistics} for i, n in enumerate(numbers, 1)}


@pytest.mark.parametrize(
    ("numbers", "far"),
    [
        ((1, 2, 20), []),  # 10 times the median of 2
        ((1, 2, 20.1), ["site-3"]),
        ((1e9, 2, 3, 4, 1e9), ["site-1", "site-5"]),
        ((1, 2, 2, 1e9), ["site-4"]),  # four sites: the lower 2 of the two in the middle
        ((1, 1e9, 1e9, 1e9), []),  # three of four are the majority
    ],
)
def test_an_update_is_measured_by_the_median_of_the_round(numbers, far):
    assert sorted(outliers(norms(*numbers), SENT, 10)) == far


def test_the_sentence_says_of_which_part_by_how_much_and_which_setting_decides():
    assert outliers(norms(1, 2, 40), SENT, 10) == {
        "site-3": "update of the parameters: expected at most 10 times the median of the round (max_update_factor),"
        " got 20 times"
    }
    far = {**norms(1, 1, 1), "site-2": {"parameters": 1.0, "statistics": 3e12}}
    assert outliers(far, SENT, 2.5) == {
        "site-2": "update of the statistics: expected at most 2.5 times the median of the round (max_update_factor),"
        " got 3e+12 times"
    }


def test_two_sites_are_measured_by_the_model_that_they_were_sent():
    # The parameters of SENT have norm 10 (biases 6 and 8), its statistics 13 (3, 4 and 12).
    assert outliers(norms(1e-9, 100, statistics=130), SENT, 10) == {}
    assert outliers(norms(1e-9, 101), SENT, 10) == {
        "site-2": "update of the parameters: expected at most 10 times the norm of the global model"
        " (max_update_factor), got 10.1 times"
    }


def test_where_most_sites_have_not_moved_at_all_the_model_is_the_measure_too():
    assert outliers(norms(0, 0, 5), SENT, 10) == {}
    assert list(outliers(norms(0, 0, 101), SENT, 10)) == ["site-3"]


def solved(*weights, bias=0.0, counts=(9, 9)):
    """Heads of two classes whose rows have these numbers in the first of two features."""
    rows = {f"site-{i}": np.float32([[own, 0], [own, 0]]) for i, own in enumerate(weights, 1)}
    more = {"head_biases": np.float32([0, bias]), "head_counts": np.array(counts)}
    return {site: {"head_weights": own, **more} for site, own in rows.items()}


def test_a_solved_classifier_is_measured_by_the_median_of_the_sites():
    assert head_outliers(solved(1, 2, 20), 10) == {}
    assert head_outliers(solved(1, 2, 40), 10) == {
        "site-3": "report field head_weights: expected at most 10 times the median of the sites (max_update_factor),"
        " got 20 times"
    }
    assert head_outliers(solved(1, 40), 10) == {}  # no majority
    far = solved(1, 2, 3) | {"site-4": solved(1, bias=300)["site-1"]}
    # root mean square of 0 and 300 is 212; biases about 0 are measured by 10
    assert head_outliers(far, 10) == {
        "site-4": "report field head_biases: expected at most 10 times the median of the sites (max_update_factor),"
        " got 21.2 times"
    }
    honest = {site: solved(1, bias=bias)["site-1"] for site, bias in (("a", 0.04), ("b", 1), ("c", 11.7))}
    assert head_outliers(honest, 10) == {}


def test_rows_without_samples_do_not_measure_a_classifier():
    some = solved(1, 1, 1)
    some["site-3"] = {
        **some["site-3"],
        "head_weights": np.float32([[10.5, 0], [0, 0]]),
        "head_counts": np.array([4, 0]),
    }
    assert list(head_outliers(some, 10)) == ["site-3"]
    some["site-3"]["head_counts"] = np.array([0, 0])
    assert head_outliers(some, 10) == {}


def variances(*numbers):
    return {f"site-{i}": {"norm.running_var": np.float32([own, 1])} for i, own in enumerate(numbers, 1)}


@pytest.mark.parametrize(
    ("numbers", "least"),
    [
        ((1, 1, 0), 9e-5),  # 1e-4 times 1, without the 1e-5 that BatchNorm adds
        ((3, 2, 1, 0), 9e-5),  # of the lower median; the model that was sent had 1
        ((1, 0, 0), 0),  # a channel that most sites do not excite
        ((1, 1, 0, 0), 0),  # nor half of them
        ((1, 0), 9e-5),
        ((0, 0), 0),
        ((0,), 0),
    ],
)
def test_a_variance_that_vanishes_at_one_site_alone_has_a_least_one(numbers, least):
    found = least_variances(variances(*numbers), {"norm.running_var": np.float32([1, 1])})["norm.running_var"]
    np.testing.assert_allclose(found, [least, 9e-5], rtol=1e-3)


def test_a_channel_that_was_dead_before_has_nothing_to_lose():
    assert least_variances(variances(1, 1, 0), {"norm.running_var": np.float32([0, 1])})["norm.running_var"][0] == 0


def test_a_site_with_a_channel_that_its_images_do_not_excite_stays_and_its_variance_is_raised(tmp_path, caplog):
    """As of an honest site whose network has a ReLU that is never reached there: 0.9 ** 100 of the variance is left."""
    run = play(tmp_path, poisoned(norm_running_var=0), num_rounds=2)
    assert run.stopped == ""
    assert run.decisions("refused") == []
    ((round_num, raised),) = run.decisions("variances_raised")
    assert (round_num, raised["site"]) == (1, "site-3")
    assert raised["channels"] > 0
    assert "site-3: result of round 1: " in caplog.text


def test_the_average_of_a_site_alone_has_no_variance_that_vanished(tmp_path):
    with SafetyNet(SENT, TinyNetwork(2), tmp_path / "round", factor=10, clip=0) as net:
        for site, variance in (("a", 12), ("b", 12), ("c", 0)):
            net.put(site, {**SENT, "norm.running_var": np.float32([0, variance])})
        assert net.raise_variances("abc") == {"c": 1}
        np.testing.assert_allclose(net.take("c")["norm.running_var"], [0, 1.191e-3], rtol=1e-3)
        assert net.take("a")["norm.running_var"].tolist() == [0, 12]
        assert net.raise_variances("ab") == {}
    with SafetyNet(SENT, TinyNetwork(2), tmp_path / "any", factor=0, clip=0) as net:  # no guard is wanted
        for site, variance in (("a", 12), ("b", 12), ("c", 0)):
            net.put(site, {**SENT, "norm.running_var": np.float32([0, variance])})
        assert net.raise_variances("abc") == {}
        assert net.take("c")["norm.running_var"].tolist() == [0, 0]


def test_the_suspect_is_the_site_that_changed_a_tensor_of_the_average_most():
    peaks = {"a": {"w": 1.0, "b": 1.0}, "b": {"w": 1.0, "b": 1.0}, "c": {"w": 1.0, "b": 6.0}}
    sent = {"w": np.float32([2]), "b": np.float32([-4])}
    assert suspect(peaks, {"a": 0.25, "b": 0.25, "c": 0.5}, sent) == (12.0, "c")  # 6 times 0.5 by 0.25
    assert suspect(peaks, {"a": 0.5, "b": 0.5, "c": 0.0}, sent) == (1.0, "b")  # c has no part in it
    assert suspect({k: peaks[k] for k in "ac"}, {"a": 0.5, "c": 0.5}, sent) == (0.75, "c")  # 3 by the 4 that was sent


def test_clipping_scales_an_update_down_to_the_given_norm_and_the_statistics_with_it():
    model = moved(bias=6, conv_weight=8, norm_running_var=20)
    norm = (2 * 36 + 4 * 64) ** 0.5
    short = clipped(model, SENT, norm / 4)
    np.testing.assert_allclose(short["bias"], [7.5, 9.5])
    np.testing.assert_allclose(short["conv.weight"], np.full((2, 2), 2.0))
    np.testing.assert_allclose(short["norm.running_var"], [5, 17])
    assert {value.dtype for value in short.values()} == {np.dtype(np.float32)}
    assert update_norms(short, SENT)["parameters"] == pytest.approx(norm / 4)


def test_a_short_update_is_not_touched_by_clipping():
    model = moved(bias=3, conv_weight=4, norm_running_var=1e6)
    assert clipped(model, SENT, 100) is model


@pytest.mark.parametrize("wrong", [{"max_update_factor": 0.5}, {"max_update_factor": -1}, {"clip_update": -1}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="expected max_update_factor 0 or >= 1 and clip_update >= 0"):
        RunSettings(run_name="r", classes=["a"], network="tiny", num_rounds=1, **wrong)


# ---- models that wait -----------------------------------------------------------------------------------------------


def test_models_come_back_from_the_disk_with_the_same_bits_and_leave_nothing_there(tmp_path):
    rng = np.random.default_rng(0)
    models = {site: {k: rng.standard_normal(v.shape, np.float32) for k, v in SENT.items()} for site in "ba"}
    (tmp_path / "round").mkdir()
    (tmp_path / "round" / "left.npy").touch()  # by a server that was killed
    with SafetyNet(SENT, TinyNetwork(2), tmp_path / "round", factor=0, clip=0) as net:
        for site, model in models.items():
            net.put(site, model)
        assert len(list((tmp_path / "round").iterdir())) == 2
        assert all(same_models(net.take(site), model) for site, model in models.items())
    assert list(tmp_path.iterdir()) == []


# ---- whole rounds ---------------------------------------------------------------------------------------------------


def play(folder, answer, sites=THREE, *, step=None, **options):
    return Run(folder, FedAvgWorkflow(), list(sites), answer or plain_answers(sites, step=step), **options)


def poisoned(sites=THREE, *, at=1, **changes):
    """Sites of which the last one changes tensors of its trained model in one round."""
    plain, rogue = plain_answers(sites), list(sites)[-1]

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if (site, question, task.round_num) == (rogue, TRAIN, at):
            for name, value in changes.items():
                tensor = result.weights[name.replace("_", ".", 1)]
                tensor[...] = value
        return result

    return answer


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm_running_var": -1e12}, "weights norm.running_var: expected numbers >= 0, got smaller ones"),
        ({"norm_running_var": -1e-6}, "weights norm.running_var: expected numbers >= 0, got smaller ones"),
        ({"norm_running_var": 9e11}, "update of the statistics: expected at most 10 times the median of the round"),
        ({"norm_running_mean": -9e11}, "update of the statistics: expected at most 10 times the median of the round"),
        ({"classifier_weight": 9e11}, "update of the parameters: expected at most 10 times the median of the round"),
    ],
    ids=lambda value: "=".join(map(str, *value.items())) if isinstance(value, dict) else "",
)
def test_one_finite_result_cannot_ruin_the_model_and_its_site_is_named(tmp_path, changes, words):
    run = play(tmp_path, poisoned(**changes), min_sites=2)
    assert run.stopped == ""
    ((round_num, refusal),) = run.decisions("refused")
    assert (round_num, refusal["site"]) == (1, "site-3")
    assert refusal["reason"].startswith(f"site-3: result of round 1, {words}")
    assert run.moved() == pytest.approx([3, 3])
    assert all(np.abs(value).max() < 10 for value in run.model.values())


def test_with_two_sites_a_poisoned_tensor_is_refused_too(tmp_path):
    run = play(tmp_path, poisoned(TWO, norm_running_var=9e11), TWO)
    assert "site-2: result of round 1, update of the statistics: expected at most 10 times the norm" in run.stopped


def test_the_comparison_with_the_other_sites_can_be_switched_off(tmp_path):
    run = play(tmp_path, None, step={"site-1": 1, "site-2": 1, "site-3": 1000}, max_update_factor=0, num_rounds=1)
    assert run.stopped == ""
    assert run.moved() == pytest.approx([334, 334])


def test_a_site_that_boasts_of_its_samples_has_at_most_half_of_the_average_and_is_named(tmp_path, caplog):
    samples = {"site-1": 10, "site-2": 30, "site-3": 10**8}
    answer = plain_answers(THREE, samples=samples, step={"site-1": 1, "site-2": 1, "site-3": 3})
    run = play(tmp_path, answer, num_rounds=2)
    assert run.moved() == pytest.approx([4, 4])  # twice (1 + 3) / 2
    assert run.decisions("capped") == [(0, {"site": "site-3", "samples": 10**8, "counted": 40})]
    assert "site-3: 100000000 samples count as 40 in the average, at most 0.5 of all (max_site_share)" in caplog.text
    free = play(tmp_path / "free", answer, num_rounds=2, max_site_share=1)
    assert free.moved() == pytest.approx([6, 6], rel=1e-5)
    assert free.decisions("capped") == []


@pytest.mark.parametrize("wrong", [0, 0.49, 1.01])
def test_a_share_that_could_bind_two_sites_at_once_is_refused(wrong):
    with pytest.raises(ValueError, match=r"expected max_site_share from 0\.5 to 1, got "):
        RunSettings(run_name="r", classes=["a"], network="tiny", num_rounds=1, max_site_share=wrong)


def test_updates_are_clipped_before_they_are_averaged(tmp_path):
    # TinyNetwork for 2 classes: 24 + 26 parameters, so that a step of 1 has norm sqrt(50).
    run = play(tmp_path, None, step={"site-1": 1, "site-2": 1, "site-3": 4}, clip_update=2 * 50**0.5, num_rounds=1)
    assert run.stopped == ""
    assert run.moved() == pytest.approx([4 / 3] * 2)


class Steep(TinyNetwork):
    """Scores that overflow long before the weights do."""

    def forward(self, images):
        features, logits = super().forward(images)
        return features, logits**7


def test_a_model_that_gives_no_finite_scores_is_refused_before_it_is_averaged(tmp_path):
    answer = poisoned(classifier_bias=1e6)
    run = play(tmp_path, answer, min_sites=2, max_update_factor=0, backbone=Steep)
    assert run.stopped == ""
    sentence = "site-3: result of round 1: expected a model that gives finite scores, got NaN or infinity for an image"
    assert run.decisions("refused") == [(1, {"site": "site-3", "reason": sentence})]


class AfraidOfTheDark(TinyNetwork):
    """Infinite scores for dark images alone, once the bias is large."""

    def forward(self, images):
        features, logits = super().forward(images)
        dark = images.flatten(1).mean(1, keepdim=True) < -1.5
        return features, torch.where(dark, logits + self.classifier.bias.max() ** 20, logits)


def test_a_model_that_is_finite_for_noise_and_infinite_for_dark_images_is_refused_too(tmp_path):
    run = play(tmp_path, poisoned(classifier_bias=1e6), min_sites=2, max_update_factor=0, backbone=AfraidOfTheDark)
    assert run.stopped == ""
    ((round_num, refusal),) = run.decisions("refused")
    assert (round_num, refusal["site"]) == (1, "site-3")


def test_models_are_asked_at_the_size_of_the_jobs_images(tmp_path):
    seen = set()

    class Noting(TinyNetwork):
        def forward(self, images):
            seen.add(tuple(images.shape[1:]))
            return super().forward(images)

    play(tmp_path, None, backbone=Noting, described={"image_size": 40})
    assert seen == {(3, 40, 40)}


class Fragile(TinyNetwork):
    """Scores that are infinite where the running means are all zero, as they are at the beginning."""

    def forward(self, images):
        features, logits = super().forward(images)
        return features, logits / self.norm.running_mean.sum()


def test_an_average_that_gives_no_finite_scores_never_becomes_the_model(tmp_path):
    run = play(tmp_path, None, TWO, step={"site-1": 0.5, "site-2": -0.5}, backbone=Fragile)
    assert run.stopped == (
        "round 0, average of site-1, site-2: expected a model that gives finite scores, got NaN or infinity for an"
        " image"
    )
    assert run.moved() == [0, 0]


# ---- going on without a site ----------------------------------------------------------------------------------------


def test_a_round_that_fails_leaves_the_last_good_model_and_the_lead_goes_on_from_it_without_the_site(tmp_path):
    stopped = play(tmp_path, poisoned(norm_running_var=-1e12))
    assert stopped.stopped.startswith("train of round 1: expected valid results from 3 sites, got 2: site-3: result of")
    assert stopped.rounds() == [0, 1]
    again = play(tmp_path, poisoned(at=99), without=["site-3"])
    assert again.stopped == ""
    assert again.rounds() == [1, 2]
    assert {tuple(sites) for *_, sites in again.asked} == {("site-1", "site-2")}
    assert again.moved() == pytest.approx([3, 3])


def test_a_site_that_is_left_out_is_asked_nothing_and_a_name_that_nobody_has_is_said(tmp_path, caplog):
    def never(site, question, *rest):
        assert site != "site-2"
        return plain_answers(THREE)(site, question, *rest)

    run = play(tmp_path, never, without=["site-2", "site-9"])
    assert run.stopped == ""
    assert sorted(run.content("run.json")["sites"]) == ["site-1", "site-3"]
    assert "job variable without: expected names of connected sites, got also ['site-9']" in caplog.text


def test_leaving_out_everybody_is_said(tmp_path):
    run = play(tmp_path, None, without=list(THREE))
    assert run.stopped == "census: expected at least one site to ask, got none"


# ---- fewest sites ---------------------------------------------------------------------------------------------------


def wanting(least, base):
    """``base``, whose sites want at least so many in every average."""

    def answer(site, question, *rest):
        result = base(site, question, *rest)
        if question == CENSUS:
            result.census["min_federation"] = least[site]
        return result

    return answer


def test_no_average_is_made_of_fewer_sites_than_one_of_them_wants_whatever_min_sites_says(tmp_path):
    base = failing(plain_answers(THREE), site="site-3", when=lambda question, r: question == TRAIN and r == 1)
    least = {"site-1": 3, "site-2": 1, "site-3": 1}
    run = Run(tmp_path, FedAvgWorkflow(), list(THREE), wanting(least, base), min_sites=1)
    assert run.stopped.startswith("train of round 1: expected valid results from 3 sites, got 2: site-3: ")
    assert run.transport.saved == {}  # nothing is handed over
    assert run.moved(model=run.model) == pytest.approx([1, 1])  # the model after round 0
    run = Run(tmp_path / "any", FedAvgWorkflow(), list(THREE), base, min_sites=1)
    assert run.stopped == ""


def test_no_report_is_used_of_fewer_sites_than_one_of_them_wants(tmp_path):
    base = failing(plain_answers(THREE), site="site-3", when=lambda question, r: question == COLLECT)
    least = {"site-1": 3, "site-2": 1, "site-3": 1}
    step = in_rounds(lambda fed, r: fed.collect("ask", at_least=1))
    run = Run(tmp_path, Script(step), list(THREE), wanting(least, base), min_sites=1, num_rounds=1)
    assert run.stopped.startswith("collect of round 0: expected valid results from 3 sites, got 2: site-3: ")


def test_a_site_that_wants_to_be_among_more_than_there_are_is_named_and_left_out(tmp_path):
    least = {"site-1": 2, "site-2": 1, "site-3": 1000}
    run = Run(tmp_path, FedAvgWorkflow(), list(THREE), wanting(least, plain_answers(THREE)), min_sites=1, num_rounds=1)
    assert not run.stopped
    reason = "site-3: census: expected to be among at least 1000 sites (its min_federation), got 3"
    assert run.decisions("refused") == [(0, {"site": "site-3", "reason": reason})]
    assert sorted(run.content("run.json")["sites"]) == ["site-1", "site-2"]


def test_a_job_of_one_valid_census_ends_there_if_that_site_wants_others(tmp_path):
    base = failing(plain_answers(THREE), site="site-3", when=lambda question, r: True)
    base = failing(base, site="site-2", when=lambda question, r: True)
    run = Run(tmp_path, FedAvgWorkflow(), list(THREE), wanting(dict.fromkeys(THREE, 2), base), min_sites=1)
    assert run.stopped.startswith("census of round 0: expected valid results from 1 sites, got 0: site-2: ")
    assert run.stopped.endswith("site-1: census: expected to be among at least 2 sites (its min_federation), got 1")


def test_every_task_names_all_sites_that_are_asked(tmp_path):
    run = Run(tmp_path, FedAvgWorkflow(), list(THREE), plain_answers(THREE), num_rounds=1, without=["site-2"])
    assert {task.sites for task, _ in run.transport.sent} == {("site-1", "site-3")}


def test_of_an_even_number_of_sites_the_lower_one_in_the_middle_is_the_measure():
    sent = {"w": np.ones(1, dtype=np.float32)}
    norms = {site: {"parameters": norm, "statistics": 0.0} for site, norm in zip("abcd", (1, 1, 50, 50), strict=True)}
    assert sorted(outliers(norms, sent, 10.0)) == ["c", "d"]
