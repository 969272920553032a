"""What a run does when it is told to end: SIGINT (Ctrl-C), SIGTERM, and SIGUSR1, which Slurm can send before SIGTERM.

The first SIGINT or SIGTERM ends a command at once while there is nothing to lose (start-up, the first compilation),
and, once it trains, after the steps under way and a checkpoint; a second one ends it at once. SIGUSR1 saves a
checkpoint, and training goes on: the time until SIGTERM is used.

Python runs signal handlers in its main thread, between two of its instructions, and TensorFlow can hold that thread
for minutes; so a thread of a command's own reads the numbers of signals from a pipe, which the system's handler fills.
"""

import os
import signal
import sys
import threading

_ENDING = (signal.SIGINT, signal.SIGTERM)
_requested: int | None = None
_save = False
_deferred = False
_is_command = False
_before: dict = {}  # a library's caller's own handlers


class Interrupted(KeyboardInterrupt):
    """Training was told to end, and has saved; in a notebook, it is what an interruption is.

    Attributes:
      name: the signal's.
      status: the exit status that belongs to it.
    """

    def __init__(self, number: int):
        self.name, self.status = signal.Signals(number).name, 128 + number
        super().__init__(self.name)


def install() -> None:
    """Handle signals from now on, for a command; a library's caller keeps its own handlers but during training."""
    global _is_command
    _is_command = True
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for number in (*_ENDING, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)  # the pipe gets a number for signals that have a handler alone
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading,), name="signals", daemon=True).start()


def defer() -> None:
    """From now on there is something to lose: the first signal waits for `requested` to be asked."""
    global _deferred
    if _deferred:
        return
    if not _is_command:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (*_ENDING, signal.SIGUSR1):
            _before[number] = signal.signal(number, lambda number, _: _note(number))
    _deferred = True


def release() -> None:
    """Training is over: signals do again what they did before `defer`."""
    global _deferred, _requested, _save
    for number, handler in _before.items():
        signal.signal(number, handler)
    _before.clear()
    _deferred, _requested, _save = False, None, False


def requested() -> int | None:
    """The number of the signal that asks for the end; None: none does."""
    return _requested


def check() -> None:
    """Raise Interrupted where a signal asks for the end; for moments when there is nothing to save."""
    if _requested is not None:
        raise Interrupted(_requested)


def take_save_request() -> bool:
    """Whether SIGUSR1 came since the last call."""
    global _save
    asked, _save = _save, False
    return asked


def _watch(reading: int) -> None:
    while True:
        for number in os.read(reading, 64):
            _note(number)


def _note(number: int) -> None:
    global _requested, _save
    if number == signal.SIGUSR1:
        _save = True
    elif number in _ENDING:
        if _deferred and _requested is None:
            _requested = number
        elif _is_command:
            name = signal.Signals(number).name
            os.write(2, f"{chr(10) * sys.stderr.isatty()}ended at once by {name}\n".encode())
            os._exit(128 + number)
        else:
            raise KeyboardInterrupt
