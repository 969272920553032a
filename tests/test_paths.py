import pathlib

import pytest

from tftrain import paths
from tftrain.errors import UserError


def test_home_is_put_in_and_an_absent_path_taken(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert paths.given("run_dir", "~/runs") == pathlib.Path("/home/someone/runs")
    assert paths.given("run_dir", pathlib.Path("absent/folder")) == pathlib.Path("absent/folder")


@pytest.mark.parametrize(
    "value, expected",
    [
        ("", "--dataset=: should not be empty"),
        ("~nobody-of-this-name/set", "--dataset=~nobody-of-this-name/set: Could not determine home directory"),
        ("a" * 300, "a: File name too long"),
    ],
)
def test_what_no_file_can_have_is_refused_in_one_line(value, expected):
    with pytest.raises(UserError) as caught:
        paths.given("dataset", value)
    assert expected in str(caught.value)
