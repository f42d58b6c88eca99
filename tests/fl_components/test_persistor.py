import json

import pytest
import torch
from fl_factories import JOB, Engine
from full_disk import full_disk
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey

from fl_components.persistor import ModelFilePersistor


@pytest.mark.parametrize(
    "argument",
    [
        {"model": {"path": "subprocess.Popen", "config_type": "dict", "args": {"args": ["true"]}}},
        {"load_weights_only": False},
        {"source_ckpt_file_full_name": "/srv/model.pt"},
        {"global_model_file_name": "../../model.pt"},
    ],
)
def test_a_job_can_give_the_persistor_no_argument(argument):
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        ModelFilePersistor(**argument)


def test_a_job_cannot_choose_other_files_for_the_model(tmp_path):
    persistor = ModelFilePersistor()
    engine = Engine(tmp_path / "run", "server", components={"persistor": persistor})
    app = tmp_path / "run" / JOB / "app_server"
    (app / "config" / "environment.json").write_text(json.dumps({"APP_CKPT_DIR": str(tmp_path / "elsewhere")}))
    fl_ctx = engine.new_context()
    fl_ctx.set_prop(FLContextKey.APP_ROOT, str(app), private=True, sticky=True)
    engine.fire_event(EventType.START_RUN, fl_ctx)
    (sentence,) = engine.panics()
    assert sentence == "job: expected no config/environment.json, which would choose other files for the model"
    assert not (tmp_path / "elsewhere").exists()


def test_a_model_that_does_not_fit_on_the_disk_is_an_error_of_the_system_and_keeps_the_old_file(tmp_path):
    file = tmp_path / "model.pt"
    persistor = ModelFilePersistor()
    persistor.persistence_manager = Model()
    persistor.save_model_file(str(file))
    content = file.read_bytes()
    assert torch.load(file, weights_only=True)["model"]["w"].tolist() == [0.0] * 9999
    with pytest.raises(OSError, match="File too large"), full_disk(5_000):
        persistor.save_model_file(str(file))
    assert [f.read_bytes() for f in tmp_path.iterdir()] == [content]


class Model:
    """What FLARE gives the persistor."""

    def to_persistence_dict(self):
        return {"model": {"w": torch.zeros(9999)}}
