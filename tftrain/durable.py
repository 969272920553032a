"""Files that are on disk whole or not at all, whatever stops the machine."""

import contextlib
import errno
import os
import pathlib
import stat

# What file systems say that cannot flush a folder; there is nothing else to be done there.
_CANNOT_FLUSH = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EACCES)


@contextlib.contextmanager
def writing(path: pathlib.Path):
    """Open a new file for writing bytes; on leaving it is flushed to the disk. What stands there is not followed."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def replace(path: pathlib.Path, content: bytes) -> None:
    """Write a file's whole content, in place of what it held."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with writing(temporary) as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush_folder(folder: pathlib.Path) -> None:
    """Flush a folder's list of names to the disk: a rename is safe only then."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_FLUSH:
            raise


@contextlib.contextmanager
def reading(path: pathlib.Path):
    """Open a regular file for reading bytes: a pipe or a device, which may never end, is refused.

    Raises:
      OSError: it is absent, cannot be read, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe would wait for a writer
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with open(descriptor, "rb") as file:
        yield file


def read(path: pathlib.Path, limit: int) -> bytes:
    """A file's whole content.

    Raises:
      OSError: as for `reading`, or the file is larger than `limit` bytes.
    """
    with reading(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"more than {limit:,} bytes", str(path))
    return content


def free_bytes(folder: pathlib.Path) -> int | None:
    """Bytes that may still be written where the folder stands; None where the file system does not say."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize if found.f_blocks else None
