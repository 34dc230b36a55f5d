"""The sources of the secret of a run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hlo_run.errors import UsageError
from hlo_run.processes.secret import job_secret

TEXT = "0123456789abcdef"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HLO_RUN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_file_comes_before_the_environment_and_that_before_the_own_key(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{TEXT}-file\n", encoding="ascii")
    file.chmod(0o600)
    assert job_secret(str(file), {"HLO_RUN_SECRET": TEXT}) == f"{TEXT}-file".encode()
    assert job_secret("", {"HLO_RUN_SECRET": TEXT}) == TEXT.encode()
    assert not home.exists()
    assert len(job_secret("", {})) == 64


def test_processes_that_make_the_own_key_at_once_have_the_same(home: Path) -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(job_secret("", {}))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    (key,) = home.iterdir()
    assert key.stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o777 == 0o700


def test_secrets_that_are_none(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        job_secret(str(file))
    file.write_text(TEXT, encoding="ascii")
    file.chmod(0o640)
    with pytest.raises(UsageError, match="other users may read the secret"):
        job_secret(str(file))
    file.chmod(0o600)
    file.write_text(TEXT[1:], encoding="ascii")
    with pytest.raises(UsageError, match="has 15 bytes: a secret needs 16"):
        job_secret(str(file))
    with pytest.raises(UsageError, match="HLO_RUN_SECRET has 0 bytes"):
        job_secret("", {"HLO_RUN_SECRET": " "})
    home.mkdir(0o777)
    home.chmod(0o777)
    with pytest.raises(UsageError, match="there is no directory for the user's own key"):
        job_secret("", {})
