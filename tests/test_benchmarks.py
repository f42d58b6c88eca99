"""The benchmarks can be started, and the table of privacy says what its rows say."""

import importlib.util
import sys

import pytest
from factories import ROOT

BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))


def load(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_privacy_has_the_epsilon_of_the_site_that_spent_most_and_paired_differences(capsys):
    rows = [
        {"noise": 1.0, "seed": s, "auc": auc, "bacc": 0.5, "told": {"a": {"epsilon": e, "delta": 1e-4}}}
        for s, auc, e in ((0, 0.70, 3.0), (1, 0.74, 4.0))
    ]
    plain = [{"noise": 0.0, "seed": s, "auc": auc, "bacc": 0.6, "told": {}} for s, auc in ((1, 0.88), (0, 0.9))]
    load("privacy").print_table([*rows, *plain])
    lines = capsys.readouterr().out.splitlines()
    # 72 and, of 70 and 74, sqrt(2^2 + 2^2) = 2.8; differences -20 and -14, so -17 with 12.706 (t, 1 degree) * 3
    assert lines[1:] == [
        "| 0 | no privacy | 89.0 ± 1.4 |  | 60.0 ± 0.0 |",
        "| 1 | 4.0 | 72.0 ± 2.8 | -17.0 (-55.1 to +21.1) | 50.0 ± 0.0 |",
    ]


@pytest.mark.parametrize("name", [file.stem for file in BENCHMARKS])
def test_every_benchmark_says_how_it_is_called(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        load(name).main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage:")
