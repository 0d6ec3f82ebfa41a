"""The package as a whole: every module imports, and the core needs no extra."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import metaprior

MODULES = [module.name for module in pkgutil.walk_packages(metaprior.__path__, "metaprior.")]


@pytest.mark.parametrize("name", MODULES)
def test_module_imports(name):
    if name.endswith("__main__"):
        pytest.skip("importing it would run the command line; its tests start it for real")
    importlib.import_module(name)


def test_every_public_name_exists():
    assert [name for name in metaprior.__all__ if not hasattr(metaprior, name)] == []


def test_import_needs_no_extra():
    """In a fresh process: `import metaprior` pulls in neither the extras nor a deep-learning rival."""
    code = "import sys, metaprior; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "mujoco", "flwr", "sklearn", "pandas", "starlette", "pytest"} & set(loaded)


def test_every_public_name_has_one_place():
    assert sorted(metaprior._MODULE_OF) == sorted(set(metaprior.__all__) - {"__version__"})


def test_unknown_names_are_missing():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = metaprior.nothing


# One episode's way through the code. A module imports only from its own place and those before it.
ORDER = [
    "types", "names", "scalars", "trees", "one_by_one", "metrics", "likelihoods", "families", "last_layer", "data", "tasks",
    "models", "heads", "inference", "matrix", "rules", "methods", "optimizers", "cells", "meta", "parallel", "layers",
    "processes", "rl", "predict", "calibration", "classes", "recipes", "settings", "programs", "evaluation", "codec",
    "checkpoints", "runs", "interrupts", "training", "estimates", "plans", "federated", "labelled", "policies", "published",
    "estimators", "learned", "figures", "page", "benchmarks", "cli", "__main__",
]  # fmt: skip


def imports(path: Path) -> set[str]:
    """The modules of the package that a file imports, by their first name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "metaprior":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("metaprior."):
            found.add(str(node.module).split(".")[1])
    return found


SOURCES = sorted(Path(metaprior.__path__[0]).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(metaprior.__path__[0])))
def test_modules_import_only_from_those_before_them(path):
    place = path.relative_to(metaprior.__path__[0]).parts[0].removesuffix(".py")
    if place == "__init__":
        return  # the front door leads everywhere
    late = {name for name in imports(path) if ORDER.index(name) > ORDER.index(place)}
    assert not late
