"""Define the sides of comparisons: our models, untuned TVM, and the rivals at their best settings.

Input: a picklable function that creates a module and its inputs. Outputs: functions that create a call of it
(`processes.Make`), each run in its own process, and `Facts` about the call: the precision and the number of threads are
read back from the side after its first answer. Some rivals have two sides, of which the faster one counts: PyTorch
eager has one per memory layout, torch.compile and ONNX Runtime have one with and one without further optimization.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felixlike._util import scratch
from felixlike._util.torch_compat import freeze_weights
from felixlike._util.wording import counted
from felixlike.bench import openvino
from felixlike.bench.answers import packed
from felixlike.bench.precisions import precisions
from felixlike.errors import first_line
from felixlike.hardware import placement
from felixlike.hardware.probe import usable_processors
from felixlike.measure.sides.processes import Loaded, Make, SideFailed

if TYPE_CHECKING:
    from torch import Tensor, nn

    from felixlike.bench.networks import Model

    Inputs = tuple[Tensor, ...]

Call = Callable[[], object]
"""A call of a model on its example inputs."""

EAGER, CHANNELS_LAST = "PyTorch eager", "eager, channels last"
"""Names of the sides of PyTorch in eager mode."""

COMPILED, COMPILED_BEST = "torch.compile", "torch.compile, max-autotune"
"""Names of the sides of torch.compile: default settings, and frozen weights with the slowest search."""

ONNX, ONNX_FUSED = "ONNX Runtime", "ONNX Runtime, fused"
"""Names of the sides of ONNX Runtime: all graph optimizations, and its transformer optimizer before them."""

OPENVINO, OPENVINO_DEFAULT = "OpenVINO float32", "OpenVINO default"
"""Names of the sides of OpenVINO: products in float32, and in the precision that it chooses for this CPU."""

OPENVINO_BFLOAT16 = "OpenVINO bfloat16"
"""Name of the side of OpenVINO in comparisons in bfloat16."""

ZENTORCH, UNTUNED = "zentorch", "TVM untuned"
"""Names of the other sides."""

TUNED, ZERO_SHOT = "tuned", "zero-shot"
"""Names of our sides: a tuned model from its file, and one with predicted schedules (`trials=0`)."""


RIVALS: dict[str, tuple[str, ...]] = {
    EAGER: (EAGER, CHANNELS_LAST),
    COMPILED: (COMPILED, COMPILED_BEST),
    ONNX: (ONNX, ONNX_FUSED),
    OPENVINO: (OPENVINO,),
    OPENVINO_DEFAULT: (OPENVINO_DEFAULT,),
    OPENVINO_BFLOAT16: (OPENVINO_BFLOAT16,),
    ZENTORCH: (ZENTORCH,),
}
"""Columns of the other compilers in tables, with the sides of which a column shows the fastest."""

RIVAL_SIDES = tuple(side for sides in RIVALS.values() for side in sides)
"""The sides of the other compilers, in the order of the columns."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties of a side's call, read back after its first answer.

    Attributes:
        version: Name and version of the package.
        settings: Settings that matter for speed.
        precision: Precision of the floating-point operations, read back.
        threads: Number of threads of a call, read back.
        seconds: Seconds from the model in memory to its first answer, with imports of the side's own packages.
        answer: The tensors of the first answer (`answers.unpacked`).
    """

    version: str
    settings: str
    precision: str
    threads: int
    seconds: float
    answer: bytes


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call of a model.

    Attributes:
        run: The call.
        settings: Settings that matter for speed.
        read_back: Returns the precision and the number of threads that are used. It is called after the first answer.
    """

    run: Call
    settings: str
    read_back: Callable[[], tuple[str, int]]


Prepare = Callable[["nn.Module", "Inputs"], Prepared]
"""Prepares a call of a module on its inputs, in the process of the side."""


def sides_of(precision: str) -> tuple[str, ...]:
    """Return the sides that models tuned in a precision are compared with by default."""
    return tuple(dict.fromkeys(in_precision(side, precision) for side in (*RIVAL_SIDES, ZERO_SHOT)))


def in_precision(side: str, precision: str) -> str:
    """Return the side that takes the place of another one in comparisons in a precision."""
    openvino_sides = (OPENVINO, OPENVINO_DEFAULT, OPENVINO_BFLOAT16)
    if precision == _BFLOAT16:
        return OPENVINO_BFLOAT16 if side in openvino_sides else side
    return OPENVINO_DEFAULT if side == OPENVINO_BFLOAT16 else side


def baselines(
    make: Callable[[], Model],
    names: Sequence[str] = (EAGER, COMPILED, ONNX, UNTUNED),
    precision: str = "float32",
) -> dict[str, Make]:
    """Return the functions that create the baselines' calls, by name.

    Args:
        make: Function that creates a module and its inputs in float32.
        names: Names of sides.
        precision: "float32" or "bfloat16". In bfloat16, PyTorch and zentorch get the module in bfloat16.
    """
    halved = partial(in_bfloat16, make) if precision == _BFLOAT16 else make
    kinds: dict[str, tuple[str, Prepare]] = {
        **_KINDS,
        ZERO_SHOT: ("felixlike", partial(_zero_shot, precision=precision)),
    }
    return {name: partial(loaded, *kinds[name], halved if name in _OF_TORCH else make) for name in names}


def in_bfloat16(make: Callable[[], Model]) -> Model:
    """Create a module and its inputs, and convert their floating-point tensors to bfloat16."""
    model, inputs = make()
    return model.bfloat16(), tuple(x.bfloat16() if x.is_floating_point() else x for x in inputs)


def loaded(package: str, prepare: Prepare, make: Callable[[], Model]) -> Loaded:
    """Create a call, make it once, and return it with its `Facts`.

    Args:
        package: Name of the package that computes the call, for its version.
        prepare: Prepares the call.
        make: Creates the module and its inputs, before the clock starts.

    Raises:
        SideFailed: The package is missing or refuses the model, or a call has another number of threads than
            `placement.threads` returns.
    """
    import torch

    model, inputs = make()
    torch.set_num_threads(placement.threads())
    started = time.perf_counter()
    try:
        prepared = prepare(model, inputs)
        answer = prepared.run()
        seconds = time.perf_counter() - started
        precision, threads = prepared.read_back()
    except SideFailed:
        raise
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        words = f"{missing} is not installed" if missing else f"{type(error).__name__}: {first_line(error)}"
        raise SideFailed(f"{words} ({_version(package)})" if package in sys.modules else words) from error
    if threads != placement.threads():
        raise SideFailed(f"it uses {counted(threads, 'thread')} instead of {placement.threads()}")
    facts = Facts(_version(package), prepared.settings, precision, threads, seconds, packed(answer))
    return Loaded(prepared.run, facts)


def _version(package: str) -> str:
    """Return the name and the version of a package that has been imported."""
    version = str(getattr(sys.modules[package], "__version__", "of unknown version"))
    return f"{package} {version.partition('-')[0]}"  # OpenVINO's commit comes after the dash


def saved(path: Path, make: Callable[[], Model]) -> Loaded:
    """Create the call of a model that felixlike has saved, on the inputs of the original."""
    return loaded("felixlike", partial(_from_file, path), make)


def _from_file(path: Path, model: nn.Module, inputs: Inputs) -> Prepared:
    """Prepare a model that felixlike has saved."""
    import felixlike as fx

    return _ours(fx.load(path), model, inputs, "from its file")


def _zero_shot(model: nn.Module, inputs: Inputs, *, precision: str = "float32") -> Prepared:
    """Prepare a model that felixlike has compiled with predicted schedules, and verified."""
    import felixlike as fx

    optimized = fx.optimize(model, inputs, trials=0, progress=False, precision=precision)
    return _ours(optimized, model, inputs, "trials=0" if precision == "float32" else f"trials=0, precision={precision}")


def _ours(optimized: Any, model: nn.Module, inputs: Inputs, settings: str) -> Prepared:
    """Prepare a model of felixlike. It has the precisions of the original and of the products of its tasks."""
    threads = optimized.threads or placement.threads()
    products = [task.precision for task in optimized.report.tasks]
    precision = precisions([*dtypes(model, inputs).split(" and "), *products])
    return Prepared(lambda: optimized(*inputs), settings, lambda: (precision, threads))


def _untuned(model: nn.Module, inputs: Inputs) -> Prepared:
    """Prepare TVM's code without tuning."""
    from felixlike.frontend import import_model
    from felixlike.runtime import compile_model

    plain = compile_model(import_model(model, inputs))
    threads = placement.threads()
    return Prepared(lambda: plain(*inputs), "no schedules", lambda: (dtypes(model, inputs), threads))


def _eager(model: nn.Module, inputs: Inputs) -> Prepared:
    """Prepare PyTorch in eager mode."""
    return _of_torch(model, model, inputs, "inference mode")


def _channels_last(model: nn.Module, inputs: Inputs) -> Prepared:
    """Prepare PyTorch in eager mode with channels-last layout.

    Inputs and weights of 4 dimensions (images) and 5 dimensions (clips) are converted.
    """
    import torch

    formats: dict[int, Any] = {4: torch.channels_last, 5: torch.channels_last_3d}
    for tensor in (*model.parameters(), *inputs):
        if tensor.dim() in formats:
            tensor.data = tensor.data.contiguous(memory_format=formats[tensor.dim()])
    return _of_torch(model, model, inputs, "inference mode, channels last")


def _compiled(model: nn.Module, inputs: Inputs) -> Prepared:
    """Prepare torch.compile, which compiles in the first call."""
    import torch

    return _of_torch(torch.compile(model), model, inputs, "default mode, inference mode")


def _compiled_best(model: nn.Module, inputs: Inputs) -> Prepared:
    """Prepare torch.compile with constant weights and its search over kernels, which it makes in the first call."""
    import torch

    freeze_weights()  # packs them; gradients must be off
    compiled = torch.compile(model, mode="max-autotune")
    return _of_torch(compiled, model, inputs, 'freezing, mode="max-autotune", no_grad', mode=torch.no_grad)


def _zentorch(model: nn.Module, inputs: Inputs) -> Prepared:
    """Prepare AMD's backend of torch.compile. Raise SideFailed on CPUs for which it does nothing."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.startswith("AVX512"):
        raise SideFailed(f"zentorch optimizes only for CPUs with AVX-512, and this one has {capability}")
    import zentorch  # noqa: F401 (registers the backend)

    freeze_weights()
    compiled = torch.compile(model, backend="zentorch")
    return _of_torch(compiled, model, inputs, "freezing, no_grad", mode=torch.no_grad)


def _of_torch(
    function: Callable[..., object],
    model: nn.Module,
    inputs: Inputs,
    settings: str,
    *,
    mode: Callable[[], Any] | None = None,
) -> Prepared:
    """Prepare a call that PyTorch makes."""
    import torch

    def read_back() -> tuple[str, int]:
        products = torch.get_float32_matmul_precision()
        precision = dtypes(model, inputs) + ("" if products == "highest" else f", products {products}")
        return precision, torch.get_num_threads()

    return Prepared(inference(function, inputs, mode), settings, read_back)


def _onnxruntime(model: nn.Module, inputs: Inputs) -> Prepared:
    """Prepare ONNX Runtime with all its graph optimizations."""
    files = ExitStack()
    return _of_onnxruntime(_exported(model, inputs, files), inputs, "all graph optimizations", files)


def _onnxruntime_fused(model: nn.Module, inputs: Inputs) -> Prepared:
    """Prepare ONNX Runtime after its transformer optimizer. Raise SideFailed if that fuses nothing."""
    from onnxruntime.transformers import optimizer

    files = ExitStack()
    path = _exported(model, inputs, files)
    # The other kinds of models have no further fusions for the graphs that PyTorch exports.
    fused = optimizer.optimize_model(path, model_type="bert", opt_level=0, use_gpu=False)
    operators = [name for name, count in fused.get_fused_operator_statistics().items() if count]
    if not operators:
        files.close()
        raise SideFailed("its transformer optimizer finds nothing to fuse")
    fused.save_model_to_file(path)
    settings = f"transformer optimizer ({', '.join(operators)}), all graph optimizations"
    return _of_onnxruntime(path, inputs, settings, files)


def _of_onnxruntime(path: str, inputs: Inputs, settings: str, files: ExitStack) -> Prepared:
    """Prepare an ONNX file with one thread per core, each bound to its core. `files` is closed after the read-back."""
    import onnxruntime as ort

    def session(**entries: str) -> Any:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads = placement.threads()
        options.log_severity_level = _ONNX_ERRORS
        for name, value in entries.items():
            options.add_session_config_entry(f"session.{name}", value)
        if entries.get(_WEIGHTS):
            options.optimized_model_filepath = f"{path}.optimized"
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def read_back() -> tuple[str, int]:
        with files:
            session(**{_WEIGHTS: "optimized.bin"})
            return _precision_of_onnx(f"{path}.optimized"), run.get_session_options().intra_op_num_threads

    cores = usable_processors()[: placement.threads()]
    # OpenMP bound this thread to the first core; ONNX Runtime counts processors from 1.
    others = ";".join(",".join(str(processor + 1) for processor in sorted(core)) for core in cores[1:])
    run = session(**({"intra_op_thread_affinities": others} if 1 < len(cores) == placement.threads() else {}))
    feed = {spec.name: tensor.numpy() for spec, tensor in zip(run.get_inputs(), inputs, strict=True)}
    return Prepared(lambda: run.run(None, feed), settings, read_back)


_ONNX_ERRORS = 3
"""ONNX Runtime's level of messages from errors on: it warns of optimized graphs that are saved."""

_WEIGHTS = "optimized_model_external_initializers_file_name"
"""ONNX Runtime's option that keeps the weights of a saved graph in a file of their own."""


def _precision_of_onnx(path: str) -> str:
    """Return the floating-point types of the constants, inputs, outputs and casts of the graph that is run."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    types = {constant.data_type for constant in graph.initializer}
    types |= {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output, *graph.value_info)}
    types |= {attribute.i for node in graph.node if node.op_type == "Cast" for attribute in node.attribute}
    names = {onnx.TensorProto.DataType.Name(number).lower() for number in types}
    return precisions("float32" if name == "float" else name for name in names)


def _exported(model: nn.Module, inputs: Inputs, files: ExitStack) -> str:
    """Export a module to an ONNX file, which is removed when `files` is closed."""
    import torch

    path = str(files.enter_context(scratch.temporary("onnx")) / "model.onnx")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, inputs, path, dynamo=False)
    return path


def _openvino(model: nn.Module, inputs: Inputs, *, hints: dict[str, str] | None = None) -> Prepared:
    """Prepare OpenVINO with static shapes, for the least latency of one call.

    It converts the module, or else its export to ONNX.
    """
    package = openvino.imported()

    def converted(source: Any, **more: Any) -> Any:
        graph = package.convert_model(source, **more)
        graph.reshape({port: list(tensor.shape) for port, tensor in zip(graph.inputs, inputs, strict=True)})
        return graph

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source, graph = "the module", converted(model, example_input=inputs)
    except Exception:  # of its front end for PyTorch, which knows fewer operators
        with ExitStack() as files:
            source, graph = "ONNX", converted(_exported(model, inputs, files))
    request = openvino.compiled(graph, **(hints or {}))
    arrays = [tensor.contiguous().numpy() for tensor in inputs]
    for place, array in enumerate(arrays):
        request.set_input_tensor(place, package.Tensor(array, shared_memory=True))

    def run(arrays: Sequence[Any] = arrays) -> list[Any]:  # the request does not keep the arrays whose memory it reads
        return list(request.infer(share_outputs=True).values())

    return Prepared(
        run,
        f"from {source}, static shapes, {openvino.stated(hints or {})}",
        partial(openvino.read_back, request),
    )


_KINDS: dict[str, tuple[str, Prepare]] = {
    EAGER: ("torch", _eager),
    CHANNELS_LAST: ("torch", _channels_last),
    COMPILED: ("torch", _compiled),
    COMPILED_BEST: ("torch", _compiled_best),
    ONNX: ("onnxruntime", _onnxruntime),
    ONNX_FUSED: ("onnxruntime", _onnxruntime_fused),
    OPENVINO: ("openvino", partial(_openvino, hints=openvino.FLOAT32)),
    OPENVINO_DEFAULT: ("openvino", _openvino),
    OPENVINO_BFLOAT16: ("openvino", partial(_openvino, hints=openvino.BFLOAT16)),
    ZENTORCH: ("zentorch", _zentorch),
    UNTUNED: ("tvm", _untuned),
    ZERO_SHOT: ("felixlike", _zero_shot),
}
"""The package of each side, and the function that prepares its call."""

_BFLOAT16 = "bfloat16"

_OF_TORCH = (EAGER, CHANNELS_LAST, COMPILED, COMPILED_BEST, ZENTORCH)
"""Sides that compute a module in its own precision."""


def dtypes(model: nn.Module, inputs: Inputs) -> str:
    """Return the floating-point types of a module's tensors and its inputs."""
    tensors = (*model.parameters(), *model.buffers(), *inputs)
    return precisions(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)


def inference(function: Callable[..., object], inputs: Any, mode: Callable[[], Any] | None = None) -> Call:
    """Create a call without gradients, in `torch.inference_mode` or another mode."""
    import torch

    without_gradients = mode or torch.inference_mode

    def run() -> object:
        with without_gradients():
            return function(*inputs)

    return run
