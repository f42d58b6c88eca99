"""Nothing leaves a site as an event: FLARE sends those of the federation past every filter of results."""

import inspect
import json
import sys

import pytest
from factories import ROOT
from fl_factories import Engine, write_settings
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import EventScope, FedEventHeader, FLContextKey
from nvflare.app_common.widgets.convert_to_fed_event import ConvertToFedEvent
from nvflare.fuel.utils.class_utils import instantiate_class, load_class
from nvflare.widgets.fed_event import ClientFedEventRunner

ALLOWED = json.loads((ROOT / "simulator_workspace" / "local" / "resources.json").read_text())["class_allow_list"]
JOBS = sorted(p.parent for p in (ROOT / "jobs").glob("*/meta.json"))
LOG, METRIC = "_error_log_available", "analytix_log_stats"
EVENTS = [LOG, METRIC, *(value for name, value in vars(EventType).items() if name.isupper())]
WAYS_OUT = ("fire_fed_event", "send_aux_request", "fire_and_forget", "stream_objects", "LogStreamer", "stream_file")
SECRET = "PATIENT-4711"


class Runner(ClientFedEventRunner):
    """FLARE's runner, which sends what is an event of the federation; here it notes it."""

    def __init__(self):
        super().__init__()
        self.sent = []

    def fire_and_forget_request(self, request, fl_ctx, targets=None, secure=False):
        self.sent.append((request.get_header(FedEventHeader.EVENT_TYPE), str(request)))


class SiteEngine(Engine):
    """An engine that hands an event to all components, as FLARE's does, with the runner among them."""

    def __init__(self, folder, components):
        self.runner = Runner()
        super().__init__(folder, "site-1", components={**components, "runner": self.runner})

    def register_aux_message_handler(self, topic, message_handle_func):
        pass


def told_as_events(folder, components):
    """What leaves a site as an event, whatever happens there."""
    write_settings(folder)
    engine = SiteEngine(folder, components)
    for event in EVENTS:
        fl_ctx = engine.new_context()
        data = DXO(DataKind.ANALYTIC, data={"text": SECRET}).to_shareable()
        fl_ctx.set_prop(FLContextKey.EVENT_DATA, data, private=True, sticky=False)
        fl_ctx.set_prop(FLContextKey.EVENT_SCOPE, EventScope.LOCAL, private=True, sticky=False)
        engine.fire_event(event, fl_ctx)
    return engine.runner.sent


@pytest.mark.parametrize("job", JOBS, ids=lambda j: j.name)
def test_no_job_of_ours_sends_an_event_of_its_site_whatever_happens_there(tmp_path, job):
    config = json.loads((job / "app" / "config" / "config_fed_client.json").read_text())
    parts = [*config["components"], *({"id": "executor", **entry["executor"]} for entry in config["executors"])]
    components = {part["id"]: instantiate_class(part["path"], part.get("args", {})) for part in parts}
    assert told_as_events(tmp_path, components) == []


def test_flares_converter_would_send_the_log_of_a_site_and_is_not_allowed(tmp_path):
    sent = told_as_events(tmp_path, {"converter": ConvertToFedEvent([LOG, METRIC])})
    assert {f"fed.{LOG}", f"fed.{METRIC}"} <= {event for event, _ in sent}
    assert all(SECRET in content for _, content in sent)
    assert not [path for path in ALLOWED if "convert_to_fed_event" in path]


@pytest.mark.parametrize("path", ALLOWED)
def test_no_allowed_class_knows_a_way_out_besides_task_results(path):
    bases = [cls for cls in load_class(path).__mro__ if cls is not FLComponent]
    modules = {cls.__module__ for cls in bases if cls.__module__.startswith(("nvflare.app", "fedmend", "fl_comp"))}
    assert modules
    for module in modules:
        source = inspect.getsource(sys.modules[module])
        assert [way for way in WAYS_OUT if way in source] == [], module


def test_the_reader_of_ways_out_sees_those_that_were_used():
    module = sys.modules[ConvertToFedEvent.__module__]
    assert [way for way in WAYS_OUT if way in inspect.getsource(module)] == ["fire_fed_event"]
