import numpy as np
import pytest
import tensorflow as tf

from tests import helpers
from tftrain import profile, speed


def test_shares_are_of_the_time_since_the_last_call():
    now = [100.0]
    shares = speed.Shares(clock=lambda: now[0])
    shares.add("waiting", 1.0)
    shares.add("waiting", 1.0)
    shares.add("saving", 4.0)
    now[0] = 110.0
    assert shares.take() == pytest.approx({"waiting_share": 0.2, "saving_share": 0.4, "evaluation_share": 0.0})
    now[0] = 111.0
    assert shares.take() == {"waiting_share": 0.0, "saving_share": 0.0, "evaluation_share": 0.0}
    with pytest.raises(KeyError):
        shares.add("sleeping", 1.0)


def test_resident_memory_follows_what_is_held():
    before = speed.memory()["memory/resident_mib"]
    held = np.ones(8 * 2**20)
    assert speed.memory()["memory/resident_mib"] - before == pytest.approx(held.nbytes / 2**20, abs=16)


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_norm_of_all_variables(replicas):
    with helpers.start(replicas).strategy.scope():
        variables = [tf.Variable([3.0, 0.0]), tf.Variable([[4.0]]), tf.Variable(tf.constant(12.0, tf.bfloat16))]
    assert float(speed.norm(variables)) == pytest.approx(13.0)


def limits(traced: profile.Profile, total: int, wanted: int) -> list[int]:
    """How many steps run at once, from step to step, without a trace being taken."""
    step, found = 0, []
    while step < total:
        found.append(min(traced.limit(step, wanted), total - step))
        step += found[-1]
    return found


def test_traced_steps_run_one_at_a_time(tmp_path):
    assert limits(profile.Profile((4, 6), tmp_path, 20), 20, 10) == [3, 1, 1, 1, 10, 4]
    assert limits(profile.Profile(None, tmp_path, 20), 20, 10) == [10, 10]


@pytest.mark.parametrize(
    "steps, done, said",
    [
        ((21, 30), 0, "none: --profile_steps begins at 21, and the run has 20 steps"),
        ((5, 30), 10, "none: --profile_steps begins at 5, and 10 steps are done"),
        ((15, 30), 0, "steps 15 to 20: the run has no more than that"),
    ],
)
def test_a_range_beyond_the_run_is_said(tmp_path, capsys, steps, done, said):
    traced = profile.Profile(steps, tmp_path, 20, done)
    assert said in capsys.readouterr().err.splitlines()[0]
    traced.stop()
    assert not list(tmp_path.iterdir())


def test_a_trace_is_written_once_its_last_step_is_done(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(profile, "PLUGIN", "a-plugin-that-is-not-installed")
    traced = profile.Profile((2, 3), tmp_path, 20)
    multiply = tf.function(lambda x: tf.matmul(x, x))
    for step in range(6):
        traced.after(step)
        with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
            multiply(tf.ones([8, 8]))
    (trace,) = (tmp_path / "plugins" / "profile").glob("*/*.xplane.pb")
    assert b"MatMul" in trace.read_bytes()
    assert "pip install a-plugin-that-is-not-installed" in capsys.readouterr().err
