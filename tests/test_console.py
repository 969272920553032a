import pytest

from tftrain import console


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (42.4, "42 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7620, "2 h 07 min"),
    ],
)
def test_durations(seconds, text):
    assert console.duration(seconds) == text


def test_messages_go_to_standard_error_alone(capfd):
    console.say("hello")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "hello\n")


def test_progress_without_a_terminal_is_a_line_now_and_then(capfd, monkeypatch):
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(console.time, "monotonic", lambda: float(next(clock)))
    progress = console.Progress("epoch 1/2", 100)
    for done in range(10, 101, 10):
        progress.update(done, "loss 0.5")
    progress.close()
    lines = capfd.readouterr().err.splitlines()
    assert 1 <= len(lines) < 9
    assert all(line.startswith("epoch 1/2: ") and "/100 steps, loss 0.5" in line for line in lines)
    assert lines[-1].endswith("left")


def test_quick_work_shows_no_progress(capfd):
    progress = console.Progress("evaluation", 3)
    for done in (1, 2, 3):
        progress.update(done)
    progress.close()
    assert capfd.readouterr().err == ""
