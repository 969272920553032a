import subprocess
import sys

import pytest

from tests import helpers
from tftrain import dashboard
from tftrain.errors import UserError


def run(*arguments):
    code = ["-m", "tftrain.dashboard", *map(str, arguments)]
    return subprocess.run([sys.executable, *code], cwd=helpers.ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("deep", ["", "train", "cnn/20260101-000000/tensorboard/train", "runs/cnn/a/tensorboard/test"])
def test_a_folder_with_runs_is_taken(tmp_path, deep):
    (tmp_path / deep).mkdir(parents=True, exist_ok=True)
    (tmp_path / deep / "events.out.tfevents.1.host").touch()
    assert dashboard.find(tmp_path) == tmp_path


def test_a_folder_without_curves_is_refused(tmp_path):
    with pytest.raises(UserError, match="no run below it has curves"):
        dashboard.find(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        dashboard.find(tmp_path / "absent")


def test_a_mistake_gets_one_line(tmp_path):
    for arguments in ([tmp_path / "absent"], [], [tmp_path, "--port=x"], [tmp_path, "--port=70000"]):
        found = run(*arguments)
        assert found.returncode == 2
        assert found.stderr.startswith("error: ") and found.stderr.count("\n") == 1, found.stderr


def test_tensorboard_listens_on_this_machine_alone(tmp_path):
    assert "--host=localhost" in dashboard.arguments(tmp_path, 0)
    assert f"--logdir={tmp_path}" in dashboard.arguments(tmp_path, 0)
