"""The package as a whole: every module imports, and the core needs no extra."""

import importlib
import pkgutil
import subprocess
import sys

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
    assert not {"torch", "mujoco", "flwr", "sklearn", "starlette", "pytest"} & set(loaded)


def test_every_public_name_has_one_place():
    assert sorted(metaprior._MODULE_OF) == sorted(set(metaprior.__all__) - {"__version__"})


def test_unknown_names_are_missing():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = metaprior.nothing
