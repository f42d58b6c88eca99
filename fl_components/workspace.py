"""Where a running site or server finds its ``local/fedmend.json``."""

from pathlib import Path

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from fedmend.errors import FedMendError
from fedmend.site.config import CONFIG_NAME, SiteConfig, read_site_config
from fl_components.kit_state import check_state, is_kit


def load_site_config(fl_ctx: FLContext) -> SiteConfig:
    """Reads ``<workspace>/local/fedmend.json`` of the running site or server, and makes a kit's folder for state, for
    its owner alone, as the kit is.

    Raises:
        FedMendError: as :func:`fedmend.site.config.read_site_config` and :func:`fl_components.kit_state.check_state`;
            or the folder cannot be made.
    """
    workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
    root, name = Path(workspace.get_root_dir()), fl_ctx.get_identity_name()
    config = read_site_config(Path(workspace.get_file_path_in_site_config(CONFIG_NAME)), root, name)
    check_state(root, config, name)
    try:
        if is_kit(root):
            config.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        raise FedMendError(
            f"{name}: local/{CONFIG_NAME}, field state_dir: expected a folder that can be written, got another"
        ) from None
    return config
