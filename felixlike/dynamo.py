"""The backend of torch.compile: torch.compile(model, backend="felixlike").

In: a graph that TorchDynamo captured. Out: a callable. The first call of a graph compiles its predicted best schedules,
or what the user's store has of them; a process of low priority then tunes it for a while, and when that is done, its
result takes over. A graph that cannot be taken runs as it came, with one warning that says why; training graphs always
do. Options, each also an environment variable (FELIXLIKE_SECONDS, …):

    torch.compile(model, backend="felixlike", options={"seconds": 120, "background": False})
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import platformdirs
import torch
from torch import Tensor, nn

from felixlike import options as checks
from felixlike.errors import FelixlikeError, FelixlikeWarning, InvalidModel, InvalidOption, first_line
from felixlike.words import choose_from

Graph = Callable[..., Any]


class NotCompiled(FelixlikeWarning):
    """A graph runs as PyTorch runs it."""


@dataclass(frozen=True, slots=True)
class Options:
    """seconds: of tuning, in all processes together; 0 for predicted schedules alone.  trials: candidates, None for no
    limit.  background: tune in another process while calls go on; else the first call waits for it.  store: the file
    that keeps what was measured, shared by the user's processes; None for the one in the user's data folder.  sizes: of
    a graph with open sizes, how many of them are compiled, each for itself."""

    seconds: float = 60.0
    trials: int | None = None
    background: bool = True
    store: str | None = None
    sizes: int = 4

    @property
    def file(self) -> str:
        """Where the store is."""
        return self.store or str(Path(platformdirs.user_data_dir("felixlike", ensure_exists=True)) / "compiled.sqlite")


def felixlike(graph: torch.fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None) -> Graph:
    """The backend: a callable for a graph and its example inputs. Raises InvalidOption for unknown or bad options."""
    wanted = read_options(options or {}, os.environ)
    trains = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    if trains:
        return graph.forward
    static = [_is_static(node, x) for node, x in zip(_placeholders(graph), inputs, strict=True)]
    found = _Graph(graph, static, wanted)
    result: Graph = torch.compiler.disable(found.__call__)  # type: ignore[no-untyped-call]
    return result


def read_options(given: dict[str, Any], environment: Any) -> Options:
    """Options by name; those not given from the environment, else the defaults. Raises InvalidOption."""
    names = [field.name for field in fields(Options)]
    for name in given:
        if name not in names:
            raise InvalidOption(
                f"there is no option {name!r}", where="backend felixlike", remedy=choose_from(name, names)
            )
    values = {name: environment.get(f"FELIXLIKE_{name.upper()}") for name in names}
    values = {name: _parsed(name, text) for name, text in values.items() if text}
    values |= given
    where = "backend felixlike"
    if "seconds" in values:
        values["seconds"] = checks.real(values["seconds"], "seconds", where=where, unit="seconds")
    if values.get("trials") is not None:
        values["trials"] = checks.whole(values["trials"], "trials", where=where)
    if "sizes" in values:
        values["sizes"] = checks.whole(values["sizes"], "sizes", where=where)
    if not isinstance(values.get("background", True), bool):
        raise InvalidOption(f"background is {values['background']!r}", where=where, remedy="give True or False")
    if values.get("store") is not None:
        values["store"] = str(checks.path(values["store"], "store", error=InvalidOption))
    return Options(**values)


def _parsed(name: str, text: str) -> Any:
    """What an environment variable says; what is no number is refused by its check."""
    if name == "background":
        return {"1": True, "true": True, "0": False, "false": False}.get(text.lower(), text)
    if name == "store":
        return text
    with contextlib.suppress(ValueError):
        return float(text) if name == "seconds" else int(text)
    return text


def _placeholders(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def _is_static(node: torch.fx.Node, value: Any) -> bool:
    """Whether an input is a parameter or buffer of the module, which Dynamo hands over with every call."""
    marked = "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})
    return isinstance(value, nn.Parameter) or (isinstance(value, Tensor) and marked)


class _Graph:
    """One captured graph, with what was compiled of it.  static: which inputs are weights."""

    def __init__(self, graph: torch.fx.GraphModule, static: Sequence[bool], options: Options) -> None:
        self._graph = graph
        self._static = list(static)
        self._options = options
        self._made: dict[tuple[float, ...], _Made] = {}
        self._refused = False
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        if self._refused:
            return self._graph(*inputs)
        sizes = tuple(x for x in inputs if isinstance(x, int | float))
        made = self._made.get(sizes)
        if made is None or not made.holds(inputs):
            made = self._make(sizes, inputs)
            if made is None:
                return self._graph(*inputs)
        return made.call(*[inputs[i] for i in made.places])

    def _make(self, sizes: tuple[float, ...], inputs: Sequence[Any]) -> _Made | None:
        """Compile for these sizes and weights; None where that cannot be done, which a warning says once."""
        with self._lock:
            made = self._made.get(sizes)
            if made is not None and made.holds(inputs):
                return made
            if made is None and len(self._made) >= max(1, self._options.sizes):
                self._refuse(f"it was called with more than {self._options.sizes} sizes; option sizes= allows more")
                return None
            try:
                self._made[sizes] = _Made(self._graph, self._static, inputs, self._options)
            except (FelixlikeError, RuntimeError, TypeError) as error:
                self._refuse(f"{type(error).__name__}: {first_line(error)}")
                return None
            return self._made[sizes]

    def _refuse(self, why: str) -> None:
        """Run what is not compiled yet as it came. What is compiled stays in use, unless it was the only one."""
        self._refused = not self._made
        warnings.warn(
            f"a graph of {len(self._graph.graph.nodes)} nodes runs as before: {why}", NotCompiled, stacklevel=4
        )


class Bound(nn.Module):
    """A graph with its weights and sizes filled in: what is left are the inputs of a call."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any], places: Sequence[int]) -> None:
        super().__init__()
        self._graph = graph
        self._places = list(places)
        self._fixed: list[Any] = [None if i in places else x for i, x in enumerate(inputs)]
        for place, value in enumerate(self._fixed):
            if isinstance(value, Tensor):
                self.register_buffer(f"weight_{place}", value.detach())
                self._fixed[place] = f"weight_{place}"

    def forward(self, *inputs: Tensor) -> Any:
        """The graph's outputs."""
        values = [getattr(self, value) if isinstance(value, str) else value for value in self._fixed]
        for place, value in zip(self._places, inputs, strict=True):
            values[place] = value
        return self._graph(*values)


class _Made:
    """A graph compiled for one set of sizes.  places: of the inputs of a call among the graph's.  call: takes them."""

    def __init__(
        self, graph: torch.fx.GraphModule, static: Sequence[bool], inputs: Sequence[Any], options: Options
    ) -> None:
        from felixlike.api import optimize

        self.places = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and not static[i]]
        self._weights = [(i, x, _version(x)) for i, x in enumerate(inputs) if isinstance(x, Tensor) and static[i]]
        bound = Bound(graph, inputs, self.places).eval()
        examples = tuple(inputs[i].detach() for i in self.places)
        _check_unchanged(bound, examples)
        limits: dict[str, Any] = {"trials": 0}
        if not options.background and options.seconds:
            limits = {"seconds": options.seconds, "trials": options.trials}
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FelixlikeWarning)
            self.call: Callable[..., Any] = optimize(bound, examples, store=options.file, progress=False, **limits)
        if options.background and options.seconds:
            _tune_in_background(self, bound, examples, options)

    def holds(self, inputs: Sequence[Any]) -> bool:
        """Whether the weights are still those that were compiled in."""
        return all(inputs[i] is x and _version(x) == version for i, x, version in self._weights)


def _check_unchanged(bound: Bound, examples: Sequence[Tensor]) -> None:
    """Raise InvalidModel for a graph that writes to its inputs, a cache say, which what is compiled never does.

    Runs it once, on copies."""
    with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=[]):
        copies = [example.clone() for example in examples]
        before = [copy._version for copy in copies]
        bound(*copies)
    changed = [i for i, copy in enumerate(copies) if copy._version != before[i]]
    if changed:
        raise InvalidModel(
            f"it changes input {changed[0]} in place", where="graph", remedy="return what was changed as an output"
        )


def _version(tensor: Tensor) -> int:
    """How often a tensor was changed in place; 0 for those of inference mode, which do not count."""
    return 0 if tensor.is_inference() else tensor._version


# -- better schedules, meanwhile ---------------------------------------------------------------------------------------


_turn = threading.Lock()
"""One graph is tuned at a time: their timings would disturb one another."""


def _tune_in_background(made: _Made, bound: Bound, examples: tuple[Tensor, ...], options: Options) -> None:
    """Write the graph down; a thread then has it tuned by another process, and exchanges what is called."""
    folder = Path(tempfile.mkdtemp(prefix="felixlike-compile-"))
    try:
        with torch.no_grad():
            torch.export.save(torch.export.export(bound, examples, strict=False), folder / "graph.pt2")
    except Exception:  # what is compiled stays in use
        shutil.rmtree(folder, ignore_errors=True)
        return
    waiting = threading.Thread(target=_exchange, args=(made, folder, options), daemon=True, name="felixlike-tuning")
    waiting.start()


def _start(folder: Path, options: Options) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "felixlike", "tune", str(folder / "graph.pt2"), "--quiet", "--store", options.file]
    command += ["--seconds", str(options.seconds), "--output", str(folder / "tuned.felixlike")]
    if options.trials is not None:
        command += ["--trials", str(options.trials)]
    command = ["nice", "-n", "10", *command] if shutil.which("nice") else command
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)


def _exchange(made: _Made, folder: Path, options: Options) -> None:
    from felixlike.api import load

    try:
        with _turn:
            process = _start(folder, options)
            _running.add(process)
            ended = process.wait()
            _running.discard(process)
        if ended == 0:
            made.call = load(folder / "tuned.felixlike")
    except (FelixlikeError, OSError):
        pass  # what is compiled stays in use
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_running: set[subprocess.Popen[bytes]] = set()


def _stop() -> None:
    """What was measured is in the store; the rest is not worth waiting for."""
    for process in tuple(_running):
        process.terminate()


atexit.register(_stop)
