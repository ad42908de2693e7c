"""Compile graphs captured by TorchDynamo, and check at each call whether the compiled code still applies.

Inputs: a graph and example inputs. Output: a callable that runs the compiled graph, or else the graph itself.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from felixlike._util.torch_compat import capture_id, is_static_input, is_wrapped_number
from felixlike._util.wording import counted
from felixlike.dynamo import background
from felixlike.dynamo.bound import Bound
from felixlike.dynamo.graph_sizes import NUMBER, GraphSizes, number_key
from felixlike.dynamo.options import Options, read_options
from felixlike.dynamo.output_views import SplitGraph
from felixlike.dynamo.weights import WATCHING, WeightGuard, unused
from felixlike.dynamo.writes import changed_inputs
from felixlike.errors import EmptyModel, InputMismatch, InvalidModel, NotCompiledWarning, SharedInputs, first_line

Graph = Callable[..., Any]
"""A graph as a callable."""


def felixlike(graph: torch.fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None) -> Graph:
    """Compile a graph; torch.compile calls this function for backend="felixlike".

    Args:
        graph: The graph captured by TorchDynamo.
        inputs: Example inputs, including weights.
        options: Values of `Options` by name.

    Returns:
        A callable that takes the graph's inputs.

    Raises:
        InvalidOption: An option is unknown or has an invalid value.

    Example:
        >>> fast = torch.compile(model, backend="felixlike", options={"seconds": 120, "background": False})
    """
    settings = read_options(options or {}, os.environ)
    with_gradients = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    if with_gradients or _returns_gradients(graph):
        _warn_of_gradients()
        return graph.forward
    placeholders = _placeholders(graph)
    static = [_is_static(node, x) for node, x in zip(placeholders, inputs, strict=True)]
    given = zip(placeholders, inputs, static, strict=True)
    tensors = [node for node, x, is_weight in given if isinstance(x, Tensor) and not is_weight]
    captured = _CapturedGraph(graph, static, settings, GraphSizes(placeholders), waits=_takes_more(tensors))
    result: Graph = torch.compiler.disable(captured.__call__)  # type: ignore[no-untyped-call]
    return result


def _returns_gradients(graph: torch.fx.GraphModule) -> bool:
    """Return whether an output has a gradient, as where the graph itself enables them. Views of weights have none."""
    outputs: Any = graph.graph.output_node().args[0]
    computed = [node for node in outputs if isinstance(node, torch.fx.Node) and node.op != "placeholder"]
    values = [node.meta.get("example_value") for node in computed]
    return any(isinstance(value, Tensor) and value.grad_fn is not None for value in values)


_warned_of_gradients = False


def _warn_of_gradients() -> None:
    """Warn once per process that graphs with gradients are not compiled."""
    global _warned_of_gradients
    if not _warned_of_gradients:
        _warned_of_gradients = True
        _warn(
            "PyTorch runs a graph: gradients are enabled, but compiled code computes none. For inference, call the"
            " model under torch.no_grad() or torch.inference_mode()"
        )


def _warn(text: str) -> None:
    """Issue a NotCompiledWarning."""
    warnings.warn(NotCompiledWarning(text), stacklevel=_callers_level())


def _callers_level() -> int:
    """Return the `stacklevel` of the user's code for `_warn`."""
    from felixlike.errors import callers_level

    return callers_level() - 1


def _placeholders(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Return the nodes of a graph's inputs."""
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


_inputs_of_functions: dict[int, set[str]] = {}
"""Names of the tensors that graphs of a function took so far, by TorchDynamo's number of the function."""


def _takes_more(inputs: Sequence[torch.fx.Node]) -> bool:
    """Return whether a graph takes tensors that earlier graphs of the same function did not take, and note them."""
    numbers = capture_id()
    if numbers is None:
        return False
    function, captures = numbers
    names = {node.name for node in inputs}
    if not captures:  # numbers start again after torch._dynamo.reset()
        _inputs_of_functions[function] = names
        return False
    before = _inputs_of_functions.setdefault(function, names)
    more = bool(names - before)
    before |= names
    return more


class _Number(float):
    """A number that Dynamo passes as a tensor of one element, of which a graph takes `item()`."""

    def item(self) -> float:
        """Return the number."""
        return float(self)


def _is_number(node: torch.fx.Node) -> bool:
    """Return whether an input is a number that the graph takes from a tensor of one element."""
    return is_wrapped_number(node) and all(user.target == "item" for user in node.users)


def _is_static(node: torch.fx.Node, value: Any) -> bool:
    """Return whether an input is a parameter or buffer of the module, which Dynamo passes at every call."""
    return isinstance(value, nn.Parameter) or (isinstance(value, Tensor) and is_static_input(node))


class _CapturedGraph:
    """A captured graph with its compiled versions.

    Args:
        graph: The graph.
        static: Which inputs are weights.
        options: The options.
        sizes: The sizes that differ between calls.
        waits: Whether the graph has inputs whose sizes Dynamo sees for the first time, like the caches of the first
            token after a prompt. If they differ in the next call, Dynamo replaces the graph by one of dynamic sizes. So
            PyTorch runs the first call of the graph, unless its sizes are dynamic already.
    """

    def __init__(
        self, graph: torch.fx.GraphModule, static: Sequence[bool], options: Options, sizes: GraphSizes, *, waits: bool
    ) -> None:
        self._graph = graph
        self._static = list(static)
        self._options = options
        self._sizes: GraphSizes | None = sizes or None
        self._waits = waits and not sizes
        self._numbers = [place for place, node in enumerate(_placeholders(graph)) if _is_number(node)]
        self._versions: list[CompiledGraph] = []
        self._recompiled = 0
        self._refused = False
        self._refused_numbers: set[tuple[int | str, ...]] = set()
        self._is_full = False
        self._lock = threading.Lock()

    def __call__(self, *given: Any) -> Any:
        if self._refused or self._waits:
            self._waits = False
            return self._graph(*given)
        inputs = list(given)
        for place in self._numbers:  # they are compiled in, like other numbers
            inputs[place] = _Number(inputs[place].item())
        compiled = self._version(inputs)
        if compiled is None and (self._is_full or _numbers(inputs) in self._refused_numbers):
            return self._graph(*inputs)
        if compiled is None or not compiled.weights.hold():
            compiled = self._compile(inputs)
            if compiled is None:
                return self._graph(*inputs)
        return compiled(inputs)

    def _version(self, inputs: Sequence[Any]) -> CompiledGraph | None:
        """Return the version for the sizes and the weights of a call."""
        for one in self._versions:  # a loop, since every call runs it
            if one.weights.are_in(inputs) and one.serves(inputs):
                return one
        return None

    def _compile(self, inputs: Sequence[Any]) -> CompiledGraph | None:
        """Compile for these sizes and weights. If that fails, warn once and return None."""
        with self._lock:
            if self._refused:  # set by another thread in the meantime
                return None
            compiled = self._version(inputs)
            if compiled is not None and compiled.weights.hold():
                return compiled
            if compiled is None and (self._is_full or _numbers(inputs) in self._refused_numbers):  # likewise
                return None
            left = unused([one.weights for one in self._versions])
            self._drop([one for one in self._versions if one is compiled or one.weights in left])
            if self._recompiled >= WATCHING.changes:
                times = self._recompiled
                self._drop(self._versions)
                self._refuse(f"its weights changed {times} times")
                return None
            if why := self._limit(inputs):
                self._is_full = True
                self._refuse(why)
                return None
            try:
                compiled = self._new_version(inputs)
            except EmptyModel:  # nothing to compile
                self._refused_numbers.add(_numbers(inputs))
                self._refused = not self._versions
                return None
            except Exception as error:  # whatever it is, PyTorch can run the graph
                self._refused_numbers.add(_numbers(inputs))
                self._refuse(f"{type(error).__name__}: {first_line(error)}")
                return None
            self._versions = [*self._versions, compiled]
            return compiled

    def _drop(self, versions: Sequence[CompiledGraph]) -> None:
        """Drop versions whose weights have changed, or which nothing uses any more."""
        for version in versions:
            version.cancel()
        self._versions = [version for version in self._versions if version not in versions]
        self._recompiled += len(versions)

    def _limit(self, inputs: Sequence[Any]) -> str:
        """Return why no further version may be compiled; empty if it may."""
        sets = sum(version.serves(inputs) for version in self._versions)
        if sets >= WATCHING.sets:
            return f"it was called with more than {counted(WATCHING.sets, 'set')} of weights"
        sizes = {version.numbers for version in self._versions} | self._refused_numbers
        if not sets and len(sizes) >= max(1, self._options.sizes):
            most = counted(self._options.sizes, "set")
            return f"it was called with more than {most} of sizes; increase the option sizes"
        return ""

    def _new_version(self, inputs: Sequence[Any]) -> CompiledGraph:
        """Compile a version for many sizes, or for those of the inputs if that fails."""
        if self._sizes is not None:
            try:
                return CompiledGraph(self._graph, self._static, inputs, self._options, self._sizes)
            except Exception:  # which a version for these sizes may not meet
                self._sizes = None
        return CompiledGraph(self._graph, self._static, inputs, self._options)

    def _refuse(self, why: str) -> None:
        """Warn that PyTorch runs the graph. Versions compiled for other sizes stay in use."""
        self._refused = not self._versions
        _warn(f"PyTorch runs a graph of {len(self._graph.graph.nodes)} nodes: {why}")


def _numbers(inputs: Sequence[Any]) -> tuple[int | str, ...]:
    """Return what identifies the numbers among inputs, sizes of tensors among them."""
    return tuple([number_key(x) for x in inputs if isinstance(x, NUMBER)])


class CompiledGraph:
    """A graph compiled for one set of weights, and for one set of sizes or many.

    Args:
        graph: The graph.
        static: Which inputs are weights.
        inputs: Example inputs, including weights.
        options: The options.
        sizes: The sizes that may differ between calls. None to compile for those of the inputs.

    Attributes:
        weights: Detects changes of the weights.
        numbers: The sizes and other numbers among the example inputs.
        call: Maps the inputs that are not weights to the results of the compiled part. It is replaced when tuning has
            found a better version.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        static: Sequence[bool],
        inputs: Sequence[Any],
        options: Options,
        sizes: GraphSizes | None = None,
    ) -> None:
        _check_state_of_pytorch(inputs)
        self.numbers = _numbers(inputs)
        self._graph, self._split, self._warned = graph, SplitGraph(graph), False
        changed = changed_inputs(graph, _placeholders(graph))
        with torch.no_grad():
            self._span = None if sizes is None else sizes.span(graph, inputs, changed)
            self.call, bound = self._optimized(inputs, static, changed, options)
        weights = [(i, x) for i, x in enumerate(inputs) if isinstance(x, Tensor) and i not in self._places]
        self.weights = WeightGuard(weights, by_content=options.watch_weights)
        self._tuning: background.Tuning | None = None
        store = options.file
        if options.background and options.seconds and store is not None:
            examples = tuple(inputs[i].detach() for i in self._places)
            self._tuning = background.tune(self, bound, examples, options, store)

    def _optimized(
        self, inputs: Sequence[Any], static: Sequence[bool], changed: set[int], options: Options
    ) -> tuple[Callable[..., Any], Bound]:
        """Compile the graph. Weights that it changes, such as buffers and caches, become inputs."""
        from felixlike.api import optimize

        limits: dict[str, Any] = {"trials": 0}
        if not options.background and options.seconds:
            limits = {"seconds": options.seconds, "trials": options.trials}
        settings: dict[str, Any] = {"precision": options.precision, "tolerance": options.tolerance}
        while True:
            tensors = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
            self._places = [i for i in tensors if not static[i] or i in changed]
            bound = Bound(self._split.computing, inputs, self._places, self._span).eval()
            model, buffers = self._captured(bound, inputs, options, measures=limits["trials"] != 0)
            if not buffers:
                call = optimize(model, store=options.file, progress=False, **limits, **settings)
                buffers = call.state  # not known before if the model is an earlier run's
            if not buffers:
                return call, bound
            changed = changed | {bound.place_of(name) for name in buffers}

    def _captured(
        self, bound: Bound, inputs: Sequence[Any], options: Options, *, measures: bool
    ) -> tuple[Any, Collection[str]]:
        """Return a model for `optimize`, and the names of the weights that it changes, as far as known.

        A graph of fixed sizes is only exported if nothing is measured, so that an earlier run's model can be used."""
        from felixlike.frontend import export_model, import_model

        examples = tuple(inputs[i].detach() for i in self._places)
        if self._span is not None:
            program = bound.exported(examples)
            return program, program.graph_signature.buffers_to_mutate.values()
        exported = export_model(bound, examples, random=True)
        if not measures:
            return exported, ()
        imported = import_model(exported, target=options.target)
        return imported, imported.mutations.buffers

    def __call__(self, inputs: Sequence[Any]) -> Any:
        try:
            results = self.call(*[inputs[i] for i in self._places])
        except (InputMismatch, SharedInputs) as error:  # raised before anything is computed
            if not self._warned:
                self._warned = True
                _warn(f"PyTorch runs calls of a graph whose {error.what}")
            return self._graph(*inputs)
        return self._split.outputs(inputs, results)

    def serves(self, inputs: Sequence[Any]) -> bool:
        """Return whether this version is for the sizes of a call."""
        return _numbers(inputs) == self.numbers if self._span is None else self._span.holds(inputs)

    def cancel(self) -> None:
        """Stop tuning, because the weights have changed."""
        if self._tuning is not None:
            self._tuning.cancel()


def _check_state_of_pytorch(inputs: Sequence[Any]) -> None:
    """Raise InvalidModel if autocast is enabled or an input is not on the CPU."""
    if torch.is_autocast_enabled("cpu"):
        raise InvalidModel(
            "autocast is enabled, but compiled code uses the graph's dtypes",
            where="graph",
            remedy="call the model outside of torch.autocast",
        )
    for x in inputs:
        if isinstance(x, Tensor) and x.device.type != "cpu":
            raise InvalidModel(
                f"expected all inputs on the CPU, got one on {x.device}", where="graph", remedy="move it: x.cpu()"
            )
