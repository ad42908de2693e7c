"""Compile scheduled functions to machine code, with felixlike's passes before TVM's compiler."""

from felixlike.codegen.compile import (
    compile_lowered,
    compile_primfuncs,
    compile_relax,
    cuda_binary,
    default_schedules,
    lower_relax,
)
from felixlike.codegen.constants import constants_as_parameters, linkable, program_text
from felixlike.codegen.cubin import kernels_of
from felixlike.codegen.cuda import compile_source, cuda_source, cuda_toolchain, require_toolchain
from felixlike.codegen.digest import code_digest
from felixlike.codegen.link import description_in, kernels_of_runnable, open_library, relink_relax
from felixlike.codegen.objects import KernelObject, joined_kernels, open_object, reads_inputs, write_object
from felixlike.codegen.plain_loops import with_flat_buffers, without_blocks

__all__ = [
    "KernelObject",
    "code_digest",
    "compile_lowered",
    "compile_primfuncs",
    "compile_relax",
    "compile_source",
    "constants_as_parameters",
    "cuda_binary",
    "cuda_source",
    "cuda_toolchain",
    "default_schedules",
    "description_in",
    "joined_kernels",
    "kernels_of",
    "kernels_of_runnable",
    "linkable",
    "lower_relax",
    "open_library",
    "open_object",
    "program_text",
    "reads_inputs",
    "relink_relax",
    "require_toolchain",
    "with_flat_buffers",
    "without_blocks",
    "write_object",
]
