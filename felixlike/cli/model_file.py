"""Load a model from a Python file or module: file.py:factory, package.module:factory.

Input: the text. Output: what the factory returns. The file is the user's. Exceptions that it raises become one sentence
with the line that raised, and its output is printed.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from felixlike._util import option_checks
from felixlike._util.wording import choose_from, counted, kind_of
from felixlike.errors import InvalidModel, first_line

_MODULE = re.compile(r"(?:(?P<folder>.*)/)?(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)")
"""Pattern of a dotted module name, optionally behind FOLDER/."""


def model_from(text: str) -> tuple[Any, Any]:
    """Return a model and its example inputs or None, for file.py:factory or package.module:factory.

    Other text is returned as it is, as the path of a model's file. A module is searched for as Python does, in the
    current folder first, or in FOLDER for FOLDER/package.module:factory. Raise InvalidModel.
    """
    path, colon, name = text.rpartition(":")
    if colon and (module_name := _module_name(path, name)) is not None:
        folder, module = module_name
        return _call_factory(_factory(_imported(folder, module), name, module), text, _file_of(module))
    if not colon or not path.endswith(".py"):
        if text.endswith(".py"):
            raise InvalidModel(
                "the name of a function is missing", where=text, remedy=f"name a function in it: {text}:factory"
            )
        return text, None
    return _call_factory(
        _factory(_module(option_checks.path(path, "model", error=InvalidModel)), name, path), text, path
    )


def named_from_anywhere(text: str) -> str:
    """Return the text with absolute paths, so that it names the same model in any folder. Raise InvalidModel."""
    path, colon, name = text.rpartition(":")
    if colon and (module_name := _module_name(path, name)) is not None:
        return f"{module_name[0].absolute()}/{module_name[1]}:{name}"
    if colon and path.endswith(".py"):
        return f"{option_checks.path(path, 'model', error=InvalidModel).absolute()}:{name}"
    return str(option_checks.path(text, "model", error=InvalidModel).absolute())


def file_of(text: str) -> str:
    """Return the path of the file that the text names, as far as it names one."""
    path, colon, _ = text.rpartition(":")
    return path if colon and path.endswith(".py") else text


def _file_of(module: str) -> str:
    """Return the name of a module's file for messages."""
    return f"{module.replace('.', '/')}.py"


def _module_name(path: str, factory: str) -> tuple[Path, str] | None:
    """Return (folder, dotted name) of a Python module; None for anything else."""
    match = _MODULE.fullmatch(path)
    if match is None or not factory.isidentifier() or path.endswith((".py", ".pt2", ".onnx")) or Path(path).is_file():
        return None
    return Path(match["folder"] if match["folder"] is not None else "."), match["name"]


def _imported(folder: Path, name: str) -> ModuleType:
    """Import a module, searching the folder first."""
    sys.path.insert(0, str(folder.resolve()))
    importlib.invalidate_caches()
    try:
        with _explained(_file_of(name), "importing the module"):
            return importlib.import_module(name)
    except InvalidModel as error:
        missing = getattr(error.__cause__, "name", None)
        if isinstance(error.__cause__, ModuleNotFoundError) and missing and f"{name}.".startswith(f"{missing}."):
            raise InvalidModel(
                f"Python cannot find the module {missing}",
                where=name,
                remedy="run the command in its folder, add its folder to PYTHONPATH, or give a file: file.py:factory",
            ) from None
        raise


def _call_factory(factory: Callable[[], Any], text: str, path: str) -> tuple[Any, Any]:
    """Call the factory. Return its model and its example inputs or None."""
    with _explained(path, "calling the function"):
        model = factory()
    if model is None:
        raise InvalidModel("the function returns None", where=text, remedy="end it with: return model")
    if not isinstance(model, tuple):
        return model, None
    if len(model) != 2:
        raise InvalidModel(
            f"the function returns a tuple of length {len(model)}",
            where=text,
            remedy="return the model, or the model and its example inputs: return model, (x, y)",
        )
    return model


def _factory(module: ModuleType, name: str, path: str) -> Callable[[], Any]:
    """Return the function of this name, which must be callable without arguments. Raise InvalidModel."""
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if _is_factory(value, module)]
        remedy = choose_from(name, known) if known else "define a function in it that returns the model"
        raise InvalidModel(f"the file does not define {name!r}", where=path, remedy=remedy)
    factory = getattr(module, name)
    if not callable(factory):
        raise InvalidModel(
            f"{name} is {kind_of(factory)}, not a function", where=path, remedy="name a function that returns the model"
        )
    needed = _required(factory)
    if needed:
        raise InvalidModel(
            f"{name} needs {counted(len(needed), 'argument')}: {', '.join(needed)}",
            where=path,
            remedy=f"name a function without required arguments, for example def model(): return {name}(…)",
        )
    return factory  # type: ignore[no-any-return]


def _is_factory(value: Any, module: ModuleType) -> bool:
    """Return whether a value is a function of the module that needs no arguments."""
    return inspect.isfunction(value) and value.__module__ == module.__name__ and not _required(value)


def _required(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that have no default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # Python cannot tell its signature
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variable]


def _module(path: Path) -> ModuleType:
    """Load a Python file as a module, with its folder on the import path."""
    if not path.is_file():
        raise InvalidModel("there is no such file", where=str(path), remedy="check the path")
    sys.path.insert(0, str(path.parent.resolve()))
    name = path.stem if path.stem not in sys.modules else f"{path.stem} of {path.resolve()}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses, pickle and torch look up classes by module name
    if name != path.stem:  # processes that time the model cannot import it by that name
        cloudpickle.register_pickle_by_value(module)
    with _explained(str(path), "importing the file"):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _explained(path: str, doing: str) -> Iterator[None]:
    """Convert exceptions of the user's code to InvalidModel with their line. Ctrl-C passes."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise InvalidModel(
            f"{doing} {_error_text(error)}", where=f"{path}{_line(error, path)}", remedy=_remedy(error)
        ) from error


def _error_text(error: BaseException) -> str:
    """Describe an exception of the user's code."""
    if isinstance(error, SystemExit):
        return f"calls sys.exit({'' if error.code is None else repr(error.code)})"
    message = (error.msg if isinstance(error, SyntaxError) else "") or first_line(error)
    kind = type(error).__name__
    return f"raises {kind}" if message == kind else f"raises {kind}: {message}"


def _line(error: BaseException, path: str) -> str:
    """Return ":12", the last line of the file that led to the error, or an empty string if there is none.

    For a SyntaxError in another file, return that file and its line.
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        same = Path(error.filename).name == Path(path).name
        return f":{error.lineno}" if same else f" ({error.filename}:{error.lineno})"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == Path(path).name]
    return f":{frames[-1].lineno}" if frames else ""


def _remedy(error: BaseException) -> str:
    """Return what to do about an exception of the user's code."""
    if isinstance(error, ModuleNotFoundError):
        return f"install it for {sys.executable}, or add its folder to PYTHONPATH"
    if isinstance(error, SyntaxError):
        return "fix the syntax error"
    if isinstance(error, SystemExit):
        return 'raise an exception instead, and put code for scripts under: if __name__ == "__main__"'
    return "fix the error; --traceback shows the full traceback"
