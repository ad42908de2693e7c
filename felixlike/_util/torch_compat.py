"""Everything that this package uses of PyTorch although PyTorch does not document it, in one place.

Input: a PyTorch of the range in pyproject.toml. Output: functions with a fixed meaning. Other modules use documented
names only, so that a new PyTorch changes this module alone. It imports PyTorch on first use, since that takes a second.
"""

from __future__ import annotations

import functools
import importlib
import operator
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any


def pytree() -> Any:
    """Return PyTorch's module that flattens and rebuilds nested values."""
    from torch.utils import _pytree

    return _pytree


# -- tensors ----------------------------------------------------------------------------------------------------------


def is_fake(value: Any) -> bool:
    """Return whether a value is a tensor without data, of FakeTensorMode."""
    from torch._subclasses import FakeTensor

    return isinstance(value, FakeTensor)


def changes(tensor: Any) -> int:
    """Return PyTorch's counter of changes in place; 0 for inference-mode tensors, which have none."""
    return 0 if tensor.is_inference() else int(tensor._version)


def counters(tensors: Sequence[Any]) -> list[int]:
    """Return the counters of `changes` of several tensors. Raises RuntimeError for inference-mode tensors."""
    return [tensor._version for tensor in tensors]


def storage_id(tensor: Any) -> int:
    """Return a number that tensors of the same storage share, fake tensors too."""
    return int(tensor.untyped_storage()._cdata)


def is_dense(tensor: Any) -> bool:
    """Return whether a strided tensor covers its memory without gaps and overlaps."""
    import torch

    return bool(torch._prims_common.is_non_overlapping_and_dense_or_false(tensor))


def is_contiguous(tensor: Any) -> bool:
    """Return whether a tensor is contiguous; False if this depends on symbolic sizes."""
    from torch._prims_common import is_contiguous_or_false

    return bool(is_contiguous_or_false(tensor))


def size_expression(size: Any) -> Any:
    """Return the expression of a symbolic size in its symbols, after what is known of them; the size itself if it is a
    number."""
    return getattr(getattr(size, "node", None), "expr", size)


def size_hint(size: Any) -> int | None:
    """Return the example's value of a symbolic size, None without one; the size itself if it is a number."""
    if isinstance(size, int):
        return size
    hint = size.node.hint if size.node.has_hint() else None
    return None if hint is None else int(hint)


def assumed_of_sizes(program: Any) -> list[Any]:
    """Return the conditions on symbolic sizes that were taken as facts while a program was exported, and since then.

    They are expressions of sympy in the symbols of the sizes. A program checks those of its export at each call.
    """
    import torch

    for node in program.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else [value]:
            if isinstance(size, torch.SymInt):
                return [guard.expr for guard in size.node.shape_env.guards]
    return []


def condition_text(condition: Any) -> str:
    """Return a condition on sizes as a Python expression in the names of its symbols."""
    from torch.utils._sympy.printers import PythonPrinter

    return str(PythonPrinter().doprint(condition))


def symbols_in(condition: Any) -> list[str]:
    """Return the names of the symbols in a condition on sizes."""
    return sorted(map(str, condition.free_symbols))


def is_false(condition: Any, sizes: Mapping[str, int]) -> bool:
    """Return whether a condition does not hold for sizes, by the names of their symbols."""
    sympy: Any = importlib.import_module("sympy")  # without type annotations
    values = {symbol: sympy.Integer(sizes[str(symbol)]) for symbol in condition.free_symbols if str(symbol) in sizes}
    try:
        return condition.xreplace(values) is sympy.false
    except ArithmeticError:  # such as a division by 0
        return False


def always_equal(size: Any, other: Any) -> bool:
    """Return whether what PyTorch checks before each call makes two symbolic sizes equal."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(size <= other)) and bool(statically_known_true(size >= other))


def is_never_negative(size: Any) -> bool:
    """Return whether what PyTorch checks before each call makes a symbolic number at least 0."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(size >= 0))


def check(condition: Any) -> None:
    """Raise RuntimeError unless a condition holds; torch.export takes one on symbolic sizes as a fact."""
    import torch

    torch._check(condition)  # type: ignore[no-untyped-call]


def is_wrapped(tensor: Any) -> bool:
    """Return whether a tensor is wrapped by a transform, or of a subclass with its own dispatch."""
    import torch

    kind = type(tensor)
    if kind is not torch.Tensor and kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        return True
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor) or torch._is_functional_tensor(tensor))


def tensor_guard(tensors: Sequence[Any]) -> Callable[..., bool] | None:
    """Return the function that tells whether tensors are like these in what compiled code depends on.

    None if PyTorch lacks it.
    """
    import torch

    try:
        guards = torch._C._dynamo.guards.TensorGuards
        check: Callable[..., bool] = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    except (AttributeError, TypeError):
        return None
    return check


class Workspace:
    """Memory for the values of tensors that are converted at each use, which operators use one after another.

    New memory for each would take several times as long as converting them, since the system clears its pages.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: list[Any] = []

    def run(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator with its tensors of `converted_at_use` converted."""
        import torch

        if not self._lock.acquire(blocking=False):  # another thread of the model
            return operator(*self._converted(args, torch.empty), **self._converted(kwargs, torch.empty))
        try:
            used = 0

            def buffer(size: int, *, dtype: Any) -> Any:
                nonlocal used
                used += 1
                if len(self._buffers) < used:
                    self._buffers.append(torch.empty(0, dtype=dtype))
                if self._buffers[used - 1].dtype is not dtype or self._buffers[used - 1].numel() < size:
                    self._buffers[used - 1] = torch.empty(size, dtype=dtype)
                return self._buffers[used - 1][:size]

            results = operator(*self._converted(args, buffer), **self._converted(kwargs, buffer))
            memory = {storage_id(tensor) for tensor in self._buffers[:used]}
            return pytree().tree_map_only(
                torch.Tensor, lambda result: result.clone() if storage_id(result) in memory else result, results
            )
        finally:
            self._lock.release()

    def _converted(self, arguments: Any, empty: Callable[..., Any]) -> Any:
        """Return arguments with the values of tensors, in memory that `empty` gives for a size and a dtype."""

        def convert(tensor: Any) -> Any:
            source = tensor.source
            if not is_dense(source):
                return source.to(tensor.dtype)
            return empty(source.numel(), dtype=tensor.dtype).as_strided(source.shape, source.stride()).copy_(source)

        return pytree().tree_map_only(_converting_class(), convert, arguments)


def converted_at_use(tensor: Any, dtype: Any, workspace: Workspace) -> Any:
    """Return a read-only tensor of another dtype, whose values are converted for each operator that reads them.

    It shares the memory of `tensor`, and its values are in the workspace while an operator runs. Views of it are the
    same kind of tensor. Operators that would change it or view its bytes as another dtype raise TypeError.
    """
    return _converting_class()(tensor, dtype, workspace)


def is_converted_at_use(tensor: Any) -> bool:
    """Return whether a tensor, or a parameter, is one of `converted_at_use`."""
    return isinstance(tensor, _converting_class())


@functools.cache
def _converting_class() -> Any:
    """Return the class of the tensors of `converted_at_use`."""
    import torch

    lookups = torch.ops.aten.embedding.default, torch.ops.aten.index_select.default

    class Converting(torch.Tensor):
        source: torch.Tensor
        workspace: Workspace

        @staticmethod
        def __new__(cls: Any, source: torch.Tensor, dtype: torch.dtype, workspace: Workspace) -> Any:
            made = torch.Tensor._make_wrapper_subclass(
                cls, source.shape, source.stride(), source.storage_offset(), dtype=dtype, device=source.device
            )
            made.source, made.workspace = source, workspace
            return made

        # torch's annotations describe these two methods as they are inherited, not as subclasses define them.
        __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

        @classmethod
        def __torch_dispatch__(  # type: ignore[override]
            cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if operator._schema.is_mutable:
                raise TypeError(f"{operator} changes a tensor that is converted at each use")
            if operator.is_view:  # of its first argument
                if any(isinstance(argument, torch.dtype) for argument in args):
                    raise TypeError(f"{operator} reads the bytes of a tensor that is converted at each use")
                viewed = args[0]
                views = operator(viewed.source, *args[1:], **kwargs)
                return pytree().tree_map_only(torch.Tensor, lambda v: cls(v, viewed.dtype, viewed.workspace), views)
            if operator in lookups and isinstance(args[0], cls):  # of few rows: only these are converted
                return operator(args[0].source, *args[1:], **kwargs).to(args[0].dtype)
            converting = next(x for x in pytree().tree_leaves((args, kwargs)) if isinstance(x, cls))
            return converting.workspace.run(operator, args, kwargs)

    return Converting


# -- operators --------------------------------------------------------------------------------------------------------


def is_operator(target: Any) -> bool:
    """Return whether the target of a call in a graph is an overload of an operator."""
    import torch

    return isinstance(target, torch._ops.OpOverload)


def schema_of(operator: Any) -> Any:
    """Return the schema of an operator."""
    return operator._schema


def viewed_argument(node: Any) -> Any:
    """Return the argument that the result of a node in a graph may share memory with; None if it has memory of its own.

    An element of a list of views is a view of what the list is made from.
    """
    if node.target is operator.getitem:
        return viewed_argument(node.args[0])
    if not is_operator(node.target):
        return None
    schema = schema_of(node.target)
    results = [result.alias_info for result in schema.returns]
    given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | node.kwargs
    if len(results) != 1 or results[0] is None or given.get("copy"):
        return None
    sources = [a.name for a in schema.arguments if a.alias_info and a.alias_info.before_set & results[0].before_set]
    return given.get(sources[0]) if sources else None


def copy_state(program: Any) -> None:
    """Give an ExportedProgram dictionaries of weights and constants that no other program has."""
    program._state_dict, program._constants = dict(program.state_dict), dict(program.constants)


def keep_error_checks() -> None:
    """Keep checks that raise errors, as of singular matrices, in graphs. PyTorch 2.11 removes them as unused."""
    import torch

    torch.fx.node.has_side_effect(torch.ops.aten._linalg_check_errors.default)


@contextmanager
def operators_found_once() -> Iterator[None]:
    """Look up PyTorch's composite operators once inside the context, while a program is decomposed.

    PyTorch does so twice for each namespace of operators, since libraries may add operators at any time. That takes
    half a second. Only one thread at a time can be inside.
    """
    from torch._export import utils

    look_up = utils._materialize_cpp_cia_ops
    found = False

    def once() -> None:
        nonlocal found
        if not found:
            look_up()
            found = True

    utils._materialize_cpp_cia_ops = once
    try:
        yield
    finally:
        utils._materialize_cpp_cia_ops = look_up


def lstm_has_wrong_states() -> bool:
    """Return whether this PyTorch decomposes aten.lstm into states of a wrong shape, as it does before 2.13."""
    import torch

    return torch.__version__ < "2.13"


def lstm(*arguments: Any) -> Any:
    """Compute aten.lstm by PyTorch's decomposition."""
    from torch._decomp.decompositions import lstm_impl

    return lstm_impl(*arguments)


@contextmanager
def without_left_hooks() -> Iterator[None]:
    """Remove the hooks for buffers of every module that are registered inside the context and left there.

    A torch.export that fails leaves one. Assignments to the model's buffers would then raise, and torch.compile would
    break graphs at those of others.
    """
    from torch.nn.modules import module

    hooks: Any = module._global_buffer_registration_hooks
    before = set(hooks)
    try:
        yield
    finally:
        for left in set(hooks) - before:
            del hooks[left]


@contextmanager
def unchecked_distributions() -> Iterator[None]:
    """Turn off checks of the parameters and values of torch.distributions inside the context.

    They are branches on the values of tensors, which torch.export refuses. torch.compile turns them off, too.
    """
    from torch.distributions import Distribution

    checked = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(checked)


@contextmanager
def conversions_without_effect() -> Iterator[None]:
    """Let modules be converted to the dtype that they have, inside the context.

    torch.export cannot convert the weights of a module in its forward, even if all stay as they are, as in routers of
    `transformers`. Only one thread at a time can be inside.
    """
    from torch.nn import Module

    original: Any = Module._apply

    @functools.wraps(original)
    def apply(self: Any, convert: Callable[[Any], Any], recurse: bool = True) -> Any:
        tensors = (*self.parameters(recurse), *self.buffers(recurse))
        return self if all(convert(tensor) is tensor for tensor in tensors) else original(self, convert, recurse)

    Module._apply = apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        Module._apply = original  # type: ignore[method-assign]


@contextmanager
def recurrent_shapes() -> Iterator[None]:
    """Let FakeTensorMode compute the shapes of recurrent layers without their steps, inside the context.

    PyTorch goes through all steps to find the shapes, which takes some 10 ms each. Decompositions that are traced are
    not changed, nor are packed sequences and symbolic sizes, whose length PyTorch must find to be fixed. Only one
    thread at a time can be inside.
    """
    from torch._decomp import decompositions
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    original: Any = decompositions._rnn_helper

    def helper(x: Any, hidden: Sequence[Any], *rest: Any) -> Any:
        known = is_fake(x) and x.dim() == 3 and all(isinstance(size, int) for size in x.shape)
        if not known or get_proxy_mode() is not None:
            return original(x, hidden, *rest)
        *_, bidirectional, batch_first, _ = rest
        last = [
            tuple(s.new_empty(s.shape) for s in h) if isinstance(h, tuple) else h.new_empty(h.shape) for h in hidden
        ]
        width = (last[0][0] if isinstance(last[0], tuple) else last[0]).shape[-1]
        steps = x.transpose(0, 1) if batch_first else x
        out = x.new_empty((*steps.shape[:2], width * (2 if bidirectional else 1)))
        return out.transpose(0, 1) if batch_first else out, last

    decompositions._rnn_helper = helper
    try:
        yield
    finally:
        decompositions._rnn_helper = original


@contextmanager
def without_code_of_callers() -> Iterator[None]:
    """Let FakeTensorMode hold no code of its callers, inside the context. Only one thread at a time can be inside.

    A mode holds the stack that created it, and from Python 3.14 on a stack holds the code of its frames. PyTorch
    keeps modes after an export, in caches and in graphs that it does not free. TorchDynamo keeps the compiled graphs
    of code that is held, with their weights, even after torch._dynamo.reset.
    """
    from torch._subclasses import FakeTensorMode

    mode: Any = FakeTensorMode
    original = mode.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        for frame in self._stack_trace:
            if hasattr(frame, "_code"):
                frame._code = None  # Python only reads source lines from it, of code that has no file

    mode.__init__ = init
    try:
        yield
    finally:
        mode.__init__ = original


def below_autograd() -> AbstractContextManager[None]:
    """Return a context in which operators are called without autograd."""
    import torch

    guard: AbstractContextManager[None] = torch._C._AutoDispatchBelowAutograd()
    return guard


def c_library() -> str:
    """Return the path of PyTorch's C library, which is linked with all others."""
    import torch

    return str(torch._C.__file__)


# -- modes and transforms ---------------------------------------------------------------------------------------------


def dispatch_depth() -> Callable[[], int]:
    """Return the function that counts the active dispatch modes of a thread, for calls that look it up once."""
    import torch

    depth: Callable[[], int] = torch._C._len_torch_dispatch_stack
    return depth


def has_dispatch_modes() -> bool:
    """Return whether a dispatch mode is active in this thread.

    The modes of torch.export are in a process-wide list, but its dispatch key is thread-local.
    """
    import torch

    operators: Any = torch._ops
    exports = torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PreDispatch)
    return bool(
        torch._C._len_torch_dispatch_stack() or (exports and operators._len_torch_dispatch_stack_pre_dispatch())
    )


def is_tracing() -> bool:
    """Return whether torch.jit traces."""
    import torch

    return torch._C._get_tracing_state() is not None


def is_differentiated() -> bool:
    """Return whether a transform of torch.func that differentiates is active."""
    import torch

    transforms = {level.key() for level in torch._C._functorch.get_interpreter_stack() or ()}
    kinds = torch._C._functorch.TransformType
    return bool(transforms & {kinds.Grad, kinds.Jvp})


def in_forward_mode() -> bool:
    """Return whether forward-mode differentiation is active."""
    from torch.autograd import forward_ad

    return forward_ad._current_level >= 0


def has_modes() -> bool:
    """Return whether `without_modes` has anything to disable in this thread."""
    import torch

    core: Any = torch._C
    return bool(  # a default device is a function mode
        core._len_torch_function_stack() or core._functorch.peek_interpreter_stack() is not None or has_dispatch_modes()
    )


@contextmanager
def without_modes() -> Iterator[None]:
    """Disable transforms such as vmap, dispatch modes and function modes (the default device is one)."""
    import torch
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
    from torch.utils import _device, _python_dispatch

    with ExitStack() as stack:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            stack.enter_context(temporarily_clear_interpreter_stack())
        if has_dispatch_modes():
            stack.enter_context(_python_dispatch._disable_current_modes())
        count = torch._C._len_torch_function_stack()
        modes = [torch._C._pop_torch_function_stack() for _ in range(count)]
        places: tuple[tuple[Any, str], ...] = (
            (torch._GLOBAL_DEVICE_CONTEXT, "device_context"),
            (_device, "CURRENT_DEVICE"),
        )
        devices = [getattr(place, name, None) for place, name in places]
        for place, name in places:
            setattr(place, name, None)
        try:
            yield
        finally:
            for (place, name), device in zip(places, devices, strict=True):
                setattr(place, name, device)
            for mode in reversed(modes):
                torch._C._push_on_torch_function_stack(mode)


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Disable the hooks of `torch.autograd.graph.saved_tensors_hooks`."""
    import torch

    hooks: Any = torch._C._autograd
    saved = []
    while (pair := hooks._top_saved_tensors_default_hooks(True)) is not None:
        hooks._pop_saved_tensors_default_hooks()
        saved.append(pair)
    try:
        yield
    finally:
        for pack, unpack in reversed(saved):
            hooks._push_saved_tensors_default_hooks(pack, unpack)


# -- TorchDynamo ------------------------------------------------------------------------------------------------------


def compile_lock(*, load: bool) -> AbstractContextManager[Any] | None:
    """Return the lock that TorchDynamo holds while it compiles a graph; None if TorchDynamo is not loaded.

    load: Whether to load it.
    """
    name = "torch._dynamo.convert_frame"
    if load:
        importlib.import_module(name)
    dynamo: Any = sys.modules.get(name)
    if dynamo is None:
        return None
    lock: AbstractContextManager[Any] = dynamo.compile_lock
    return lock


def capture_id() -> tuple[int, int] | None:
    """Return numbers of the function whose graph TorchDynamo is compiling, and of its captures so far; None if it is
    compiling none.
    """
    from torch._guards import CompileContext

    numbers = CompileContext.current_compile_id()
    if numbers is None or numbers.frame_id is None or numbers.frame_compile_id is None:
        return None
    return numbers.frame_id, numbers.frame_compile_id


def is_wrapped_number(node: Any) -> bool:
    """Return whether an input of a graph of Dynamo's is a Python float, which Dynamo passes as a tensor."""
    import torch

    value = node.meta.get("example_value")
    is_scalar = isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype is torch.float64
    return is_scalar and bool(getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False))


def forward_of(graph: Any) -> Callable[..., Any]:
    """Return the forward of a GraphModule. Calling one whose code is not generated yet prints each error."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    _LazyGraphModule.force_recompile(graph)
    forward: Callable[..., Any] = graph.forward
    return forward


def run_with_metadata(graph: Any, inputs: Sequence[Any]) -> Any:
    """Run a graph of Dynamo's so that an export of it has its metadata, such as the user's modules."""
    import torch
    from torch.fx import traceback

    with traceback.preserve_node_meta():
        return torch.fx.Interpreter(graph).run(*inputs, enable_io_processing=False)


def is_static_input(node: Any) -> bool:
    """Return whether a placeholder of TorchDynamo's graph is marked as a parameter or buffer."""
    return "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


def freeze_weights() -> None:
    """Let torch.compile take weights for constants in this process."""
    from torch._inductor import config

    config.freezing = True
