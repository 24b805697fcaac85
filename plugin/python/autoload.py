# SPDX-License-Identifier: Apache-2.0
"""`import torch` runs this (entry point group `torch.backends`), so a training script need not mention ostinato.

register() adds a finder to `sys.meta_path`: when DeepSpeed's pipeline engine is imported, and only then, the
finder removes itself and lets `ostinato.deepspeed.hook` wrap the engine. It costs under a millisecond and imports
nothing.

An exception here would break every `import torch`, so an error only prints one line to standard error.
TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from calling register(), as switched_off() tells.
"""

import importlib
import os
import sys

ENGINE = "deepspeed.runtime.pipe.engine"
HOOK = "ostinato.deepspeed.hook"  # by name only, as the entry point names this module
ARRIVALS = "ostinato.ranks.arrivals"

_names_absent = False


def switched_off() -> bool:
    """True where the environment keeps torch from loading ostinato."""
    return os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0"


def register() -> None:
    """Makes DeepSpeed's pipeline engine obey the "ostinato" section. Idempotent; never raises."""
    try:
        engine = sys.modules.get(ENGINE)
        if hasattr(engine, "PipelineEngine"):
            _wrap(engine)
        elif not any(isinstance(finder, _EngineFinder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _EngineFinder())
    except Exception as error:
        _complain(error)


def name_absent() -> None:
    """For scripts that are started with ostinato: once DeepSpeed's pipeline engine is imported, ranks that wait
    in torch's start say for which ranks."""
    global _names_absent
    _names_absent = True


def _wrap(engine) -> None:
    """Leaves the engine's module unchanged where ostinato cannot be loaded, so runs without it still work."""
    try:
        importlib.import_module(HOOK).wrap(engine)
        if _names_absent:
            importlib.import_module(ARRIVALS).name_absent()
    except Exception as error:
        _complain(error)


def _complain(error: Exception) -> None:
    print(
        f"ostinato: could not be loaded, so no plan will run: {type(error).__name__}: {error}",
        file=sys.stderr,
    )


class _EngineFinder:
    """Finds the engine's module once, as the finders after it would, with a loader that wraps the module."""

    def find_spec(self, name, path=None, target=None):
        if name != ENGINE:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = _WrappingLoader(spec.loader)  # type: ignore[assignment]  # passes on everything else
                return spec
        return None


class _WrappingLoader:
    """The loader of the engine's module. It removes itself once that has run."""

    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        _wrap(module)
