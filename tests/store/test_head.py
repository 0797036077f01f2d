import numpy as np
import pytest

from gradscore.errors import StoreError
from gradscore.models.last_layer import Head
from gradscore.store.head import read_head, write_head

HEAD = Head(weight=np.arange(6.0).reshape(2, 3).T, bias=np.array([1.0, 2.0, 3.0]))


def test_comes_back(tmp_path):
    write_head(tmp_path, HEAD)
    found = read_head(tmp_path)
    np.testing.assert_array_equal(found.weight, HEAD.weight)
    np.testing.assert_array_equal(found.bias, HEAD.bias)


DAMAGED = {"empty": b"", "no safetensors": b"x" * 40}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged(tmp_path, content):
    (tmp_path / "head.safetensors").write_bytes(content)
    with pytest.raises(StoreError, match="last layer cannot be read"):
        read_head(tmp_path)


def test_missing(tmp_path):
    with pytest.raises(StoreError, match="extract into another folder"):
        read_head(tmp_path)
