from factories import refused
from fl_factories import Engine, write_settings

from fl_components.workspace import load_site_config

WHERE = "site-1: local/fedmend.json"


def test_a_context_gives_file_workspace_and_name(tmp_path):
    write_settings(tmp_path, data_root="data/{SITE_NAME}")
    assert load_site_config(Engine(tmp_path, "site-3").new_context()).data_root == tmp_path / "data" / "site-3"


def test_a_missing_file_is_refused(tmp_path):
    fl_ctx = Engine(tmp_path, "site-1").new_context()
    with refused(f"{WHERE}: expected in the workspace (data_root, cache_dir, state_dir), not found"):
        load_site_config(fl_ctx)
