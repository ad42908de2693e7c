"""The only module that knows TVM's unstable import paths, and the versions they are true for.

In: nothing. Out: TVM's names under short ones; everyone else imports them from here. Importing this module imports TVM
(2–4 s), so the package does it only when something needs TVM.
"""

import ctypes
import hashlib
import importlib.util
import os
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from importlib import metadata
from typing import Any

from felixlike.errors import VersionMismatch
from felixlike.interrupts import Terminated

TVM_VERSION = "0.27"
FFI_VERSION = "0.1.14"


def check_versions(installed: dict[str, str] | None = None) -> None:
    """Raise VersionMismatch unless TVM and its FFI are the versions this package was written for.

    installed: package name → version; None reads what is installed. Called before TVM is imported, since
    apache-tvm-ffi 0.1.15 makes MetaSchedule's default rules segfault: too late for an exception."""
    for package, wanted in (("apache-tvm", TVM_VERSION), ("apache-tvm-ffi", FFI_VERSION)):
        try:
            found = metadata.version(package) if installed is None else installed[package]
        except (metadata.PackageNotFoundError, KeyError):
            found = "none"
        if found != wanted and not found.startswith(wanted + "."):
            raise VersionMismatch(
                f"{package} is {found}, but {wanted}.* is needed",
                where="installed packages",
                remedy='install what the constraints file names: pip install "apache-tvm==0.27.0.post1" '
                '"apache-tvm-ffi>=0.1.14,<0.1.15"',
            )


check_versions()

import tvm  # noqa: E402
import tvm.s_tir as s_tir  # noqa: E402
import tvm_ffi  # noqa: E402
from tvm import IRModule, ir, relax, rpc, runtime, sym, te, tirx, topi, transform  # noqa: E402
from tvm.ir.instrument import pass_instrument  # noqa: E402
from tvm.ir.utils import derived_object  # noqa: E402
from tvm.s_tir import Schedule, ScheduleError  # noqa: E402
from tvm.s_tir import meta_schedule as ms  # noqa: E402
from tvm.s_tir.analysis import estimate_tir_flops  # noqa: E402
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply  # noqa: E402
from tvm.s_tir.schedule import Trace  # noqa: E402
from tvm.target import Target  # noqa: E402
from tvm.tirx import PrimFunc  # noqa: E402
from tvm_ffi import _ffi_api, load_module  # noqa: E402
from tvm_ffi.structural import structural_equal, structural_hash, structural_map, structural_walk  # noqa: E402

__all__ = [
    "TVM_ERRORS",
    "IRModule",
    "PostOrderApply",
    "PrimFunc",
    "Schedule",
    "ScheduleError",
    "SessionTimeout",
    "Target",
    "Trace",
    "array_item",
    "bits",
    "builders_end_their_blocks",
    "check_versions",
    "code_digest",
    "compile_primfuncs",
    "compile_relax",
    "cpu_features",
    "cuda_binary",
    "default_schedules",
    "description_in",
    "device_of",
    "estimate_tir_flops",
    "found",
    "host_cpu",
    "host_features",
    "identity",
    "ir",
    "is_reduction",
    "is_spatial",
    "knows_cpu",
    "launch_threads",
    "llvm_version",
    "map_functions",
    "ms",
    "no_rule_is_unknown",
    "onnx_importer",
    "open_library",
    "own_space",
    "pass_instrument",
    "postprocessor",
    "relax",
    "relink_relax",
    "remote_device",
    "rpc",
    "runs_in_parallel",
    "runtime",
    "s_tir",
    "schedule_rule",
    "simplify",
    "structural_equal",
    "structural_hash",
    "structural_map",
    "structural_walk",
    "substituted",
    "sym",
    "te",
    "tirx",
    "topi",
    "torch_importer",
    "transform",
    "tune_context",
    "tvm",
    "uses",
    "version",
    "wake_threads",
    "with_flat_buffers",
    "with_host",
    "without_attributes",
    "without_blocks",
]

array_item = _ffi_api.ArrayGetItem
"""An element of one of TVM's arrays, in half the time of array[i]."""

SessionTimeout = tvm.error.RPCSessionTimeoutError
"""What a call on a server raises once the session's time is up."""

TVM_ERRORS = (RuntimeError, ValueError, TypeError)
"""What TVM raises when it refuses something: its FFI turns C++ errors into these (InternalError is a RuntimeError)."""

for _interrupt in (KeyboardInterrupt, Terminated):
    tvm_ffi.register_error(_interrupt.__name__, _interrupt)  # else one that arrives in a callback is a RuntimeError


def identity(value: Any) -> int | None:
    """The same number for two handles of one TVM object, as long as it lives; None for plain Python values.

    Random variables of a trace cannot be hashed, and comparing them one by one with same_as is slow."""
    handle = getattr(value, "__chandle__", None)
    return int(handle()) if handle is not None else None


def uses(expression: Any, variable: Any) -> bool:
    """Whether a TVM variable occurs in a TVM expression."""
    return any(other.same_as(variable) for other in found(expression, tirx.Var))


def simplify(expression: Any) -> Any:
    """A PrimExpr as TVM's simplifier leaves it where nothing is known of its variables."""
    return sym.Analyzer().simplify(expression)


def is_spatial(iterator: Any) -> bool:
    """Whether a block's iterator is data-parallel: each of its values computes something of its own."""
    return int(iterator.iter_type) == int(tirx.IterVar.DataPar)


def is_reduction(iterator: Any) -> bool:
    """Whether a block's iterator is reduced over: its values are summed up, or the largest is taken."""
    return int(iterator.iter_type) == int(tirx.IterVar.CommReduce)


def bits(dtype: Any) -> int:
    """Bits of one element of a type of TVM's."""
    return int(runtime.DataType(str(dtype)).bits)


def without_attributes(func: Any, *names: str) -> Any:
    """A PrimFunc without these attributes, whether it has them or not."""
    for name in names:
        if func.attrs and name in func.attrs:
            func = func.without_attr(name)
    return func


def map_functions(module: Any, change: Callable[[Any], Any]) -> Any:
    """The IRModule with every PrimFunc changed; other functions stay."""
    functions = {name: change(f) if isinstance(f, PrimFunc) else f for name, f in module.functions.items()}
    return IRModule(functions, attrs=module.attrs)


def found(root: Any, kind: Any) -> list[Any]:
    """All nodes of a kind below a TVM object, itself included, in post-order: what a node holds comes before it, from
    left to right."""
    nodes: list[Any] = []
    structural_walk(root, (kind, nodes.append))
    return nodes


def substituted(root: Any, values: Mapping[Any, Any]) -> Any:
    """A TVM object with expressions or numbers for some of its variables; a number becomes a constant of its variable's
    type.

    values: by variable, told apart as objects (an object's hash is its address in TVM), not by name."""

    def put(variable: Any) -> Any:
        value = values.get(variable, variable)
        return tirx.const(value, str(variable.ty.dtype)) if isinstance(value, int) else value

    return structural_map(root, (tirx.Var, put))


def without_blocks(func: Any) -> Any:
    """A scheduled PrimFunc for a CPU as plain loops: what TVM's own pipeline (tvm/s_tir/pipeline.py) starts with.

    The pipeline may follow; it then finds this done. A function that holds no blocks any more stays as it is."""
    if not found(func.body, s_tir.SBlock):
        return func
    t = s_tir.transform
    passes = [
        t.CanonicalizeLoop(),
        t.LowerInitBlock(),
        t.PlanAndUpdateBufferAllocationLocation(),
        t.ConvertBlocksToOpaque(),
        t.CompactBufferAllocation(),
        t.LowerMatchBuffer(),
        t.StmtSimplify(),
        t.LowerOpaqueBlock(),
    ]
    return transform.Sequential(passes)(IRModule({"main": func}))["main"]


def with_flat_buffers(func: Any) -> Any:
    """A PrimFunc of plain loops whose buffers have one dimension, indices simplified as they are now.

    TVM does so itself, but after it has simplified each index by itself: (i + 16) mod 14 then is (i + 2) mod 14, which
    no longer cancels out with (i + 16) div 14."""
    return tirx.transform.FlattenBuffer()(IRModule({"main": func}))["main"]


def runs_in_parallel(module: Any) -> bool:
    """Whether code of a lowered IRModule may run on several threads."""
    parallel = tirx.ForKind.PARALLEL
    functions = [f for _, f in module.functions.items() if isinstance(f, PrimFunc)]
    return any(loop.kind == parallel for f in functions for loop in found(f.body, tirx.For))


_INTRINSICS = "tvm.s_tir.tensor_intrin"


def version() -> str:
    """TVM's version, as stored beside measurements."""
    return str(tvm.__version__)


def llvm_version() -> str:
    """The version of the LLVM that TVM generates code with."""
    return str(tvm.target.codegen.llvm_version_major())


def host_cpu() -> str:
    """LLVM's name of the processor of this machine."""
    return str(tvm.target.codegen.llvm_get_system_cpu())


@contextmanager
def without_tensor_intrinsics() -> Iterator[None]:
    """Let a TuneContext be made without importing TVM's tensor intrinsics, which takes 20 s.

    TuneContext imports `tvm.s_tir.tensor_intrin`, whose ~500 TVMScript functions each walk inspect.stack(). The plain
    "llvm" and "cuda" rules never look an intrinsic up, so an empty module stands in for the import, and is
    taken away again: others in this process still get the real one."""
    if _INTRINSICS in sys.modules:
        yield
        return
    stand_in = types.ModuleType(_INTRINSICS)
    sys.modules[_INTRINSICS] = stand_in
    s_tir.tensor_intrin = stand_in
    try:
        yield
    finally:
        if sys.modules.get(_INTRINSICS) is stand_in:
            del sys.modules[_INTRINSICS]
        if getattr(s_tir, "tensor_intrin", None) is stand_in:
            del s_tir.tensor_intrin


def tune_context(module: Any, target: Any, *, seed: int = 1, space: Any = None) -> Any:
    """A MetaSchedule context for one PrimFunc's module.

    space: a space generator; None gives the plain rules of the target's kind (llvm or cuda). They are named explicitly
    because TVM otherwise picks those with tensor intrinsics, silently."""
    rules = str(target.kind.name)
    with without_tensor_intrinsics():
        return ms.TuneContext(
            mod=module,
            target=target,
            space_generator=space or PostOrderApply(sch_rules=rules, postprocs=rules, mutator_probs=rules),
            search_strategy="replay-trace",
            task_name="main",
            rand_state=seed,
            num_threads=1,
        )


_asking_for_rules = threading.Lock()


@contextmanager
def no_rule_is_unknown(module: Any, target: Any) -> Iterator[None]:
    """Let a design space be generated without TVM's words on stderr about rules that blocks ask for and nobody has.

    topi's pooling asks for such rules. Where ApplyCustomRule finds none it prints a warning and takes the note off the
    block (src/s_tir/meta_schedule/schedule_rule/apply_custom_rule.cc); a rule that does just this stands in for each,
    and is taken away again. Rules that are there stay what they are."""
    wanted = {str(block.annotations[_NOTE]) for block in _blocks(module) if _NOTE in block.annotations}
    with _asking_for_rules, ExitStack() as stack:
        for rule in sorted(wanted - {"None"}):
            names = [f"s_tir.meta_schedule.{key}.{rule}" for key in target.keys]
            if names and all(tvm_ffi.get_global_func(name, allow_missing=True) is None for name in names):
                tvm_ffi.register_global_func(names[0], _take_note_off)
                stack.callback(tvm_ffi.registry.remove_global_func, names[0])
        yield


_NOTE = "schedule_rule"


def _take_note_off(schedule: Any, block: Any) -> list[Any]:
    schedule.unannotate(block, _NOTE)
    return [schedule]


def _blocks(module: Any) -> list[Any]:
    functions = [function for function in module.functions.values() if isinstance(function, PrimFunc)]
    return [block for function in functions for block in found(function.body, s_tir.SBlock)]


@contextmanager
def builders_end_their_blocks() -> Iterator[None]:
    """Let an importer fail without TVM's words on stderr about blocks that were never ended.

    BlockBuilder leaves the outermost block of a function open when an error passes through its scope, and its
    destructor then prints a warning (src/relax/ir/block_builder.cc)."""

    def leave(builder: Any, kind: Any, error: Any, at: Any) -> None:
        if kind is not None:
            with suppress(*TVM_ERRORS):
                builder._end_block()
        original(builder, kind, error, at)

    with _importing:
        original = relax.BlockBuilder._exit_function_scope
        relax.BlockBuilder._exit_function_scope = leave
        try:
            yield
        finally:
            relax.BlockBuilder._exit_function_scope = original


_importing = threading.Lock()


def own_space(rules: Sequence[Any], postprocessors: Sequence[Any]) -> Any:
    """A space generator of our own schedule rules and just these postprocessors.

    MetaSchedule's RewriteParallelVectorizeUnroll had better not be among them: it refuses loops that are parallel."""
    return PostOrderApply(sch_rules=list(rules), postprocs=list(postprocessors), mutator_probs={})


@derived_object
class _Rule(ms.schedule_rule.PyScheduleRule):  # type: ignore[misc]
    """A function (schedule, block) → schedules as MetaSchedule's schedule rule."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def _initialize_with_tune_context(self, context: Any) -> None:
        pass

    def apply(self, schedule: Any, block: Any) -> list[Any]:
        return self.function(schedule.copy(), block) or [schedule]

    def clone(self) -> Any:
        return _Rule(self.function)


@derived_object
class _Postprocessor(ms.postproc.PyPostproc):  # type: ignore[misc]
    """A function schedule → bool, whether it is accepted, as MetaSchedule's postprocessor."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def _initialize_with_tune_context(self, context: Any) -> None:
        pass

    def apply(self, schedule: Any) -> bool:
        return bool(self.function(schedule))

    def clone(self) -> Any:
        return _Postprocessor(self.function)


def schedule_rule(function: Any) -> Any:
    """MetaSchedule's rule for a function (schedule, block) → schedules; none means that it does not apply."""
    return _Rule(function)


def postprocessor(function: Any) -> Any:
    """MetaSchedule's postprocessor for a function schedule → bool, whether the schedule is accepted."""
    return _Postprocessor(function)


_ONE_PROCESSOR_EACH = -2
"""kSpecifyOneCorePerThread (src/runtime/threading_backend.h)."""

_LAUNCHED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
"""FTVMParallelLambda (tvm/runtime/c_backend_api.h): task, environment, data → 0."""


def launch_threads(processors: Sequence[int]) -> list[int]:
    """Have TVM run code that the calling thread calls on a thread for each of these processors, itself among them: the
    system's numbers of the threads that it does run on.

    TVM reads how many from the environment at every parallel loop, and takes half of the logical processors where it
    finds nothing, unless it was told on the same thread; nothing has to stand in the environment then, where children
    would find it.  Changes what the calling thread may run on (src/runtime/threading_backend.cc, SetAffinity)."""
    names = [str(processor) for processor in processors]
    tvm.get_global_func("runtime.config_threadpool")(_ONE_PROCESSOR_EACH, len(names), names)
    return wake_threads()


def wake_threads() -> list[int]:
    """Run nothing on the calling thread's pool: the system's numbers of its threads, which then wait for more work for
    some 30 ms before they sleep."""
    found: dict[int, int] = {}

    def note(task: int, environment: Any, data: Any) -> int:
        found[task] = threading.get_native_id()
        return 0

    ctypes.CDLL(None).TVMBackendParallelLaunch(_LAUNCHED(note), None, 0)
    return [found[task] for task in sorted(found)]


def cpu_features(target: Any) -> frozenset[str]:
    """LLVM's names of the instruction sets and tunings that code for this llvm target may rely on."""
    return frozenset(str(feature) for feature in tvm.target.codegen.llvm_get_cpu_features(target))


def knows_cpu(name: str, triple: str) -> bool:
    """Whether LLVM knows a processor by this name. Of another it would say so on stderr, and take a plain one."""
    return bool(tvm.target.codegen.llvm_is_valid_cpu(name, triple))


def host_features() -> frozenset[str]:
    """What the processor of this machine can do, by LLVM's own look at it."""
    found = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    return frozenset(str(feature) for feature, present in found.items() if present)


def device_of(target: Any) -> Any:
    """The device that code for a target runs on: the first GPU, or the CPU.  Its `exist` says whether it is there."""
    return tvm.runtime.device("cuda", 0) if target.kind.name == "cuda" else tvm.runtime.device("cpu", 0)


def remote_device(session: Any, target: Any) -> Any:
    """The same of a server.  session: an RPC session with it."""
    return session.device(device_of(target).type)


def with_host(target: Any) -> Any:
    """A target that says what its host is: this machine's processor."""
    return target if target.host is not None else Target(target, host={"kind": "llvm", "mcpu": host_cpu()})


def compile_primfuncs(module: Any, target: Any) -> Any:
    """An IRModule of scheduled PrimFuncs as an Executable.  CUDA code is compiled by nvrtc, or by nvcc where the
    Python package of nvrtc is missing, for the architecture the target names.  On CPUs exp and its like become
    arithmetic (felixlike.lowering)."""
    if target.kind.name != "cuda":
        from felixlike.lowering import lower

        return tvm.compile(lower(module), target=target)
    target = with_host(target)
    with target, _cuda_compiler():
        return tvm.compile(module, target=target)


_ADDRESS = re.compile(r'(?<=!")0x[0-9a-f]+')
"""How TVM names buffers in LLVM's alias metadata: by where they lie in memory, so anew in every process."""


def code_digest(executable: Any) -> str:
    """The same for Executables with the same generated code: of LLVM's optimised text, and of a GPU's source."""
    digest = hashlib.sha256(_ADDRESS.sub("", executable.mod.inspect_source("ll")).encode())
    for device_module in executable.mod.imports:
        digest.update(device_module.inspect_source().encode())
    return digest.hexdigest()


def default_schedules(module: Any, target: Any) -> Any:
    """An IRModule whose unscheduled PrimFuncs have TVM's default GPU schedule (dlight); for CPUs the module itself.

    Plain loops cannot run on a GPU: nothing in them is bound to threads."""
    if target.kind.name != "cuda":
        return module
    from tvm.s_tir import dlight

    gpu = dlight.gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    with target:
        return dlight.ApplyDefaultSchedule(*rules)(module)


@contextmanager
def _cuda_compiler() -> Iterator[None]:
    """TVM compiles CUDA code by nvcc inside, where the Python package of nvrtc is missing and nothing was chosen."""
    chosen = "TVM_CUDA_COMPILE_MODE" in os.environ or importlib.util.find_spec("cuda") is not None
    if not chosen:
        os.environ["TVM_CUDA_COMPILE_MODE"] = "nvcc"
    try:
        yield
    finally:
        if not chosen:
            del os.environ["TVM_CUDA_COMPILE_MODE"]


def cuda_binary(module: Any, target: Any) -> bytes:
    """The machine code nvcc makes of a scheduled IRModule for a cuda target. Raises RuntimeError with nvcc's words.

    TVM only writes CUDA source while there is no GPU; nvcc is called on it here."""
    from tvm.support import nvcc

    compiled = tvm.compile(module, target=with_host(target))
    source = compiled.mod.imports[0].inspect_source()
    with target:
        return bytes(nvcc.compile_cuda(source, target_format="cubin", arch=str(target.attrs["arch"]), compiler="nvcc"))


def torch_importer() -> Any:
    """TVM's module that turns an ExportedProgram into Relax."""
    from tvm.relax.frontend.torch import exported_program_translator

    return exported_program_translator


def onnx_importer() -> Any:
    """TVM's module that turns an ONNX model into Relax."""
    from tvm.relax.frontend.onnx import onnx_frontend

    return onnx_frontend


def compile_relax(module: Any, target: Any) -> tuple[Any, Any]:
    """Lower a fused Relax module and compile it.  Returns (lowered module, VM executable).

    The second half of TVM's own pipelines (relax/backend/cpu_generic/pipeline.py, relax/backend/cuda/pipeline.py): the
    first half, legalising and fusing, must have been done, so that what was tuned is what is compiled."""
    from felixlike.lowering import lone_output, lower

    if target.kind.name == "cuda":
        from tvm.relax.backend.cuda import pipeline

        target = with_host(target)
        module = default_schedules(module, target)
    else:
        from tvm.relax.backend.cpu_generic import pipeline
    with target, _cuda_compiler() if target.kind.name == "cuda" else nullcontext():
        lowered = lone_output(transform.Sequential(pipeline.dataflow_lower_passes(target))(module))
        lowered = transform.Sequential(pipeline.finalize_passes(target))(lowered)
        kernels = lowered if target.kind.name == "cuda" else lower(lowered)
        return lowered, tvm.compile(kernels, target=target, relax_pipeline=None)


def relink_relax(lowered: Any, runnable: Any, target: Any, description: str) -> Any:
    """A second VM executable over the compiled kernels of a runnable module and the same constants, never run, with a
    description that `description_in` reads.

    A virtual machine writes an entry per constant into the executable it is made from, and every one of them makes
    TVM print a line when the executable is saved and again when it is loaded (src/runtime/vm/executable.cc)."""
    from tvm.relax import _ffi_api as relax_api
    from tvm.relax import vm_build

    builder = relax.ExecBuilder()
    vm_build._vmcodegen(builder, lowered)
    with builder.function(_DESCRIPTION, num_inputs=0):
        builder.emit_call("vm.builtin.copy", [builder.convert_constant(description)], dst=builder.r(0))
        builder.emit_ret(builder.r(0))
    kernels = [module for module in runnable.imports if module.kind != "relax.VMExecutable"]
    library = kernels[0] if kernels else None
    return vm_build.VMExecutable(relax_api.VMLink(builder, target, library, [], {}))


_DESCRIPTION = "felixlike_description"
"""Name of a function without parameters."""


def description_in(machine: Any) -> str | None:
    """The text that `relink_relax` put into the executable of a virtual machine; None where there is none.  Runs no
    kernel."""
    try:
        function = machine[_DESCRIPTION]
    except AttributeError:
        return None
    return str(function())


def open_library(path: str) -> Any:
    """A runnable module from a shared library, which is closed again with the last object that uses it."""
    return load_module(path, keep_module_alive=False)
