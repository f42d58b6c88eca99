"""Files in the format of MedMNIST, a few kilobytes large."""

import numpy as np

SIZES = {"train": 40, "val": 10, "test": 20}


def make_medmnist(file, *, classes=4, size=8, color=False, several=False, sizes=SIZES, **arrays):
    """Writes a file whose images carry their class as a grey level; image i has the class i modulo C.

    Args:
        file: where to.
        classes: C.
        size: edge length.
        color: images in colour.
        several: labels (N, C), where an image also has the class after its own if its number is even.
        sizes: split → number of images.
        arrays: other arrays in the place of these, None for none.
    """
    content = {}
    for seed, (split, number) in enumerate(sizes.items()):
        own = np.arange(number) % classes
        noise = np.random.default_rng(seed).integers(0, 30, (number, size, size, *([3] if color else [])))
        shape = (-1, *[1] * (noise.ndim - 1))
        content[f"{split}_images"] = (noise + (own * 200 // classes).reshape(shape)).astype(np.uint8)
        if several:
            labels = np.eye(classes, dtype=np.uint8)[own]
            labels[::2] |= np.eye(classes, dtype=np.uint8)[(own[::2] + 1) % classes]
        else:
            labels = own[:, None].astype(np.uint8)
        content[f"{split}_labels"] = labels
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **{k: v for k, v in {**content, **arrays}.items() if v is not None})
    return file
