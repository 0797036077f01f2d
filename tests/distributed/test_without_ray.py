from pathlib import Path

import pytest
from distributed_runs import settings

from gradscore.distributed import RayOptions, extract_with_ray
from gradscore.errors import MissingExtraError


def test_ray_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradscore.distributed.ray_engine.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"--engine ray: the package ray is not installed"):
        extract_with_ray(settings(tmp_path), RayOptions(), trust_code=True)
