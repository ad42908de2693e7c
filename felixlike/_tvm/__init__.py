"""Collect all names of TVM that felixlike uses, with the import paths and versions of TVM that they depend on.

Other packages import TVM's names only from here, with helpers that need nothing but TVM. Importing this package does
not import TVM (2–4 s); the first use of one of its names does. So `from felixlike import _tvm` is at the top of files,
and `_tvm.te` is used in functions.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from felixlike._tvm.lazy import lazily

if TYPE_CHECKING:
    from felixlike._tvm.names import TVM_ERRORS as TVM_ERRORS
    from felixlike._tvm.names import IRModule as IRModule
    from felixlike._tvm.names import PostOrderApply as PostOrderApply
    from felixlike._tvm.names import PrimFunc as PrimFunc
    from felixlike._tvm.names import Schedule as Schedule
    from felixlike._tvm.names import ScheduleError as ScheduleError
    from felixlike._tvm.names import SessionTimeout as SessionTimeout
    from felixlike._tvm.names import Target as Target
    from felixlike._tvm.names import Trace as Trace
    from felixlike._tvm.names import array_item as array_item
    from felixlike._tvm.names import derived_object as derived_object
    from felixlike._tvm.names import estimate_tir_flops as estimate_tir_flops
    from felixlike._tvm.names import ir as ir
    from felixlike._tvm.names import load_module as load_module
    from felixlike._tvm.names import ms as ms
    from felixlike._tvm.names import pass_instrument as pass_instrument
    from felixlike._tvm.names import raised_in_tvm as raised_in_tvm
    from felixlike._tvm.names import refusal as refusal
    from felixlike._tvm.names import relax as relax
    from felixlike._tvm.names import rpc as rpc
    from felixlike._tvm.names import runtime as runtime
    from felixlike._tvm.names import s_tir as s_tir
    from felixlike._tvm.names import structural_equal as structural_equal
    from felixlike._tvm.names import structural_hash as structural_hash
    from felixlike._tvm.names import structural_map as structural_map
    from felixlike._tvm.names import structural_walk as structural_walk
    from felixlike._tvm.names import sym as sym
    from felixlike._tvm.names import te as te
    from felixlike._tvm.names import tirx as tirx
    from felixlike._tvm.names import topi as topi
    from felixlike._tvm.names import transform as transform
    from felixlike._tvm.names import tvm as tvm
    from felixlike._tvm.names import tvm_ffi as tvm_ffi
    from felixlike._tvm.on_demand import builders_end_their_blocks as builders_end_their_blocks
    from felixlike._tvm.on_demand import dlight as dlight
    from felixlike._tvm.on_demand import nvcc as nvcc
    from felixlike._tvm.on_demand import onnx_importer as onnx_importer
    from felixlike._tvm.on_demand import relax_api as relax_api
    from felixlike._tvm.on_demand import relax_pipeline as relax_pipeline
    from felixlike._tvm.on_demand import torch_importer as torch_importer
    from felixlike._tvm.on_demand import vm_build as vm_build
    from felixlike._tvm.processors import cpu_features as cpu_features
    from felixlike._tvm.processors import device_of as device_of
    from felixlike._tvm.processors import host_cpu as host_cpu
    from felixlike._tvm.processors import host_features as host_features
    from felixlike._tvm.processors import knows_cpu as knows_cpu
    from felixlike._tvm.processors import launch_threads as launch_threads
    from felixlike._tvm.processors import llvm_version as llvm_version
    from felixlike._tvm.processors import remote_device as remote_device
    from felixlike._tvm.processors import version as version
    from felixlike._tvm.processors import wake_threads as wake_threads
    from felixlike._tvm.processors import with_host as with_host
    from felixlike._tvm.trees import bits as bits
    from felixlike._tvm.trees import found as found
    from felixlike._tvm.trees import identity as identity
    from felixlike._tvm.trees import is_reduction as is_reduction
    from felixlike._tvm.trees import is_spatial as is_spatial
    from felixlike._tvm.trees import lanes as lanes
    from felixlike._tvm.trees import map_functions as map_functions
    from felixlike._tvm.trees import runs_in_parallel as runs_in_parallel
    from felixlike._tvm.trees import simplify as simplify
    from felixlike._tvm.trees import substituted as substituted
    from felixlike._tvm.trees import uses as uses
    from felixlike._tvm.trees import without_attributes as without_attributes
    from felixlike._tvm.untrusted import NotAllowed as NotAllowed
    from felixlike._tvm.untrusted import load_function as load_function
    from felixlike._tvm.untrusted import trace_steps as trace_steps
    from felixlike._tvm.versions import FFI_VERSION as FFI_VERSION
    from felixlike._tvm.versions import TVM_VERSION as TVM_VERSION
    from felixlike._tvm.versions import check_versions as check_versions

# The same names again, for Python; a test compares both lists. Type checkers read only the imports above. Python cannot
# import the modules to find the names, because that would load TVM.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "names": (
            "IRModule",
            "PostOrderApply",
            "PrimFunc",
            "Schedule",
            "ScheduleError",
            "SessionTimeout",
            "TVM_ERRORS",
            "Target",
            "Trace",
            "array_item",
            "derived_object",
            "estimate_tir_flops",
            "ir",
            "load_module",
            "ms",
            "pass_instrument",
            "raised_in_tvm",
            "refusal",
            "relax",
            "rpc",
            "runtime",
            "s_tir",
            "structural_equal",
            "structural_hash",
            "structural_map",
            "structural_walk",
            "sym",
            "te",
            "tirx",
            "topi",
            "transform",
            "tvm",
            "tvm_ffi",
        ),
        "on_demand": (
            "builders_end_their_blocks",
            "dlight",
            "nvcc",
            "onnx_importer",
            "relax_api",
            "relax_pipeline",
            "torch_importer",
            "vm_build",
        ),
        "processors": (
            "cpu_features",
            "device_of",
            "host_cpu",
            "host_features",
            "knows_cpu",
            "launch_threads",
            "llvm_version",
            "remote_device",
            "version",
            "wake_threads",
            "with_host",
        ),
        "trees": (
            "bits",
            "found",
            "identity",
            "is_reduction",
            "is_spatial",
            "lanes",
            "map_functions",
            "runs_in_parallel",
            "simplify",
            "substituted",
            "uses",
            "without_attributes",
        ),
        "untrusted": ("NotAllowed", "load_function", "trace_steps"),
        "versions": ("FFI_VERSION", "TVM_VERSION", "check_versions"),
    },
)


def load() -> None:
    """Load TVM now: before processes are forked, each of which would load it, or where loading is timed or may fail.

    Raises VersionMismatch or ImportError.
    """
    for module in ("names", "trees", "processors"):
        import_module(f"{__name__}.{module}")
