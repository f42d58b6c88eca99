"""The persistor that jobs name: FLARE's for PyTorch files, less what a job could misuse."""

from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_opt.pt.file_model_persistor import PTFileModelPersistor

from fedmend.basics.files import write_atomically
from fedmend.basics.state import torch_bytes

ENVIRONMENT = "config/environment.json"


class ModelFilePersistor(PTFileModelPersistor):
    """Writes the global and the best model below the run's folder.

    FLARE's own class calls any class that its argument ``model`` names, whatever the site allows, and opens pickles
    with ``load_weights_only`` false: a job that may name it can run code. This one takes no arguments.
    """

    def __init__(self) -> None:
        super().__init__()

    def save_model_file(self, save_path: str) -> None:
        """As FLARE, but a full disk is an OSError, which ends the run with one sentence."""
        with write_atomically(Path(save_path)) as temporary:
            temporary.write_bytes(torch_bytes(self.persistence_manager.to_persistence_dict()))

    def handle_event(self, event: str, fl_ctx: FLContext) -> None:
        """Refuses a job whose environment file would choose other folders; otherwise as FLARE."""
        if event == EventType.START_RUN and (Path(fl_ctx.get_prop(FLContextKey.APP_ROOT)) / ENVIRONMENT).exists():
            self.system_panic(f"job: expected no {ENVIRONMENT}, which would choose other files for the model", fl_ctx)
            return
        super().handle_event(event, fl_ctx)
