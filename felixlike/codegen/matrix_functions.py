"""Define the functions that multiply matrices of bfloat16 numbers in tile registers, in LLVM's language.

    felixlike_tile_start_R_W_S_T   begin: S registers of R × 16 sums, T of W × 16 pairs, the others of R × W pairs
    felixlike_tile_zero_N          register N = 0
    felixlike_tile_load_N          register N = the rows from a place on, a distance apart
    felixlike_tile_add_C_A_B       register C += register A · register B
    felixlike_tile_store_N         the rows from a place on = register N
    felixlike_tile_end             forget the registers' contents

Input: an IRModule after the passes for CPUs. Output: the same module, in which each function that calls one of these
brings its definition along, as in `pair_functions.py`. Linux lets a process use these registers after it has asked
once, so the function that begins asks if no code of its module has. Places are given by a pointer and a number of
elements, since TVM knows that a buffer is in use where its pointer is.
"""

from __future__ import annotations

import struct

from felixlike import _tvm
from felixlike._tvm.typing import Buffer, Func, Module, Stmt, TirExpr

COLUMNS = 16
"""Columns of pairs, or of float32 sums, in a tile register: 64 bytes."""

REGISTERS = 8
"""Tile registers of a core."""

_MOST_REGISTERS = 16
"""Registers that the instruction that sets sizes has room for."""

_PALETTE = 1
"""Number of the only configuration that exists: 8 registers of 16 rows of 64 bytes."""

_PREFIX = "felixlike_tile_"
"""Prefix of the functions' names."""

_ATTRIBUTES = """\
attributes #2 = { alwaysinline nounwind "target-features"="+amx-tile,+amx-bf16" }
"""

_START = """\
@{name}_sizes = linkonce_odr hidden constant [64 x i8] c"{sizes}", align 64
@felixlike_tile_asked = linkonce_odr hidden global i8 0
declare void @llvm.x86.ldtilecfg(ptr)
define linkonce_odr i32 @{name}() #2 {{
  %asked = load atomic i8, ptr @felixlike_tile_asked monotonic, align 1
  %done = icmp ne i8 %asked, 0
  br i1 %done, label %start, label %ask
ask:
  %answer = call i64 asm sideeffect "syscall", "={{ax}},{{ax}},{{di}},{{si}},~{{rcx}},~{{r11}},~{{memory}}"(
    i64 158, i64 4131, i64 18)
  store atomic i8 1, ptr @felixlike_tile_asked monotonic, align 1
  br label %start
start:
  call void @llvm.x86.ldtilecfg(ptr @{name}_sizes)
  ret i32 0
}}
"""
"""158 is Linux's arch_prctl on x86-64, 4131 ARCH_REQ_XCOMP_PERM, and 18 the number of the registers' contents."""

_ON_REGISTERS = """\
declare void @llvm.x86.{instruction}({types})
define linkonce_odr i32 @{name}() #2 {{
  call void @llvm.x86.{instruction}({registers})
  ret i32 0
}}
"""

_IN_MEMORY = """\
declare void @llvm.x86.{instruction}({types}, ptr, i64)
define linkonce_odr i32 @{name}(ptr %buffer, i32 %first, i32 %distance, i32 %bytes) #2 {{
  %size = zext i32 %bytes to i64
  %wide = sext i32 %first to i64
  %offset = mul i64 %wide, %size
  %place = getelementptr i8, ptr %buffer, i64 %offset
  %rows = zext i32 %distance to i64
  %stride = mul i64 %rows, %size
  call void @llvm.x86.{instruction}({registers}, ptr %place, i64 %stride)
  ret i32 0
}}
"""

_TEXTS = {
    "end": ("tilerelease", _ON_REGISTERS),
    "zero": ("tilezero", _ON_REGISTERS),
    "load": ("tileloadd64", _IN_MEMORY),
    "add": ("tdpbf16ps", _ON_REGISTERS),
    "store": ("tilestored64", _IN_MEMORY),
}
"""LLVM's name of each function's instruction, and the text of its definition."""


def start(rows: int, words: int, sums: int, seconds: int) -> Stmt:
    """Return the statement that begins to use tile registers: the first for sums, then those for second factors."""
    return _call(f"start_{rows}_{words}_{sums}_{seconds}")


def end() -> Stmt:
    """Return the statement that ends the use of tile registers."""
    return _call("end")


def zero(register: int) -> Stmt:
    """Return the statement that clears a register."""
    return _call(f"zero_{register}")


def load(register: int, buffer: Buffer, pointer: TirExpr, first: TirExpr, distance: int) -> Stmt:
    """Return the statement that loads a register's rows.

    Args:
        register: Number of the register.
        buffer: The flat buffer with the rows.
        pointer: The pointer to its elements.
        first: The place of the first row's first element.
        distance: Elements from one row to the next.
    """
    return _call(f"load_{register}", *_rows(buffer, pointer, first, distance))


def store(register: int, buffer: Buffer, pointer: TirExpr, first: TirExpr, distance: int) -> Stmt:
    """Return the statement that stores a register's rows, as `load` loads them."""
    return _call(f"store_{register}", *_rows(buffer, pointer, first, distance))


def _rows(buffer: Buffer, pointer: TirExpr, first: TirExpr, distance: int) -> list[TirExpr]:
    """Return the arguments for rows in memory: integers of 32 bits, which TVM does not make narrower."""
    numbers = (distance, _tvm.bits(str(buffer.dtype)) // 8)
    return [pointer, first.astype("int32"), *(_tvm.tirx.const(number, "int32") for number in numbers)]


def add(sums: int, first: int, second: int) -> Stmt:
    """Return the statement that adds the product of two registers to a third."""
    return _call(f"add_{sums}_{first}_{second}")


def is_start(text: str) -> bool:
    """Return whether a text is the name of a function that begins to use tile registers."""
    return text.startswith(f"{_PREFIX}start_")


def called(func: Func) -> set[str]:
    """Return the names of those of these functions that a function calls."""
    texts = {str(text.value) for text in _tvm.found(func.body, _tvm.ir.StringImm)}
    return {text for text in texts if text.startswith(_PREFIX)}


def with_matrix_functions(module: Module) -> Module:
    """Return the IRModule with the definitions that its functions call. Functions without such calls are not changed.

    Args:
        module: An IRModule after `codegen/passes/multiply_matrices.py`.
    """

    def with_definitions(func: Func) -> Func:
        texts = [_definition(name) for name in sorted(called(func))]
        return func.with_body(_tvm.with_llvm_text(func.body, *texts)) if texts else func

    return _tvm.map_functions(module, with_definitions)


def _call(name: str, *arguments: object) -> Stmt:
    """Return a call of a function as a statement."""
    return _tvm.tirx.Evaluate(_tvm.tirx.call_extern("int32", _PREFIX + name, *arguments))


def _definition(name: str) -> str:
    """Return a function's definition."""
    kind, *numbers = name.removeprefix(_PREFIX).split("_")
    if kind == "start":
        sizes = "".join(f"\\{byte:02x}" for byte in _sizes(*map(int, numbers)))
        return _START.format(name=name, sizes=sizes) + _ATTRIBUTES
    instruction, text = _TEXTS[kind]
    types, registers = (", ".join(form.format(number) for number in numbers) for form in ("i8 immarg", "i8 {}"))
    return text.format(name=name, instruction=instruction, types=types, registers=registers) + _ATTRIBUTES


def _sizes(rows: int, words: int, sums: int, seconds: int) -> bytes:
    """Return the sizes of the registers in the form that the instruction expects: widths in bytes, and rows."""
    width = 4 * COLUMNS
    firsts = REGISTERS - sums - seconds
    shapes = [(rows, width)] * sums + [(words, width)] * seconds + [(rows, 4 * words)] * firsts
    shapes += [(0, 0)] * (_MOST_REGISTERS - len(shapes))
    heights, widths = zip(*shapes, strict=True)
    return struct.pack("<BB14x16H16B", _PALETTE, 0, *widths, *heights)
