"""Whether JSON files have the shape of a job, so that what reads them need not ask at every step."""

from fedmend.errors import FedMendError


def check_shape(meta: object, client: object, server: object) -> None:
    """Refuses files that are no job.

    Args:
        meta: content of ``meta.json``.
        client: content of ``config_fed_client.json``.
        server: content of ``config_fed_server.json``.

    Raises:
        FedMendError: names the first file that lacks or breaks a part.
    """
    for file, content in (("meta.json", meta), ("config_fed_client.json", client), ("config_fed_server.json", server)):
        if not isinstance(content, dict):
            raise FedMendError(f"job, {file}: expected a JSON object, got another kind of value")
    places = meta.get("deploy_map")
    known = isinstance(places, dict) and all(_is_list_of(sites, _is_word) for sites in places.values())
    if not (known and _is_word(meta.get("name"))):
        raise FedMendError("job, meta.json: expected name and deploy_map with lists of site names, got others")
    if not (_is_list_of(client.get("executors", []), _has_executor) and _are_components(client.get("components", []))):
        raise FedMendError("job, config_fed_client.json: expected lists of executors and components, got others")
    named = isinstance(server.get("problem", ""), str) and "/" not in server.get("problem", "")
    if not (named and all(_are_components(server.get(name, [])) for name in ("workflows", "components"))):
        raise FedMendError("job, config_fed_server.json: expected lists of workflows and components, got others")


def _is_list_of(values: object, right) -> bool:
    return isinstance(values, list) and all(right(value) for value in values)


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= 200


def _has_executor(entry: object) -> bool:
    return isinstance(entry, dict) and _is_component(entry.get("executor"))


def _are_components(values: object) -> bool:
    return _is_list_of(values, _is_component)


def _is_component(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and _is_word(entry.get("path", ""))
        and _is_word(entry.get("id", ""))
        and isinstance(entry.get("args", {}), dict)
    )
