"""The context of FLARE as that of a participant who tracks nobody but itself."""

from nvflare.apis.fl_constant import ProcessType
from nvflare.apis.fl_context import FLContext


class Alone:
    """FLARE's receivers keep a run per connected site, and lose what the server itself says; seen through this, the
    server is the only one."""

    def __init__(self, fl_ctx: FLContext):
        self._fl_ctx = fl_ctx

    def __getattr__(self, name: str) -> object:
        return getattr(self._fl_ctx, name)

    def get_process_type(self) -> str:
        """Not that of a server."""
        return ProcessType.CLIENT_JOB
