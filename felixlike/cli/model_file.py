"""A model from a Python file or module: file.py:factory, package.module:factory.

In: the text. Out: what the factory returns. The file is the user's: whatever it raises becomes one sentence with the
line where it happened; what it prints is printed.
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

from felixlike._util import option_checks
from felixlike._util.wording import choose_from, counted, kind_of
from felixlike.errors import InvalidModel, first_line

_MODULE = re.compile(r"(?:(?P<folder>.*)/)?(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)")


def model_from(text: str) -> tuple[Any, Any]:
    """(model, example inputs or None) for file.py:factory and package.module:factory; the text itself for the path of a
    model's file.

    A module is looked for as Python does, in the current folder first, or in FOLDER for FOLDER/package.module:factory.
    Raises InvalidModel."""
    path, colon, name = text.rpartition(":")
    if colon and (named := _module_name(path, name)) is not None:
        folder, module = named
        return _made(_factory(_imported(folder, module), name, module), text, _file_of(module))
    if not colon or not path.endswith(".py"):
        if text.endswith(".py"):
            raise InvalidModel(
                "the file alone does not say which model", where=text, remedy=f"name a function in it: {text}:factory"
            )
        return text, None
    return _made(_factory(_module(option_checks.path(path, "model", error=InvalidModel)), name, path), text, path)


def named_from_anywhere(text: str) -> str:
    """The same model, named so that any current folder will do. Raises InvalidModel."""
    path, colon, name = text.rpartition(":")
    if colon and (named := _module_name(path, name)) is not None:
        return f"{named[0].absolute()}/{named[1]}:{name}"
    if colon and path.endswith(".py"):
        return f"{option_checks.path(path, 'model', error=InvalidModel).absolute()}:{name}"
    return str(option_checks.path(text, "model", error=InvalidModel).absolute())


def _file_of(module: str) -> str:
    """What a module's file is called in messages."""
    return f"{module.replace('.', '/')}.py"


def _module_name(path: str, factory: str) -> tuple[Path, str] | None:
    """(folder, dotted name) of a Python module; None for anything else."""
    found = _MODULE.fullmatch(path)
    if found is None or not factory.isidentifier() or path.endswith((".py", ".pt2", ".onnx")) or Path(path).is_file():
        return None
    return Path(found["folder"] if found["folder"] is not None else "."), found["name"]


def _imported(folder: Path, name: str) -> ModuleType:
    """A module of Python's path, on which the folder comes first."""
    sys.path.insert(0, str(folder.resolve()))
    importlib.invalidate_caches()
    try:
        with _explained(_file_of(name), "importing the module"):
            return importlib.import_module(name)
    except InvalidModel as error:
        missing = getattr(error.__cause__, "name", None)
        if isinstance(error.__cause__, ModuleNotFoundError) and missing and f"{name}.".startswith(f"{missing}."):
            raise InvalidModel(
                f"Python finds no module {missing}",
                where=name,
                remedy="run the command where it is, set PYTHONPATH to where it is, or give a file: file.py:factory",
            ) from None
        raise


def _made(factory: Callable[[], Any], text: str, path: str) -> tuple[Any, Any]:
    with _explained(path, "calling the function"):
        made = factory()
    if made is None:
        raise InvalidModel("the function returns nothing", where=text, remedy="end it with: return model")
    if not isinstance(made, tuple):
        return made, None
    if len(made) != 2:
        raise InvalidModel(
            f"the function returns a tuple of {len(made)}",
            where=text,
            remedy="return the model, or the model and its example inputs: return model, (x, y)",
        )
    return made


def _factory(module: ModuleType, name: str, path: str) -> Callable[[], Any]:
    """The function of this name, which can be called as it is."""
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if _is_factory(value, module)]
        remedy = choose_from(name, known) if known else "define a function there that returns the model"
        raise InvalidModel(f"there is no {name!r} in the file", where=path, remedy=remedy)
    factory = getattr(module, name)
    if not callable(factory):
        raise InvalidModel(
            f"{name} is {kind_of(factory)}, not a function", where=path, remedy="name a function that gives the model"
        )
    needed = _required(factory)
    if needed:
        raise InvalidModel(
            f"{name} needs {counted(len(needed), 'argument')}: {', '.join(needed)}",
            where=path,
            remedy=f"name a function that needs none, as def model(): return {name}(…)",
        )
    return factory  # type: ignore[no-any-return]


def _is_factory(value: Any, module: ModuleType) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__ and not _required(value)


def _required(function: Callable[..., Any]) -> list[str]:
    """Names of the parameters without which it cannot be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # it has none that Python can see
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variable]


def _module(path: Path) -> ModuleType:
    """The Python file as a module, with its folder on the import path."""
    if not path.is_file():
        raise InvalidModel("there is no such file", where=str(path), remedy="check the path")
    sys.path.insert(0, str(path.parent.resolve()))
    name = path.stem if path.stem not in sys.modules else f"{path.stem} of {path.resolve()}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses, pickles and torch look classes up by their module's name
    with _explained(str(path), "importing the file"):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _explained(path: str, doing: str) -> Iterator[None]:
    """What the user's code raises as InvalidModel with its line; Ctrl-C passes."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise InvalidModel(
            f"{doing} {_what(error)}", where=f"{path}{_line(error, path)}", remedy=_remedy(error)
        ) from error


def _what(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"ends the program: sys.exit({'' if error.code is None else repr(error.code)})"
    said = (error.msg if isinstance(error, SyntaxError) else "") or first_line(error)
    kind = type(error).__name__
    return f"raises {kind}" if said == kind else f"raises {kind}: {said}"


def _line(error: BaseException, path: str) -> str:
    """ ":12", the last line of the file that led to the error; of another file ":12 (by other.py:3)"."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        same = Path(error.filename).name == Path(path).name
        return f":{error.lineno}" if same else f" ({error.filename}:{error.lineno})"
    own = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == Path(path).name]
    return f":{own[-1].lineno}" if own else ""


def _remedy(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"install it for {sys.executable}, or set PYTHONPATH to where it is"
    if isinstance(error, SyntaxError):
        return "correct it"
    if isinstance(error, SystemExit):
        return 'raise an exception instead; what only a script does belongs under: if __name__ == "__main__"'
    return "correct it; --traceback shows how it came to it"
