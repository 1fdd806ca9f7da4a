"""tools/torch_cpu: packages made for CUDA beside a CPU torch. Each case is a Python of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHIM = Path(__file__).parents[2] / "tools" / "torch_cpu"


def python(code: str, *folders: Path) -> str:
    """What the code prints in a Python that has the shim, and ``folders`` before all others."""
    path = os.pathsep.join(str(folder) for folder in [*folders, SHIM])
    code = "import ec_ipc_torch_cpu, sys\n" + code
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def package(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_the_pth_file_names_the_module() -> None:
    (pth,) = SHIM.glob("*.pth")
    (module,) = SHIM.glob("*.py")
    assert pth.read_text().strip() == f"import {module.stem}"


def test_starting_python_stays_cheap() -> None:
    costly = "{'torch', 'torchvision', 'typing', 'importlib.util'}"
    show = f"import sys; print(sorted({costly} & set(sys.modules)))"
    without = subprocess.run([sys.executable, "-S", "-c", show], capture_output=True, text=True)
    only = f"import sys; sys.path.insert(0, {str(SHIM)!r}); import ec_ipc_torch_cpu; {show}"
    with_it = subprocess.run([sys.executable, "-S", "-c", only], capture_output=True, text=True)
    assert with_it.stdout == without.stdout == "[]\n"


def test_a_mere_probe_imports_nothing(tmp_path: Path) -> None:
    package(tmp_path, {"torchvision/__init__.py": ""})
    code = "import importlib.util as u; print(u.find_spec('torchvision').name, 'torch' in sys.modules)"
    assert python(code, tmp_path) == "torchvision False"


def test_torchvision_finds_the_operators_that_its_import_looks_up(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    looks_up = "import torch\nfor name in ('nms', 'qnms'): getattr(torch.ops.torchvision, name)\n"
    package(tmp_path, {"torchvision/__init__.py": looks_up})
    assert python("import torchvision; print('imported')", tmp_path) == "imported"


def test_operators_that_exist_are_left_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    package(tmp_path, {"torchvision/__init__.py": ""})
    code = (
        "ec_ipc_torch_cpu._compiled_operators_load = lambda folders: True\n"
        "import torchvision; print(ec_ipc_torch_cpu._library)"
    )
    assert python(code, tmp_path) == "None"


def test_torchaudio_goes_on_without_its_library(tmp_path: Path) -> None:
    files = {
        "torchaudio/__init__.py": "from ._extension import has",
        "torchaudio/_extension/__init__.py": "from .utils import _load_lib\nhas = _load_lib('x')",
        "torchaudio/_extension/utils.py": "def _load_lib(name):\n    raise OSError('cannot load')",
    }
    package(tmp_path, files)
    assert python("import torchaudio; print(torchaudio.has)", tmp_path) == "False"


def test_torchcodec_fails_in_the_way_that_vllm_expects(tmp_path: Path) -> None:
    package(tmp_path, {"torchcodec/__init__.py": "raise OSError('cannot load')\n"})
    code = "try:\n    import torchcodec\nexcept ImportError as error:\n    print(error)"
    assert python(code, tmp_path) == "torchcodec does not work beside this torch: cannot load"


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
def test_the_real_torchvision_transforms_pictures() -> None:
    code = (
        "import torch\n"
        "from torchvision.transforms.v2 import functional as F\n"
        "print(tuple(F.resize(torch.zeros(3, 8, 8), [4, 4]).shape))"
    )
    assert python(code) == "(3, 4, 4)"
