"""A local S3-compatible server that tests start: it keeps a log, and answers as it is told to."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}

Answer = Callable[[str, str], tuple[int, str, bytes] | None]
"""From the method and path of a request to status, code and body of an answer; None leaves it to the storage."""


class Server:
    """The server, whose address is `url`.

    Attributes:
        log: method and path of every request that changes something, in order.
        answer: what is asked first.
        is_lost: by method and path, whether a request is carried out and answered as if it were not.
    """

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._app = DomainDispatcherApplication(create_backend_app)
        self.log: list[tuple[str, str]] = []
        self.answer: Answer = lambda method, path: None
        self.is_lost: Callable[[str, str], bool] = lambda method, path: False
        self._server = make_server("127.0.0.1", 0, self._respond, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def client(self) -> Any:
        return boto3.client(
            "s3", endpoint_url=self.url, aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
        )

    @contextmanager
    def losing(self, is_lost: Callable[[str, str], bool]) -> Iterator[None]:
        """Has requests carried out and answered as if they were not."""
        self.is_lost = is_lost
        try:
            yield
        finally:
            self.is_lost = lambda method, path: False

    @contextmanager
    def answering(self, answer: Answer) -> Iterator[None]:
        self.answer = answer
        try:
            yield
        finally:
            self.answer = lambda method, path: None

    def _respond(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if method in ("PUT", "DELETE", "POST"):
            self.log.append((method, path))
        given = self.answer(method, path)
        if self.is_lost(method, path):
            b"".join(self._app(environ, lambda *ignored: lambda content: None))
            environ["CONTENT_LENGTH"] = "0"  # its content was read
            given = 503, "SlowDown", b""
        if given is None:
            found: Iterable[bytes] = self._app(environ, start_response)
            return found
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status, code, body = given
        content = body or f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        start_response(f"{status} {code}", [("Content-Type", "application/xml"), ("Content-Length", str(len(content)))])
        return [content]


class Bucket:
    """A bucket of the server, as a second S3 client sees it."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name, self._client = server, name, server.client()
        self._client.create_bucket(Bucket=name)

    def address(self, key: str) -> str:
        return f"s3://{self.name}/{key}"

    def put(self, key: str, content: bytes) -> str:
        self._client.put_object(Bucket=self.name, Key=key, Body=content)
        return self.address(key)

    def get(self, key: str) -> bytes:
        found: bytes = self._client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return found

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self.name, Key=key)

    def keys(self, prefix: str = "") -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def content(self, prefix: str) -> dict[str, bytes]:
        return {key.removeprefix(f"{prefix}/"): self.get(key) for key in self.keys(f"{prefix}/")}
