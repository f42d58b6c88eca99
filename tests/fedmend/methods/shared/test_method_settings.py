"""Settings of methods: the fields of a dataclass, of which each is checked by its annotation."""

from dataclasses import dataclass, field
from typing import Annotated

import pytest
from factories import refused

from fedmend.method import LocalMethod
from fedmend.methods.shared.settings import Count, Settings, Share, one_of


@dataclass(kw_only=True, eq=False)
class Parent(Settings, LocalMethod):
    share: Share = 0.5
    kind = "plain"


@dataclass(kw_only=True, eq=False)
class Child(Parent):
    turns: Count = field()
    kind: Annotated[str, one_of("plain", "soft")] = "plain"


def test_a_method_takes_the_settings_of_its_parent_and_its_own_by_name():
    made = Child(turns=2, share=1, kind="soft")
    assert (made.turns, made.share, made.kind) == (2, 1, "soft")
    with pytest.raises(TypeError, match="turns"):
        Child()
    with pytest.raises(TypeError, match="kind"):
        Parent(kind="soft")


def test_methods_with_the_same_settings_are_two_methods():
    assert len({Child(turns=2), Child(turns=2)}) == 2


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"turns": 0}, "turns: expected at least 1, got 0"),
        ({"share": float("nan")}, "share: expected 0 to 1, got nan"),
        ({"kind": "hard"}, "kind: expected one of ['plain', 'soft'], got 'hard'"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_name(setting, sentence):
    with refused(f"job variable {sentence}"):
        Child(**{"turns": 1, **setting})
