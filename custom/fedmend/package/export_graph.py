"""A package's model as one file for other runtimes: ONNX, or a program of ``torch.export``.

Both take pixels (B, 1 or 3, S, S) float32 in 0..1, of any batch size, and give probabilities: scaling by mean and
deviation, network and temperature are inside. Reading, window and resizing are not; what is to be done is in the file's
metadata as it is in the package.
"""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fedmend.basics.files import make_folder, write_atomically
from fedmend.errors import FedMendError, not_installed
from fedmend.package.opened import OpenedPackage
from fedmend.package.probabilities import Asked, facts

INPUT, OUTPUT = "pixels", "probabilities"
TOLERANCE = 1e-4  # of probabilities, in another runtime
BATCHES = (1, 7)  # tried before a file gets its name


def described(package: OpenedPackage) -> dict[str, str]:
    """What somebody needs beside the graph: name → text, numbers and lists as JSON."""
    about = {"name": package.name, "digest": package.digest, **facts(package), "use": "not for clinical use"}
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()}


def write_torch(package: OpenedPackage, out: Path) -> None:
    """Writes the program, with :func:`described` as its extra file ``fedmend.json``.

    Args:
        package: the model.
        out: a new file, ``.pt2``.

    Raises:
        FedMendError: the network cannot be exported.
    """
    make_folder(out.parent)
    program = _program(package)
    with write_atomically(out) as temporary, _quiet():
        content = io.BytesIO()  # writing to a file, PyTorch ends the process where the disk is full
        torch.export.save(program, content, extra_files={"fedmend.json": json.dumps(described(package), indent=2)})
        temporary.write_bytes(content.getbuffer())
        _same(package, lambda pixels: program.module()(pixels))


def write_onnx(package: OpenedPackage, out: Path) -> None:
    """Writes the model as ONNX, :func:`described` in ``metadata_props``, once onnxruntime gives its probabilities.

    Args:
        package: the model.
        out: a new file, ``.onnx``.

    Raises:
        FedMendError: a package is missing, or the network cannot be exported.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  # by torch.onnx
    except ImportError as e:
        raise FedMendError(f"export: {not_installed(str(e.name), 'onnx')}") from None

    make_folder(out.parent)
    program = _program(package)
    with write_atomically(out) as temporary, _quiet():
        made = torch.onnx.export(
            program, input_names=[INPUT], output_names=[OUTPUT], dynamo=True, external_data=False, verbose=False
        )
        assert made is not None
        model = made.model_proto
        _without_places(model)
        onnx.helper.set_model_props(model, described(package))
        onnx.checker.check_model(model)
        temporary.write_bytes(model.SerializeToString())
        session = onnxruntime.InferenceSession(temporary.read_bytes(), providers=["CPUExecutionProvider"])
        _same(package, lambda pixels: torch.from_numpy(session.run([OUTPUT], {INPUT: pixels.numpy()})[0]))


def _without_places(model: Any) -> None:
    """Takes away what the exporter says of its own work, which names folders of this machine."""
    del model.graph.value_info[:]
    for part in (model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output, *model.functions):
        del part.metadata_props[:]
        part.ClearField("doc_string")
    for tensor in (*model.graph.input, *model.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_param = "batch"


@torch.no_grad()
def _program(package: OpenedPackage) -> torch.export.ExportedProgram:
    asked = Asked(package).eval()
    batch = torch.export.Dim("batch", min=1)
    try:
        with _quiet():
            program = torch.export.export(asked, (asked.example(2),), dynamic_shapes=({0: batch},))
    except Exception as e:  # many types, for whatever a network does that no graph can hold
        raise FedMendError(
            f"export: expected a network that torch.export takes, got {package.info['network']['name']}"
            f" ({type(e).__name__})"
        ) from None
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names folders of this machine
    return program


@torch.no_grad()
def _same(package: OpenedPackage, run: Any) -> None:
    """Whether another runtime gives the probabilities of the package's network."""
    asked = Asked(package).eval()
    for batch in BATCHES:
        wanted = asked(pixels := asked.example(batch))
        worst = float((run(pixels) - wanted).abs().max())
        if not worst <= TOLERANCE:
            raise FedMendError(f"export: expected probabilities within {TOLERANCE:g} of the package's, got {worst:.1g}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the words of the exporters, which are for people who work on them."""
    names = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
    before = {name: logging.getLogger(name).level for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for name in names:
                logging.getLogger(name).setLevel(logging.ERROR)
            yield
        finally:
            for name, level in before.items():
                logging.getLogger(name).setLevel(level)
