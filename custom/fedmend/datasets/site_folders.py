"""How converters write site folders: aside, and moved into place when all are complete."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def root_in_card(images: Path, site: Path, tree: Path) -> str:
    """What a card says as ``image_root``: in one tree images and site can be moved together, if the path is relative.

    Args:
        images: absolute folder of the images.
        site: absolute site folder.
        tree: absolute folder above the latter.
    """
    return Path(os.path.relpath(images, site)).as_posix() if images.is_relative_to(tree) else str(images)


@contextmanager
def site_folders(out: Path, count: int, images: Path) -> Iterator[tuple[list[Path], str]]:
    """Makes ``out/site-1`` .. ``out/site-<count>``, all of them or, when the block fails, none.

    Args:
        out: folder for the site folders; made when missing.
        count: S, at least 1.
        images: folder of the images, which stay where they are.

    Yields:
        the S folders to write into, each with a folder ``truth``, and what their cards say as ``image_root``.
    """
    images, out = images.resolve(), out.resolve()
    image_root = root_in_card(images, out / "site-1", out.parent)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=out) as partial:
        folders = [Path(partial) / f"site-{s + 1}" for s in range(count)]
        for folder in folders:
            (folder / "truth").mkdir(parents=True)
        yield folders, image_root
        for folder in folders:
            os.rename(folder, out / folder.name)
