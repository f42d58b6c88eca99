"""Where a running site or server finds its ``local/fedmend.json``."""

from pathlib import Path

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from fedmend.site.config import CONFIG_NAME, SiteConfig, read_site_config
from fl_components.kit_state import open_state


def load_site_config(fl_ctx: FLContext) -> SiteConfig:
    """Reads ``<workspace>/local/fedmend.json`` of the running site or server.

    Raises:
        FedMendError: as :func:`fedmend.site.config.read_site_config` and :func:`fl_components.kit_state.open_state`.
    """
    workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
    root, name = Path(workspace.get_root_dir()), fl_ctx.get_identity_name()
    config = read_site_config(Path(workspace.get_file_path_in_site_config(CONFIG_NAME)), root, name)
    open_state(root, config, name)
    return config
