"""The check of vLLM's interface (make compat): it accepts the installed vLLM, and it can fail."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import vllm

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tools"))

from compat.expected import BASE, FILES, MANAGER, OUTPUT, RENDERER, RUNNER_V2, SCHEDULER, check  # noqa: E402

INSTALLED = Path(vllm.__file__).parents[1]


def test_the_installed_vllm_is_what_the_connector_was_written_for() -> None:
    assert list(check(INSTALLED, REPO)) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (BASE, "def has_cache_item(", "def has_item(", "has a new hook has_item"),
        (BASE, "def start_worker_services(self)", "def start_worker_services(self, rank)", "'rank'"),
        (BASE, "def take_unavailable_requests(self)", "def take(self)", "no take_unavailable_req"),
        (SCHEDULER, "ec_connector.update_state_after_free(", "len(", "no longer calls update_state_"),
        (RUNNER_V2, "encoder_cache=self.encoder_cache, mm_hash=mm_hash", "mm_hash", "save_caches"),
        (MANAGER, "self.freeable", "self.reusable", "no longer has freeable"),
        (MANAGER, "def can_allocate(\n        self,", "def can_fit(\n        self,", "no can_allocate"),
        (OUTPUT, "free_encoder_mm_hashes:", "freed_hashes:", "SchedulerOutput has no free_encoder_mm_hashes"),
        (RENDERER, '-mm-{', '-media-{', "no identifiers of the form"),
        (RENDERER, 'f"renderer{', 'f"input{', "taken for shared"),
    ],
)  # fmt: skip
def test_a_change_of_the_interface_is_found(
    tmp_path: Path, file: str, old: str, new: str, expected: str
) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(INSTALLED / name, tmp_path / name)
    text = (tmp_path / file).read_text()
    assert old in text, "the test has no point"
    (tmp_path / file).write_text(text.replace(old, new))
    assert any(expected in line for line in check(tmp_path, REPO)), list(check(tmp_path, REPO))
