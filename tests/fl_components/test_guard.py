import json

import numpy as np
import pytest
import torch
from factories import ROOT, refused
from federation_factories import confusion
from fl_factories import Engine, write_settings
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import FLContextKey, ProcessType, ReservedKey, ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from result_factories import PREPARED

from fedmend.messages import SiteResult
from fedmend.methods.fednoro import DETECT, FedNoRoWorkflow
from fedmend.methods.shared.class_losses import loss_matrix
from fedmend.site.register import read_register, register_file, told
from fl_components.guard import ReportGuard
from fl_components.wire import CLASSES, KEY, RUN_NAME, pack_result, unpack_result

FIELDS = {
    "prototypes": {"shape": ["2C", "F"], "dtype": "float32", "low": -1e9, "high": 1e9},
    "prototype_counts": {"shape": ["2C"], "dtype": "int64", "low": 0, "high": 1e9, "of_samples": True},
    "learning_degree": {"shape": ["C"], "dtype": "float32", "low": 0, "high": 1},
}
WEIGHTS = {"w": np.arange(4, dtype=np.float32)}
PROTOTYPES = np.arange(8, dtype=np.float32).reshape(4, 2) + 1


@pytest.fixture
def site(tmp_path):
    write_settings(tmp_path, min_count=3)
    return Engine(tmp_path, "site-1").new_context()


def result(**changes):
    report = {
        "prototypes": PROTOTYPES,
        "prototype_counts": np.array([3, 40, 5, 9]),
        "learning_degree": np.array([0.5, 0.25], dtype=np.float32),
    }
    fields = {"round_num": 2, "samples": 50, "weights": WEIGHTS, "report": report, "loss": 0.5}
    return SiteResult(**{**fields, **changes})


def send(guarded, site, *, tamper=lambda content: None, max_kilobytes=1024):
    """The message that leaves and what the server reads in it."""
    guard = ReportGuard(fields=FIELDS, counts={"prototypes": "prototype_counts"}, max_kilobytes=max_kilobytes)
    model = pack_result(guarded)
    tamper(model.meta[KEY])
    sent = FLModelUtils.from_shareable(guard.process(FLModelUtils.to_shareable(model), site))
    return sent, unpack_result(sent, "site-1")


def refused_with(sentence, sent, got):
    """Nothing left but the sentence."""
    assert got.error == sentence
    assert got == SiteResult(site="site-1", error=sentence)
    assert sent.params is None
    assert sent.metrics == {"samples": 1.0}
    assert set(sent.meta) == {KEY}


def test_an_ordinary_result_passes_unchanged(site):
    _, got = send(result(), site)
    np.testing.assert_array_equal(got.weights["w"], WEIGHTS["w"])
    for name, value in result().report.items():
        assert got.report[name].dtype == value.dtype
        np.testing.assert_array_equal(got.report[name], value)
    assert (got.samples, got.round_num, got.loss, got.error) == (50, 2, 0.5, "")


def test_rows_of_too_few_samples_leave_as_zeros_with_their_counts(site, caplog):
    report = {"prototypes": PROTOTYPES, "prototype_counts": np.array([2, 3, 0, 1])}
    _, got = send(result(report=report), site)
    np.testing.assert_array_equal(got.report["prototypes"], [[0, 0], PROTOTYPES[1], [0, 0], [0, 0]])
    np.testing.assert_array_equal(got.report["prototype_counts"], [0, 3, 0, 0])
    assert "site-1: 2 rows of prototypes held back: fewer than 3 samples" in caplog.text


def test_a_field_that_the_site_keeps_does_not_leave_nor_the_others_with_it(tmp_path):
    write_settings(tmp_path, min_count=3, refuse_fields=["prototypes"])
    site = Engine(tmp_path, "site-1").new_context()
    refused_with(
        "site-1: ReportGuard: expected no report field that this site keeps, got prototypes", *send(result(), site)
    )
    rest = {"learning_degree": np.array([0.5, 0.25], dtype=np.float32)}
    assert set(send(result(report=rest), site)[1].report) == {"learning_degree"}


def test_nothing_leaves_while_the_site_keeps_a_field_that_there_is_not(tmp_path):
    write_settings(tmp_path, min_count=3, refuse_fields=["prototype"])
    sentence = "site-1: ReportGuard: local/fedmend.json, field refuse_fields: expected fields of"
    sentence += " ['learning_degree', 'prototype_counts', 'prototypes'], got ['prototype']"
    refused_with(sentence, *send(result(), Engine(tmp_path, "site-1").new_context()))


def test_a_count_of_more_samples_than_the_site_has_does_not_leave(site):
    report = {"prototype_counts": np.array([3, 51, 5, 9])}
    sentence = "site-1: ReportGuard: report field prototype_counts: expected numbers from 0 to 50, got 3 to 51"
    refused_with(sentence, *send(result(report=report), site))


def test_what_leaves_is_on_record_before_as_it_leaves(site, tmp_path):
    site.put(RUN_NAME, "run-1", private=True, sticky=False)
    site.put(FLContextKey.TASK_NAME, "train", private=True, sticky=False)
    report = {"prototypes": PROTOTYPES, "prototype_counts": np.array([2, 3, 0, 1])}
    _, got = send(result(report=report), site)
    (line,) = read_register(register_file(tmp_path / "state", "site-1"))
    assert [line[name] for name in ("job", "run", "task", "round")] == ["job-1", "run-1", "train", 2]
    assert (line["fields"]["weights"], line["fields"]["report prototypes"]) == (17, 32)
    assert line["digest"] == told(got)["digest"] != told(result(report=report))["digest"]  # with the rows held back


def test_sentences_codes_and_counts_of_the_audit_are_on_record_too(site, tmp_path):
    _, refusal = send(result(report={"features": np.ones((50, 2))}), site)
    guard = ReportGuard(fields=FIELDS, counts={})
    guard.process(make_reply(ReturnCode.TASK_ABORTED), site)
    lines = read_register(register_file(tmp_path / "state", "site-1"))
    assert [line["error"] for line in lines] == [refusal.error, ReturnCode.TASK_ABORTED]


def test_a_task_name_of_the_servers_choice_is_not_put_on_record(site, tmp_path):
    site.put(FLContextKey.TASK_NAME, "train\x1b[2J", private=True, sticky=False)
    ReportGuard(fields=FIELDS, counts={}).process(make_reply(ReturnCode.TASK_UNKNOWN), site)
    (line,) = read_register(register_file(tmp_path / "state", "site-1"))
    assert (line["task"], line["error"]) == ("unknown", ReturnCode.TASK_UNKNOWN)


def test_what_cannot_be_put_on_record_does_not_leave(site, tmp_path):
    (tmp_path / "state").mkdir(exist_ok=True)
    (tmp_path / "state" / ".register").mkdir()
    (tmp_path / "state" / ".register" / "site-1.lock").mkdir()  # a file of that name cannot be opened
    with pytest.raises(IsADirectoryError):
        send(result(), site)


def test_the_server_which_has_the_same_guard_keeps_no_register(tmp_path):
    write_settings(tmp_path, min_count=3)
    server = Engine(tmp_path, "server").new_context()
    server.put(ReservedKey.PROCESS_TYPE, ProcessType.SERVER_JOB, private=True, sticky=False)
    send(result(), server)
    assert not (tmp_path / "state").exists()


def test_an_unknown_field_is_refused(site):
    known = "['census', 'counts', 'error', 'ledger_mark', 'loss', 'repairs', 'report', 'round', 'samples']"
    refused_with(
        f"site-1: ReportGuard: result, fields: expected {known}, got something else",
        *send(result(), site, tamper=lambda content: content.update(names=["p1"])),
    )


def test_a_report_field_that_the_policy_does_not_name_is_refused(site):
    refused_with(
        f"site-1: ReportGuard: expected report fields out of {sorted(FIELDS)}, got also ['features']",
        *send(result(report={"features": np.ones((50, 2))}), site),
    )


def test_more_than_the_allowed_size_is_refused(site):
    big = {"learning_degree": np.zeros(2048, dtype=np.float32)}
    sent, got = send(result(report=big), site, max_kilobytes=8)
    assert got.error.startswith("site-1: ReportGuard: expected at most 8192 bytes besides the weights, got 8")
    refused_with(got.error, sent, got)


IMAGE = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
CENSUS = {
    "annotated": np.array([True, False]),
    "positives": np.array([4, 0]),
    "sizes": {"train": 50},
    "data": {"train": "0" * 32},
    "kind": "multilabel",
    "phantom": False,
    "preprocessing": PREPARED.told(),
    "min_federation": 1,
}


def test_a_census_passes(site):
    _, got = send(result(weights={}, report={}, census=CENSUS), site)
    assert got.error == ""
    assert got.census["sizes"] == {"train": 50}


@pytest.mark.parametrize(
    ("part", "content", "named"),
    [
        ("census", {**CENSUS, "positives": IMAGE}, "census positives: expected one value per class"),
        (
            "census",
            {**CENSUS, "image": IMAGE},
            "census: expected ['annotated', 'data', 'kind', 'min_federation', 'phantom', 'positives',"
            " 'preprocessing', 'sizes']",
        ),
        ("census", {**CENSUS, "sizes": {"train": IMAGE}}, "census sizes: expected samples per split"),
        ("census", {**CENSUS, "sizes": {"train": 50, "p1": 1}}, "census sizes: expected samples per split"),
        (
            "report",
            {"learning_degree": np.array([{"p1": 1}, None])},
            "report learning_degree: expected an array of numbers",
        ),
        ("report", {"learning_degree": torch.ones(2)}, "report learning_degree: expected an array of numbers"),
        ("report", {"learning_degree": [0.5, 0.5]}, "report learning_degree: expected an array of numbers"),
        ("counts", {"val": IMAGE}, "counts val: expected (C, 2, 1000), (C, C + 2000) or (C, 7) counts"),
        ("repairs", {"p1": np.array([1])}, "repairs: expected"),
        ("error", "x" * 3000, "error: expected a sentence"),
    ],
)
def test_what_no_result_needs_is_refused_whatever_field_hides_it(site, part, content, named):
    sent, got = send(result(**{part: content}), site)
    assert got.error.startswith(f"site-1: ReportGuard: result, {named}")
    refused_with(got.error, sent, got)


def test_a_long_field_name_does_not_leave_in_the_refusal(site):
    _, got = send(result(report={"p1 " * 2000: np.ones(2)}), site)
    assert got.error.startswith("site-1: ReportGuard: expected report fields out of")
    assert len(got.error) < 200


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({}, "expected prototype_counts with one count per row of prototypes"),
        (
            {"prototype_counts": np.array([3, 4])},
            "report field prototype_counts: expected int64 of shape (4,), got int64 of shape (2,)",
        ),
    ],
    ids=["absent", "too short"],
)
def test_prototypes_without_a_count_per_row_are_refused(site, counts, words):
    refused_with(f"site-1: ReportGuard: {words}", *send(result(report={"prototypes": PROTOTYPES} | counts), site))


def test_a_result_of_another_kind_is_refused(site):
    guard = ReportGuard(fields=FIELDS, counts={})
    for dxo in (DXO(DataKind.WEIGHTS, data=WEIGHTS), DXO(DataKind.WEIGHT_DIFF, data=WEIGHTS, meta={KEY: {}})):
        sent = FLModelUtils.from_shareable(guard.process(dxo.to_shareable(), site))
        refused_with(
            f"site-1: ReportGuard: expected a FedMend result, got {dxo.data_kind} of another kind",
            sent,
            unpack_result(sent, "site-1"),
        )


CODES = [value for name, value in vars(ReturnCode).items() if name.isupper() and value != ReturnCode.OK]


@pytest.mark.parametrize(
    ("code", "passed"),
    [
        *((code, code) for code in CODES),
        ("MUELLER_ANNA.dcm", ReturnCode.ERROR),
        ("", ReturnCode.ERROR),
        (["x"], ReturnCode.ERROR),
        (7, ReturnCode.ERROR),
    ],
    ids=str,
)
def test_of_an_error_reply_nothing_but_a_known_code_passes(site, code, passed):
    reply = FLModelUtils.to_shareable(pack_result(result()))
    reply.set_return_code(code)
    reply.set_header("patients", ["p1"])
    sent = ReportGuard(fields=FIELDS, counts={}).process(reply, site)
    assert sent == make_reply(passed)


def test_what_stands_in_a_message_beside_the_result_stays_at_the_site(site):
    message = FLModelUtils.to_shareable(pack_result(result()))
    plain = ReportGuard(fields=FIELDS, counts={}).process(FLModelUtils.to_shareable(pack_result(result())), site)
    message["images"], message["DXO"]["more"] = IMAGE, IMAGE
    message.set_header("patients", ["p1"])
    sent = ReportGuard(fields=FIELDS, counts={}).process(message, site)
    assert set(sent) == {"__headers__", "DXO"}
    assert set(sent["DXO"]) == set(plain["DXO"])
    assert sent["__headers__"] == plain["__headers__"]
    assert sent.get_header(AppConstants.CURRENT_ROUND) == 2


@pytest.mark.parametrize(
    "words", [["\x1b[2J"], "x\ny", ["x" * 101], [["x"]], IMAGE, {"p1": 1}], ids=lambda words: type(words).__name__
)
def test_a_history_of_filters_that_is_none_is_refused(site, words):
    model = pack_result(result())
    model.meta[MetaKey.FILTER_HISTORY] = words
    sent = ReportGuard(fields=FIELDS, counts={}).process(FLModelUtils.to_shareable(model), site)
    got = unpack_result(FLModelUtils.from_shareable(sent), "site-1")
    assert got.error == "site-1: ReportGuard: expected names of filters, got something else"


def test_a_history_of_filters_passes(site):
    model = pack_result(result())
    model.meta[MetaKey.FILTER_HISTORY] = ["PercentilePrivacy"]
    sent = ReportGuard(fields=FIELDS, counts={}).process(FLModelUtils.to_shareable(model), site)
    assert unpack_result(FLModelUtils.from_shareable(sent), "site-1").error == ""


def test_a_refusal_is_one_line_that_can_be_shown_whatever_was_in_the_message(site):
    dxo = DXO("\x1b[2J\nERROR all is lost", data={"x": 1})
    sent = FLModelUtils.from_shareable(ReportGuard(fields=FIELDS, counts={}).process(dxo.to_shareable(), site))
    got = unpack_result(sent, "site-1")
    assert got.error == "site-1: ReportGuard: expected a FedMend result, got [2JERROR all is lost of another kind"


PROMISE = {"epsilon": 2.5, "epsilon_rdp": 2.75, "delta": 1e-4, "clip": 1.0, "noise_multiplier": 1.5}


@pytest.fixture
def private(tmp_path):
    write_settings(tmp_path, min_count=3, privacy={"clip": 1.0, "noise_multiplier": 1.5})
    return Engine(tmp_path, "site-1").new_context()


def test_of_a_site_with_differential_privacy_noisy_weights_leave_and_nothing_else(private):
    _, got = send(result(report={}, loss=0.0, privacy=PROMISE), private)
    assert (got.error, got.privacy) == ("", PROMISE)
    np.testing.assert_array_equal(got.weights["w"], WEIGHTS["w"])


@pytest.mark.parametrize(
    ("leak", "part"),
    [
        ({"loss": 0.5}, "loss"),
        ({"report": {"learning_degree": np.ones(2, np.float32)}}, "report"),
        ({"privacy": {}}, "weights without noise"),
        ({"weights": {}, "census": CENSUS, "privacy": {}}, "positives"),
    ],
)
def test_what_the_promise_does_not_cover_stays_whoever_made_it(private, leak, part):
    kept = {"report": {}, "loss": 0.0, "privacy": PROMISE}
    refused_with(
        f"site-1: ReportGuard: privacy: expected {part} to stay at this site, got some",
        *send(result(**{**kept, **leak}), private),
    )


def test_sums_with_noise_leave_a_site_with_differential_privacy_alone_and_with_its_promise(tmp_path):
    """By the policy of the kits."""
    (scope,) = json.loads((ROOT / "simulator_workspace" / "local" / "privacy.json").read_text())["scopes"]
    (chosen,) = [c["args"] for c in scope["task_result_filters"] if c["path"].endswith("ReportGuard")]
    told = {"class_sums": np.ones((4, 3), np.float32), "patients": np.ones(1, np.float32)}
    learning = {"learning_degree": np.ones(2, np.float32)}
    noise = {"clip": 1.0, "noise_multiplier": 1.5}
    stays = "ReportGuard: privacy: expected report to stay at this site, got some"
    without = "ReportGuard: expected class_sums to stay at this site, whose fedmend.json has no privacy"
    for privacy, promise, report, error in (
        (noise, PROMISE, told, ""),
        (noise, {}, told, f"site-1: {stays}"),
        (noise, PROMISE, told | learning, f"site-1: {stays}"),
        (None, PROMISE, told, f"site-1: {without}"),
    ):
        write_settings(tmp_path, privacy=privacy)
        here, leaving = (
            Engine(tmp_path, "site-1").new_context(),
            result(report=report, weights={}, loss=0.0, privacy=promise),
        )
        sent = ReportGuard(**chosen).process(FLModelUtils.to_shareable(pack_result(leaving)), here)
        got = unpack_result(FLModelUtils.from_shareable(sent), "site-1")
        assert (got.error, set(got.report)) == (error, set() if error else set(told))


def test_the_label_audit_gets_no_counts_of_a_site_with_differential_privacy(private, caplog):
    counts = DXO(DataKind.STATISTICS, data={}).to_shareable()
    sent = ReportGuard(fields=FIELDS, counts={}).process(counts, private)
    assert sent.get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR
    assert "site-1: privacy: expected exact label counts to stay at this site, got some" in caplog.text


def test_at_the_server_the_sentence_names_the_site_that_sent(tmp_path):
    write_settings(tmp_path)
    server = Engine(tmp_path, "server").new_context()
    server.put(ReservedKey.PROCESS_TYPE, ProcessType.SERVER_JOB, private=True, sticky=False)
    server.set_peer_context(Engine(tmp_path / "site", "site-4").new_context())
    _, got = send(result(report={"features": np.ones(2)}), server)
    assert got.error.startswith("site-4: ReportGuard: expected report fields")


def test_meta_data_beside_the_report_is_refused(site):
    model = pack_result(result())
    model.meta["patients"] = ["p1"]
    sent = ReportGuard(fields=FIELDS, counts={}).process(FLModelUtils.to_shareable(model), site)
    got = unpack_result(FLModelUtils.from_shareable(sent), "site-1")
    assert got.error == "site-1: ReportGuard: expected meta data under 'fedmend' alone, got also ['patients']"
    assert "p1" not in str(sent)


def test_the_account_of_sparse_vector_privacy_stays_at_the_site(site):
    filtered = SVTPrivacy(fraction=0.5).process(FLModelUtils.to_shareable(pack_result(result())), site)
    assert len(svt := {key for key in from_shareable(filtered).meta if key.startswith("svt_")}) == 2
    sent = ReportGuard(fields=FIELDS, counts={"prototypes": "prototype_counts"}).process(filtered, site)
    assert not svt & set(from_shareable(sent).meta)
    got = unpack_result(FLModelUtils.from_shareable(sent), "site-1")
    assert (got.error, got.samples) == ("", 50)
    assert not np.array_equal(got.weights["w"], WEIGHTS["w"])


def test_metrics_beside_the_report_are_refused(site):
    model = pack_result(result(weights={}))
    model.metrics["features"] = np.ones(3)
    sent = ReportGuard(fields=FIELDS, counts={}).process(FLModelUtils.to_shareable(model), site)
    got = unpack_result(FLModelUtils.from_shareable(sent), "site-1")
    assert got.error == "site-1: ReportGuard: expected no metrics besides the report, got others"


def test_a_result_without_weights_passes(site):
    _, got = send(result(weights={}, report={}), site)
    assert (got.error, got.samples) == ("", 50)


@pytest.fixture
def policy():
    """The guard of the tracked site policy."""
    (scope,) = json.loads((ROOT / "simulator_workspace" / "local" / "privacy.json").read_text())["scopes"]
    (guard,) = scope["task_result_filters"]
    return ReportGuard(**guard["args"])


def detection(counts, losses=(0.5, 1.5, 2.5, 3.5)):
    report = {"class_loss": np.array(losses, dtype=np.float32), "class_count": np.array(counts, dtype=np.int64)}
    return result(weights={}, report=report)


def sent_by(policy, site, content):
    sent = FLModelUtils.from_shareable(policy.process(FLModelUtils.to_shareable(pack_result(content)), site))
    return sent, unpack_result(sent, "site-1")


def test_the_site_policy_lets_class_wise_losses_pass(site, policy):
    _, got = sent_by(policy, site, detection([3, 40, 5, 9]))
    assert got.error == ""
    assert got.report["class_loss"].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert got.report["class_count"].tolist() == [3, 40, 5, 9]
    FedNoRoWorkflow(warmup_rounds=1).check(DETECT, got.report)


def test_the_site_policy_holds_the_losses_of_rare_classes_back(site, policy, caplog):
    _, got = sent_by(policy, site, detection([2, 3, 0, 1]))
    assert got.report["class_loss"].tolist() == [0, 1.5, 0, 0]
    assert got.report["class_count"].tolist() == [0, 3, 0, 0]
    assert got.report["class_loss"].dtype == np.float32
    assert "site-1: 2 rows of class_loss held back: fewer than 3 samples" in caplog.text
    np.testing.assert_array_equal(loss_matrix({"site-1": got.report}), [[np.nan, 1.5, np.nan, np.nan]])


def test_a_site_of_rare_classes_only_has_nothing_to_report(site, policy):
    _, got = sent_by(policy, site, detection([2, 1, 0, 2]))
    with refused("report field class_count: expected at least one class with enough samples, got none"):
        FedNoRoWorkflow(warmup_rounds=1).check(DETECT, got.report)


def test_losses_without_their_counts_do_not_leave(site, policy):
    content = detection([3, 40, 5, 9])
    del content.report["class_count"]
    sentence = "site-1: ReportGuard: expected class_count with one count per row of class_loss"
    refused_with(sentence, *sent_by(policy, site, content))


def test_single_label_counts_pass(site):
    counts = confusion(0.5, 1)
    _, got = send(result(counts={"test": counts}), site)
    np.testing.assert_array_equal(got.counts["test"], counts)


# ---- fields as the policy describes them ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({"class_loss": np.zeros((3, 80000), np.float32)}, "class_loss: expected 1 axes, got 2"),
        ({"class_loss": np.zeros(80000, np.float32)}, "class_loss: expected R up to 1001, got more"),
        ({"class_loss": np.zeros(4)}, "class_loss: expected float32 of shape (4,), got float64 of shape (4,)"),
        ({"class_loss": np.float32([1, -1])}, "class_loss: expected numbers from 0 to 1e+09, got -1 to 1"),
        ({"class_loss": np.float32([1, np.nan])}, "class_loss: expected finite numbers, got NaN or infinity"),
        (
            {"class_loss": np.zeros(4, np.float32), "class_count": np.zeros(5, np.int64)},
            "class_count: expected int64 of shape (4,), got int64 of shape (5,)",
        ),
        ({"prototypes": np.zeros((6, 9000), np.float32)}, "prototypes: expected F up to 8192, got more"),
        (
            {"prototypes": np.zeros((5, 8), np.float32)},
            "prototypes: expected float32 of shape (4, 8), got float32 of shape (5, 8)",
        ),
        (
            {"learning_degree": np.zeros(3, np.float32), "prototype_counts": np.zeros(4, np.int64)},
            "prototype_counts: expected int64 of shape (6,), got int64 of shape (4,)",
        ),
        ({"lesions": np.zeros(3, np.int64)}, "lesions: expected int64 of shape (2,), got int64 of shape (3,)"),
    ],
)
def test_a_report_field_that_is_not_as_described_does_not_leave(site, policy, report, words):
    sentence = f"site-1: ReportGuard: report field {words}"
    refused_with(sentence, *sent_by(policy, site, result(weights={}, report=report)))


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({"learning_degree": np.zeros(3, np.float32)}, " learning_degree: expected float32 of shape (2,)"),
        ({"class_count": np.zeros(4, np.int64)}, ": expected a row for each of 2 classes, got 4"),
    ],
)
def test_sizes_are_those_of_the_run(site, policy, report, words):
    site.set_prop(CLASSES, 2, private=True, sticky=False)
    _, got = sent_by(policy, site, result(weights={}, report=report))
    assert got.error.startswith(f"site-1: ReportGuard: report field{words}")


@pytest.mark.parametrize("rows", [2, 3])
def test_a_row_for_the_background_may_stand_before_those_of_the_classes(site, policy, rows):
    site.set_prop(CLASSES, 2, private=True, sticky=False)
    _, got = sent_by(policy, site, detection([5] * rows, [0.5] * rows))
    assert got.error == ""


def test_counts_of_too_few_samples_do_not_leave_without_their_rows_either(site, policy):
    content = detection([2, 3, 0, 1])
    del content.report["class_loss"]
    _, got = sent_by(policy, site, content)
    assert got.error == ""
    assert got.report["class_count"].tolist() == [0, 3, 0, 0]


def test_a_policy_that_names_fields_without_their_shapes_is_one_of_an_earlier_version():
    with pytest.raises(ValueError, match="expected fields with their shapes, got names; take over the new one"):
        ReportGuard(fields=["class_loss"], counts={})


def test_a_field_that_a_setting_of_the_site_allows_stays_there_without_it(tmp_path):
    fields = {"group_people": {"shape": ["G"], "dtype": "int64", "low": 0, "high": 1e9, "allowed_by": "evaluate_by"}}
    guard = ReportGuard(fields=fields, counts={})
    told = {"group_people": np.array([9, 8])}
    for allowed in ([], ["sex"]):
        write_settings(tmp_path, evaluate_by=allowed)
        here = Engine(tmp_path, "site-1").new_context()
        sent = guard.process(FLModelUtils.to_shareable(pack_result(result(report=told, weights={}))), here)
        got = unpack_result(FLModelUtils.from_shareable(sent), "site-1")
        if allowed:
            assert got.report["group_people"].tolist() == [9, 8]
        else:
            sentence = "expected group_people to stay at this site, whose fedmend.json has no evaluate_by"
            assert got == SiteResult(site="site-1", error=f"site-1: ReportGuard: {sentence}")
