import numpy as np
from result_factories import PREPARED

from fedmend.records.package_files import write_package
from fl_components.cli import main

ABOUT = {
    "name": "run-1",
    "phantom": True,
    "kind": "multilabel",
    "classes": ["edema"],
    "network": {"name": "resnet_narrow"},
    "preprocessing": PREPARED.of_package("multilabel"),
    "thresholds": {},
}


def test_a_card_is_written_beside_the_package_or_where_one_wants_it(tmp_path, capsys):
    write_package(tmp_path / "run-1.fedmend", ABOUT, {"a": np.ones(1, np.float32)})
    names = [f"run-1-card{suffix}" for suffix in (".json", ".md", ".html")]
    for out, words in ((tmp_path, []), (tmp_path / "cards", ["--out", str(tmp_path / "cards")])):
        assert main(["card", str(tmp_path / "run-1.fedmend"), *words]) == 0
        assert capsys.readouterr().out.splitlines() == [str(out / name) for name in names]
        assert all((out / name).is_file() for name in names)


def test_a_folder_without_a_package_has_no_card(tmp_path, capsys):
    assert main(["card", str(tmp_path)]) == 1
    assert "package: expected one .fedmend in" in capsys.readouterr().err


def test_the_numbers_of_an_evaluation_come_from_the_folder_that_is_named(tmp_path, capsys):
    write_package(tmp_path / "run-1.fedmend", ABOUT, {"a": np.ones(1, np.float32)})
    (tmp_path / "nothing").mkdir()
    assert main(["card", str(tmp_path / "run-1.fedmend"), "--evaluation", str(tmp_path / "nothing")]) == 1
    assert "--evaluation, evaluation.json: expected the evaluation.json that fedmend" in capsys.readouterr().err
    assert not (tmp_path / "run-1-card.md").exists()
