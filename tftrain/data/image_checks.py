"""Checks that files are images, in parallel, and remembers what it found between runs.

What was found stands in one file a folder below $XDG_CACHE_HOME/tftrain (default ~/.cache), with each file's size and
time of change: a file that has another of either is read again. The first line is the checksum of the rest, so that a
damaged file is as good as none.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import stat
import tempfile

import PIL

from tftrain import console, paths
from tftrain.data import decoding

# Larger files are refused unread: MAX_PIXELS pixels take less in every format.
MAX_BYTES = 2**29
# Files that one task of a thread checks.
_CHUNK = 32
_VERSION = 1

# What is known of a file: (width, height, channels), or why it is no image.
Finding = tuple[int, int, int] | str


def check(root: str, files: list[str]) -> list[Finding]:
    """Check the files below a folder, or recall what they were found to be.

    Args:
      root: the folder.
      files: their paths below it.

    Returns:
      what each file is, in their order.
    """
    memory = _memory_file(root)
    known = _recall(memory)
    findings: dict[str, Finding] = {}
    stamps: dict[str, tuple[int, int]] = {}
    unknown = []
    for file in files:
        try:
            status = os.stat(os.path.join(root, file))
        except OSError as error:
            findings[file] = _reason(error)
            continue
        if not stat.S_ISREG(status.st_mode):
            findings[file] = "not a regular file"
            continue
        stamps[file] = status.st_size, status.st_mtime_ns
        if known.get(file, [])[:2] == list(stamps[file]):
            finding = known[file][2]
            findings[file] = tuple(finding) if isinstance(finding, list) else finding
        else:
            unknown.append(file)
    if unknown:
        try:
            _check_all(root, unknown, findings)
        finally:
            _remember(memory, {file: [*stamps[file], findings[file]] for file in stamps if file in findings})
    return [findings[file] for file in files]


def _check_all(root: str, files: list[str], findings: dict[str, Finding]) -> None:
    """Read the files with all cores (Pillow's decoders leave other threads running) and put down what they are."""
    progress = console.Progress("checking images", len(files), "files")
    pool = concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    chunks = [files[i : i + _CHUNK] for i in range(0, len(files), _CHUNK)]
    done = 0
    try:
        for chunk, found in zip(chunks, pool.map(lambda chunk: [_inspect(root, file) for file in chunk], chunks)):
            findings.update((file, finding) for file, finding in zip(chunk, found))
            done += len(chunk)
            progress.update(done)
    finally:
        pool.shutdown(cancel_futures=True)
        progress.close()


def _inspect(root: str, file: str) -> Finding:
    try:
        return decoding.inspect(read(os.path.join(root, file)))
    except decoding.ImageError as error:
        return str(error)
    except OSError as error:
        return _reason(error)


def read(path: str) -> bytes:
    """A file's bytes.

    Raises:
      OSError: it cannot be read.
      ImageError: it has more than MAX_BYTES.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise decoding.ImageError(f"larger than {MAX_BYTES:,} bytes")
        return file.read()


def _reason(error: OSError) -> str:
    return f"cannot be read ({error.strerror or error})"


def _memory_file(root: str) -> pathlib.Path:
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:32]
    return paths.cache("images") / f"{name}.json"


def _recall(memory: pathlib.Path) -> dict[str, list]:
    """[size, time of change, finding] by file, as `_remember` wrote it; empty where that is absent or damaged."""
    try:
        data = memory.read_bytes()
    except OSError:
        return {}
    checksum, _, body = data.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        return {}
    content = json.loads(body)
    return content["files"] if content["made_by"] == _maker() else {}


def _remember(memory: pathlib.Path, files: dict[str, list]) -> None:
    """Write what was found, whole or not at all; where that cannot be, the next run checks again."""
    # What the system refused may be granted without a change to the file.
    files = {file: entry for file, entry in files.items() if not str(entry[2]).startswith("cannot be read")}
    body = json.dumps({"made_by": _maker(), "files": files}).encode("ascii")
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=memory.parent, delete=False) as temporary:
            temporary.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        os.replace(temporary.name, memory)
    except OSError:
        pass


def _maker() -> list:
    """What findings depend on besides the file."""
    return [_VERSION, PIL.__version__, decoding.MAX_PIXELS, MAX_BYTES]
