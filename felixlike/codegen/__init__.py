"""Compile scheduled functions to machine code, with felixlike's passes before TVM's compiler."""

from felixlike.codegen.compile import compile_primfuncs, compile_relax, cuda_binary, default_schedules
from felixlike.codegen.cubin import kernels_of
from felixlike.codegen.cuda import compile_source, cuda_source, cuda_toolchain, require_toolchain
from felixlike.codegen.digest import code_digest
from felixlike.codegen.link import description_in, open_library, relink_relax
from felixlike.codegen.plain_loops import with_flat_buffers, without_blocks

__all__ = [
    "code_digest",
    "compile_primfuncs",
    "compile_relax",
    "compile_source",
    "cuda_binary",
    "cuda_source",
    "cuda_toolchain",
    "default_schedules",
    "description_in",
    "kernels_of",
    "open_library",
    "relink_relax",
    "require_toolchain",
    "with_flat_buffers",
    "without_blocks",
]
