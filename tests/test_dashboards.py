import pytest

from tests import helpers
from tftrain.dashboards import Dashboards


def test_scalars_are_read_back_by_tensorboard(tmp_path):
    dashboards = Dashboards(tmp_path)
    for step in (1, 5, 11):
        dashboards.scalars("train", step, {"loss": 1 / step, "accuracy": 0.5})
    dashboards.scalars("test", 11, {"loss": 2.0})
    dashboards.flush()
    found = helpers.curves(tmp_path / "train")
    assert set(found) == {"loss", "accuracy"}
    assert [step for step, _ in found["loss"]] == [1, 5, 11]
    assert [value for _, value in found["loss"]] == pytest.approx([1, 1 / 5, 1 / 11])
    assert helpers.curves(tmp_path / "test") == {"loss": [(11, 2.0)]}
    dashboards.close()
