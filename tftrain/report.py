"""report.html of a run: one file that holds its curves, results, mistakes and configuration, and loads nothing.

python -m tftrain.report RUN writes it again.
"""

import base64
import json
import pathlib
import re
import sys

import jinja2
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from tftrain import dashboards, durable, paths, pictures
from tftrain.errors import UserError

NAME = "report.html"
# A curve is drawn with about so many points.
POINTS = 500
# Of a list in the configuration, such as the label names, so many are shown.
LISTED = 200


def write(run: pathlib.Path) -> pathlib.Path:
    """Write report.html from what a run directory holds.

    Args:
      run: has config.json, results.json, tensorboard/, and mistakes.json where something was wrong.

    Returns:
      the file's path.

    Raises:
      UserError: the run has not ended, or a file of it is damaged.
    """
    config, results = _json(run / "config.json"), _json(run / "results.json")
    mistakes = _json(run / "mistakes.json") if (run / "mistakes.json").exists() else []
    events = {name: _Events(run / "tensorboard" / name) for name in ("train", "test")}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template(NAME).render(
        title=f"{config['experiment']}: {run.resolve().name}",
        command=config.get("command", ""),
        results=[(name.replace("_", " "), _shown(value)) for name, value in results.items()],
        curves=_curves(events),
        confusion_matrix=_png(events["test"].image("confusion_matrix")),
        pictures=_png(events["test"].image("worst_mistakes")),
        mistakes=mistakes,
        texts=any("text" in mistake for mistake in mistakes),
        configuration=[
            (part.replace("_", " "), _rows(config[part]))
            for part in ("flags", "chosen", "network", "inputs", "versions", "label_names")
            if config.get(part)
        ],
    )
    path = run / NAME
    durable.replace(path, page.encode("utf-8", "replace"))
    return path


class _Events:
    """What one of TensorBoard's runs holds, by TensorBoard's own reader."""

    def __init__(self, folder: pathlib.Path):
        self._reader = EventAccumulator(str(folder), size_guidance={"tensors": 0})
        self._reader.Reload()
        self._plugins = {
            tag: self._reader.SummaryMetadata(tag).plugin_data.plugin_name for tag in self._reader.Tags()["tensors"]
        }

    def scalars(self, pattern: str) -> dict[str, list[tuple[int, float]]]:
        """The curves whose tag the pattern finds, as (step, value), thinned out; the last point stays."""
        found = {}
        for tag, plugin in self._plugins.items():
            if plugin == "scalars" and re.search(pattern, tag):
                events = self._reader.Tensors(tag)
                kept = events[:: -(-len(events) // POINTS)]
                kept += events[-1:] if kept[-1] is not events[-1] else []
                found[tag] = [(event.step, float(tensor_util.make_ndarray(event.tensor_proto))) for event in kept]
        return found

    def image(self, tag: str) -> bytes | None:
        """The last image of a tag as PNG; None without one."""
        if self._plugins.get(tag) != "images":
            return None
        return tensor_util.make_ndarray(self._reader.Tensors(tag)[-1].tensor_proto)[2]


def _curves(events: dict[str, _Events]) -> list:
    """The charts of the custom-scalars layout that have data: heading, then (name, SVG as a data URL)."""
    found = []
    for heading, charts in dashboards.LAYOUT.items():
        drawn = []
        for name, patterns in charts.items():
            lines = {}
            for run, reader in events.items():
                for pattern in patterns:
                    curves = reader.scalars(pattern)
                    alone = len(patterns) == 1 and len(curves) < 2
                    lines |= {run if alone else tag: points for tag, points in curves.items()}
            if lines:
                drawn.append((name, _url("image/svg+xml", pictures.curves(lines, name).encode())))
        if drawn:
            found.append((heading, drawn))
    return found


def _rows(values) -> list[tuple[str, str]]:
    """A part of config.json as rows of a table."""
    items = values.items() if isinstance(values, dict) else enumerate(values[:LISTED])
    rows = [(str(name), _shown(value)) for name, value in items]
    if len(values) > len(rows):
        rows.append(("…", f"{len(values):,} in all"))
    return rows


def _shown(value) -> str:
    """A value of a JSON file as a person reads it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)[:2000]
    return "" if value is None else str(value)


def _png(content: bytes | None) -> str | None:
    return None if content is None else _url("image/png", content)


def _url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _json(path: pathlib.Path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: not there; a report is of a run that has ended") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}") from None


def main() -> None:
    """Write the report of the run that the command line names."""
    try:
        if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
            raise UserError("usage: python -m tftrain.report RUN")
        print(write(paths.given("RUN", sys.argv[1])))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
