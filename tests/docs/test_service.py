"""The service of docs/service.md, started as the page says and asked over HTTP."""

import http.client
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from manual_pages import blocks_of, code_of, commands_in
from PIL import Image
from sklearn.datasets import load_digits

import gradscore

pytestmark = pytest.mark.slow

IMAGES = np.round(load_digits().images[:40] * (255 / 16)).astype(np.uint8)
STARTED = commands_in(blocks_of("service.md", "sh")[0].text)[0]


@pytest.fixture(scope="module")
def port(small_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("service")
    (folder / "serve.py").write_text(code_of("service.md"))
    program, script, _, _ = STARTED
    assert (program, script) == ("python", "serve.py")
    with subprocess.Popen(
        [sys.executable, script, str(small_bundle), "0"],
        cwd=folder,
        env=os.environ | {"GRADSCORE_TRUST_CODE": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as service:
        yield int(re.fullmatch(r"listening on port (\d+)\n", service.stdout.readline())[1])
        service.kill()


def asked(port: int, method: str, body: bytes = b"", **headers: str) -> tuple[int, dict]:
    """The status and the content of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, "/", body, headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "png")
    return stream.getvalue()


def test_answers_are_those_of_the_scorer(port: int, small_bundle: Path) -> None:
    """Forty requests at once, each of which has the row of its own image."""
    table = gradscore.Scorer.load(small_bundle, trust_code=True)(list(IMAGES))
    with ThreadPoolExecutor(8) as people:
        answers = list(people.map(lambda image: asked(port, "POST", png(Image.fromarray(image))), IMAGES))
    assert [status for status, _ in answers] == [200] * 40
    assert [row["prediction"] for _, row in answers] == table["prediction"].tolist()
    assert [row["decision"] for _, row in answers] == table["decision"].tolist()
    np.testing.assert_allclose([row["score_wrong"] for _, row in answers], table["score_wrong"], rtol=1e-3, atol=1e-3)


REFUSED = {
    "no image": (b"no image", 422, "not an image"),
    "an image cut short": (png(Image.fromarray(IMAGES[0]))[:60], 422, "not an image"),
    "a palette": (png(Image.fromarray(IMAGES[0]).convert("P")), 422, "wanted a grey or an RGB image, got P"),
    "nothing": (b"", 413, "wanted an image of 1 to"),
}


@pytest.mark.parametrize(("body", "status", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_image_is_refused(port: int, body: bytes, status: int, words: str) -> None:
    got, content = asked(port, "POST", body)
    assert (got, words in content["error"]) == (status, True)


def test_a_large_request_is_refused_unread(port: int) -> None:
    assert asked(port, "POST", **{"Content-Length": str(2**40)})[0] == 413


def test_goes_on_after_a_refusal(port: int) -> None:
    assert asked(port, "POST", png(Image.fromarray(IMAGES[0])))[0] == 200
    assert asked(port, "GET") == (200, {"alive": True, "waiting": 0})
