"""Files of one's own beside the command line: `fedrec --use mine.py ...` knows the methods and metrics in them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from fedrec.errors import FedrecError, reason
from fedrec.plugins import in_words


def use(path: Path) -> None:
    """Run the file and register the methods that it defines; its metrics register themselves."""
    from fedrec.federation.contract import Method
    from fedrec.methods import register

    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if path.suffix != ".py" or spec is None or spec.loader is None:
        raise FedrecError(f"--use {path}: give a Python file, such as mine.py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their own module up.
    sys.modules[name] = module
    # It may import its neighbours.
    sys.path.append(str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except OSError as error:
        raise FedrecError(f"--use {path}: {reason(error)}; choose another file") from None
    except (Exception, SystemExit) as error:
        raise FedrecError(f"--use {path} cannot be used: {in_words(error)}") from error
    for value in list(vars(module).values()):
        # Only classes of this file: those that it imports are registered already, and bases have no name.
        if isinstance(value, type) and issubclass(value, Method) and value.__module__ == name and value.info.name:
            register(value)
