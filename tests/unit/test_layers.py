"""The dependency direction: connector -> store -> lease, arena, segment -> core. Nothing points back."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "ec_ipc"

# What each module of the package may import of it, by layer from the bottom.
LAYERS = [
    {"_core"},
    {"errors"},
    {"names", "keys", "dtypes", "notes"},
    {"shared_memory"},
    {"segment", "cuda_runtime"},
    {"arena", "lease", "cuda_probe", "cuda_events", "tokens"},
    {"cuda_arena"},
    {"host_to_device"},
    {"host_arena"},
    {"maintenance"},
    {"attachment"},
    {"store"},
    {"cli", "connector"},
]
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}

# Made on demand by the arena interface, which otherwise knows nothing of its implementations.
LAZY = {("arena", "host_arena"), ("arena", "cuda_arena"), ("arena", "cuda_probe")}
TYPES_ONLY = {("maintenance", "store")}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def unit_of(path: Path) -> str:
    """The module or subpackage of ec_ipc that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> set[str]:
    """Full names of everything a file imports, wherever the import stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_layers_below_its_own(path: Path) -> None:
    unit = unit_of(path)
    if unit == "__init__":
        return
    assert unit in LEVEL, f"{unit} has no layer; add it to LAYERS"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "ec_ipc" or len(parts) < 2 or parts[1] not in LEVEL or parts[1] == unit:
            continue
        if (unit, parts[1]) in LAZY | TYPES_ONLY:
            continue
        assert LEVEL[parts[1]] < LEVEL[unit], f"{unit} imports {parts[1]}, which is not below it"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_the_connector_imports_vllm_and_only_the_cuda_arena_imports_cupy(path: Path) -> None:
    roots = {name.split(".")[0] for name in imports(path)}
    if unit_of(path) != "connector":
        assert "vllm" not in roots
    if unit_of(path) != "cuda_runtime":
        assert "cupy" not in roots


def test_importing_the_package_and_loading_the_plugin_imports_neither_vllm_nor_cupy() -> None:
    program = (
        "import sys, ec_ipc, ec_ipc.connector.plugin, ec_ipc.connector\n"
        "assert 'vllm' not in sys.modules and 'cupy' not in sys.modules, sorted(sys.modules)\n"
        "import torch; assert not torch.cuda.is_initialized()\n"
        "print('clean')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "clean\n"
