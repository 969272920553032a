"""README's example of use as a library runs as it stands."""

import json
import pathlib
import re

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_the_library_example_trains(tmp_path, monkeypatch):
    section = README.read_text(encoding="utf-8").partition("### As a library")[2]
    example = re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1)
    monkeypatch.chdir(tmp_path)
    names = {}
    # One epoch of it takes seconds; twenty steps show as much.
    exec(example.replace("epochs=1", "steps=20"), names)
    (written,) = tmp_path.glob("runs/mine/*/results.json")
    assert json.loads(written.read_text()) == names["results"]
    assert names["results"]["replicas"] == 2
    assert names["results"]["test_examples"] == 2000
