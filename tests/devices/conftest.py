"""Whole jobs are compared with those of the processor, so they run where there is another device."""

import pytest
from devices import devices


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return True if devices(config.getoption("--device")) == ["cpu"] else None
