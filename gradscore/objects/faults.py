"""What goes wrong with object storage: whether it may pass, and what it means."""

from __future__ import annotations

import errno
import os
from typing import Any

from ..errors import GradscoreError, ObjectStorageError
from .address import Address

S3 = ("s3", "s3a")
"""Protocols of S3."""

_UNREACHABLE = ("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionError")
_BROKEN = ("HTTPClientError", "ClientPayloadError", "IncompleteRead", "IncompleteReadError", "EOFError", "TimeoutError")
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound")
_LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_UNKNOWN_CONDITION = 501
_LOST_CONDITION = (409, 412)
_TOO_MANY = 429


def is_refused_replacement(error: Exception) -> bool:
    """Whether a conditional write found something else than it was to replace."""
    return isinstance(error, FileExistsError) or _status(error) in _LOST_CONDITION


def is_unknown_condition(error: BaseException | None) -> bool:
    """Whether storage says that it does not know conditional writes."""
    return error is not None and _status(error) == _UNKNOWN_CONDITION


def is_passing(error: Exception, *, late: bool) -> bool:
    """Whether another try may succeed.

    Args:
        error: what a try ended with.
        late: what could not be reached so far is given up.
    """
    status = _status(error)
    if status is not None:
        return status == _TOO_MANY or (status >= 500 and status != _UNKNOWN_CONDITION)
    if _is(error, _UNREACHABLE):
        return not late
    return _is(error, _BROKEN)


def worded(error: Exception, address: Address) -> Exception:
    """The error that says what happened; what happened to local files stays as it is."""
    if isinstance(error, GradscoreError) or (isinstance(error, OSError) and _is_local(error)):
        return error
    return ObjectStorageError(f"{address}: {_meaning(error, address, _status(error))}")


def _meaning(error: Exception, address: Address, status: int | None) -> str:
    is_s3 = address.protocol in S3
    where = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") if is_s3 else None
    at = f" at {where}" if where else ""
    endpoint = " and AWS_ENDPOINT_URL" if is_s3 else ""
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    if _is(error, _UNREACHABLE):
        return (
            f"the object storage{at} cannot be reached ({said}); check the network{endpoint}, then run the "
            "same command again"
        )
    if _is(error, _NO_CREDENTIALS):
        return (
            f"there are no credentials for it ({said}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        )
    if isinstance(error, PermissionError):
        return f"access is denied{at} ({said}); check the credentials, and what they may read and write"
    if isinstance(error, FileNotFoundError) and "bucket" in said.lower():
        return f"there is no bucket {address.bucket}{at}; check its name{endpoint}, or make it"
    if isinstance(error, FileNotFoundError):
        return f"there is no such object{at}, or it has gone meanwhile; check the address and run the command again"
    if isinstance(error, EOFError) or _is(error, _BROKEN):
        return f"it could not be moved as a whole ({said}); run the same command again, or mend the object"
    if isinstance(error, ValueError):
        return f"it cannot be asked for ({said}); check the address{endpoint}"
    number = "" if status is None else f"status {status}, "
    return f"the object storage{at} does not do it ({number}{said}); run the same command again later"


def _is_local(error: OSError) -> bool:
    return error.__cause__ is None and (error.errno in _LOCAL or error.filename is not None)


def _is(error: BaseException, names: tuple[str, ...]) -> bool:
    """Whether an error is of one of these classes, whose packages need not be installed."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _status(error: BaseException) -> int | None:
    """The status of the answer that an error stands for."""
    response: Any = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return None
    found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return found if isinstance(found, int) else None
