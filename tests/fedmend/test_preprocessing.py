from dataclasses import replace

import numpy as np
import pytest
from factories import refused
from result_factories import PREPARED

from fedmend.basics.checked import checked
from fedmend.data import slices, store
from fedmend.preprocessing import READER, Preprocessing, as_told, is_told


@pytest.mark.parametrize("window", [None, "file", (40.0, 80.0), (0.0, 1e-3)])
def test_what_a_site_tells_comes_back_as_it_was(window):
    prepared = replace(PREPARED, window=window, color=True, modality="MR")
    assert is_told(prepared.told())
    assert as_told(prepared.told()) == prepared
    assert checked(Preprocessing, prepared.described(), "package.json") == prepared


@pytest.mark.parametrize(
    "changed",
    [
        {"patient": np.array(1)},
        {"window": np.array([40.0, -2.0])},
        {"window": np.array([np.nan, 80.0])},
        {"window": np.zeros((2, 64, 64))},
        {"modality": np.array(99)},
        {"color": True},
        {"image_size": "32"},
    ],
)
def test_nothing_else_is_told(changed):
    assert not is_told({**PREPARED.told(), **changed})
    assert not is_told({name: value for name, value in PREPARED.told().items() if name != "window"})
    assert not is_told([PREPARED])


def test_the_steps_are_what_is_done_with_a_file():
    assert replace(PREPARED, modality="MR").steps == PREPARED.steps != replace(PREPARED, window=None).steps


@pytest.mark.parametrize("window", [[40, 0], [40], "brain", 3])
def test_a_file_with_another_window_is_refused(window):
    with refused(
        f"package.json, field window: expected null, 'file' or [centre, width], got another {type(window).__name__}"
    ):
        checked(Preprocessing, {**PREPARED.described(), "window": window}, "package.json")


def test_a_new_format_of_a_store_asks_for_a_new_number_of_the_reader():
    # When one of these fails: the same file gives other pixels? Then raise READER, so that old packages are refused.
    assert (READER, store.STORE_FORMAT, slices.STORE_FORMAT) == (3, 5, 3)
