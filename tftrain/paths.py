"""Paths that a person gives."""

import os
import pathlib

from tftrain.errors import UserError


def given(name: str, value: str | os.PathLike) -> pathlib.Path:
    """The path of the flag --NAME, with "~" replaced by the home directory.

    Raises:
      UserError: it is empty, or no file can have it: it is too long, say, or "~name" names nobody.
    """
    if not os.fspath(value):
        raise UserError(f"--{name}=: should not be empty; leave the flag out, or give a path")
    try:
        path = pathlib.Path(value).expanduser()
        path.exists()  # pathlib hides that a path is absent, and raises the rest
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"--{name}={value}: {getattr(error, 'strerror', None) or error}") from None
    return path


def shown(path: str | os.PathLike) -> str:
    """A path as a message can show it: bytes that are no UTF-8, newlines and other control characters are escaped."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def cache(name: str) -> pathlib.Path:
    """A folder for what is remembered between runs: $XDG_CACHE_HOME/tftrain/NAME (default ~/.cache); not made here."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    base = pathlib.Path(folder) if os.path.isabs(folder) else pathlib.Path(os.path.expanduser("~"), ".cache")
    return base / "tftrain" / name
