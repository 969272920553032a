"""Whether a checkpoint's state is one that a training can go on from.

A checksum tells a damaged state from a whole one; it does not tell who wrote it. What training reads of a run directory
that came from somewhere else is checked here, before any of it is used.
"""

import math

from tftrain.errors import UserError

# Positions are 64-bit integers in TensorFlow.
_MAX_STEPS = 1 << 53


def _count(value) -> bool:
    return type(value) is int and 0 <= value < _MAX_STEPS


def _number(value) -> bool:
    return type(value) in (int, float)


def _amount(value) -> bool:
    return _number(value) and 0 <= value < math.inf


def _positive(value) -> bool:
    return _amount(value) and value > 0


def _list_of(check):
    return lambda value: isinstance(value, list) and all(map(check, value))


def _object(**checks):
    return lambda value: (
        isinstance(value, dict) and all(name in value and ok(value[name]) for name, ok in checks.items())
    )


def _optional(check):
    return lambda value: value is None or check(value)


_EPOCH = _object(seconds=_amount, examples=_count, steady_seconds=_amount)
_CHECKS = {
    "steps_per_epoch": lambda value: _count(value) and value > 0,
    "batch_size": lambda value: _count(value) and value > 0,
    "offset": lambda value: type(value) is int and abs(value) < _MAX_STEPS,
    "seconds": _amount,
    "skipped": _list_of(_count),
    # An evaluation's loss may be infinite or no number.
    "best": _optional(_object(score=_number, step=_count, epochs_since=_count)),
    "loss_scale": _optional(_object(scale=_positive, good_steps=_count, overflows=_count)),
    "monitor": _object(
        steady=lambda value: isinstance(value, list) and len(value) == 2 and _count(value[0]) and _amount(value[1]),
        epoch=_EPOCH,
        best_accuracy=_amount,
        seconds_to_first_step=_optional(_amount),
    ),
}


def check(checkpoint) -> None:
    """Refuse a checkpoint whose state no training has written.

    Args:
      checkpoint: as from `Checkpoints.latest`.

    Raises:
      UserError: which names what is missing or impossible.
    """
    for name, possible in _CHECKS.items():
        if name not in checkpoint.state or not possible(checkpoint.state[name]):
            raise _refused(checkpoint, name)
    if not _count(checkpoint.step) or checkpoint.step < checkpoint.state["offset"]:
        raise _refused(checkpoint, "step or offset")


def check_best(checkpoint) -> None:
    """Refuse what best/ holds where it has no score.

    Raises:
      UserError: see `check`.
    """
    if not _number(checkpoint.state.get("score")):
        raise _refused(checkpoint, "score")


def _refused(checkpoint, name: str) -> UserError:
    return UserError(
        f"checkpoint {checkpoint.path}: state.json: {name} is missing or is not what a training writes; "
        "remove the checkpoint, or give another --run_dir"
    )
