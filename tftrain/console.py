"""What a person sees on standard error: messages, and the progress of long work."""

import sys
import time

from tqdm import tqdm

# Seconds between two plain lines where standard error is no terminal.
PLAIN_INTERVAL = 10.0


def say(message: str = "") -> None:
    """Write one message line to standard error, above a progress bar where one is drawn."""
    tqdm.write(message, file=sys.stderr)
    sys.stderr.flush()


class Progress:
    """A progress bar on a terminal, a plain line every few seconds elsewhere.

    Args:
      title: what is under way, such as "epoch 1/5".
      total: the number of units in all.
      unit: the unit's name in the plural, such as "steps".
    """

    def __init__(self, title: str, total: int, unit: str = "steps"):
        self._title, self._total, self._unit = title, total, unit
        self._done = 0
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(
                total=total,
                desc=title,
                unit=" " + unit,
                file=sys.stderr,
                leave=False,
                dynamic_ncols=True,
                bar_format="{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{unit} [{remaining} left{postfix}]",
            )
        # The first update closes the start-up (compilation, say), which tells nothing of the pace.
        self._paced_from = None
        self._last_line = time.monotonic()

    def update(self, done: int, details: str = "") -> None:
        """Show that `done` units are finished; `details` is a short text such as "loss 0.31"."""
        advance, self._done = done - self._done, done
        if self._paced_from is None:
            self._paced_from = (done, time.monotonic())
        if self._bar is not None:
            self._bar.set_postfix_str(details, refresh=False)
            self._bar.update(advance)
            if self._paced_from[0] == done:
                self._bar.unpause()
                self._bar.start_t, self._bar.initial = time.time(), done
        elif done < self._total and time.monotonic() - self._last_line >= PLAIN_INTERVAL:
            self._last_line = time.monotonic()
            first, since = self._paced_from
            if done > first:
                left = (self._last_line - since) / (done - first) * (self._total - done)
                details += (", " if details else "") + f"{duration(left)} left"
            say(f"{self._title}: {done}/{self._total} {self._unit}" + (f", {details}" if details else ""))

    def close(self) -> None:
        """Remove the bar; the caller says the result."""
        if self._bar is not None:
            self._bar.close()


def duration(seconds: float) -> str:
    """Seconds as "42 s", "3 min 05 s" or "2 h 07 min"."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02} min"
