"""Run CUDA source on a CPU thread by thread, including tensor cores and asynchronous copies.

Each thread of a kernel runs until it waits for the other threads of its block or warp. The tensor core instructions
follow NVIDIA's tables (PTX ISA, matrix fragments for mma.m16n8k8 and .m16n8k16) and share no code with the package.
An asynchronous copy is made only when its thread waits for it, so that code that reads too early reads NaN.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from felixlike import _tvm
from felixlike.codegen.cuda import cuda_source
from felixlike.codegen.passes import asynchronous_copies
from felixlike.codegen.passes.tensor_cores import FUNCTIONS
from felixlike.codegen.pipeline import lower

_MACHINE = r"""
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(n)
#define max(a, b) ((a) > (b) ? (a) : (b))
#define min(a, b) ((a) < (b) ? (a) : (b))
typedef unsigned int uint; typedef unsigned char uchar; typedef unsigned short ushort;
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
static float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
static float2 make_float2(float a, float b) { return {a, b}; }
static int4 make_int4(int a, int b, int c, int d) { return {a, b, c, d}; }
static int2 make_int2(int a, int b) { return {a, b}; }
struct Index { int x, y, z; };
static Index threadIdx, blockIdx;

struct Copy { void* to; const void* from; int bytes; };
struct Thread {
  ucontext_t context; std::vector<char> stack; bool done;
  std::vector<std::vector<Copy>> groups; std::vector<Copy> open;
};
static std::vector<Thread> threads;
static ucontext_t scheduler;
static int now;
static void give_way() { int own = now; swapcontext(&threads[own].context, &scheduler); now = own; threadIdx.x = own; }
struct Meeting { int came = 0; int times = 0; };
static void meet(Meeting& m, int all) {
  int before = m.times;
  if (++m.came == all) { m.came = 0; m.times++; } else while (m.times == before) give_way();
}
static Meeting of_block; static std::vector<Meeting> of_warp;
static void __syncthreads() { meet(of_block, (int)threads.size()); }

static void copy_later(void* to, const void* from, int bytes) {
  for (int i = 0; i < bytes / 4; i++) ((float*)to)[i] = NAN;
  threads[now].open.push_back({to, from, bytes});
}
static void commit() { Thread& t = threads[now]; t.groups.push_back(t.open); t.open.clear(); }
static void wait_for_all_but(int n) {
  Thread& t = threads[now];
  while ((int)t.groups.size() > n) {
    for (Copy& c : t.groups.front()) memcpy(c.to, c.from, c.bytes);
    t.groups.erase(t.groups.begin());
  }
}

struct Fragments { unsigned a[4], b[2]; float c[4]; };
static std::vector<Fragments> lanes;
static float bits(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static unsigned word(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static unsigned cvt_tf32(float x) { return std::isfinite(x) ? (word(x) + 0x1000u) & ~0x1fffu : word(x); }
static unsigned half_of(float x) { _Float16 h = (_Float16)x; uint16_t y; memcpy(&y, &h, 2); return y; }
static float of_half(unsigned x) { uint16_t y = (uint16_t)x; _Float16 h; memcpy(&h, &y, 2); return (float)h; }
static unsigned brain_of(float x) { unsigned y = word(x); return (y + 0x7fff + ((y >> 16) & 1)) >> 16; }
static float of_brain(unsigned x) { return bits(x << 16); }
static unsigned cvt_f16x2(float high, float low) { return half_of(high) << 16 | half_of(low); }
static unsigned cvt_bf16x2(float high, float low) { return brain_of(high) << 16 | brain_of(low); }

// element: which of a register's numbers.  Row and column of each fragment are NVIDIA's.
template <int STEPS, class Number> static void multiply(
    float* c, const unsigned* a, const unsigned* b, Number number) {
  int lane = now % 32, warp = now / 32;
  const int in_register = STEPS == 16 ? 2 : 1;
  Fragments& own = lanes[now];
  memcpy(own.a, a, 16); memcpy(own.b, b, 8); memcpy(own.c, c, 16);
  meet(of_warp[warp], 32);
  float A[16][STEPS], B[STEPS][8];
  for (int l = 0; l < 32; l++) {
    int g = l >> 2, t = l % 4;
    const Fragments& f = lanes[warp * 32 + l];
    for (int i = 0; i < 4; i++) for (int e = 0; e < in_register; e++)
      A[i % 2 == 0 ? g : g + 8][STEPS == 16 ? t * 2 + e + (i < 2 ? 0 : 8) : (i < 2 ? t : t + 4)] = number(f.a[i], e);
    for (int i = 0; i < 2; i++) for (int e = 0; e < in_register; e++)
      B[STEPS == 16 ? t * 2 + e + (i == 0 ? 0 : 8) : (i == 0 ? t : t + 4)][g] = number(f.b[i], e);
  }
  for (int i = 0; i < 4; i++) {
    int row = i < 2 ? lane >> 2 : (lane >> 2) + 8, column = (lane % 4) * 2 + (i & 1);
    double sum = own.c[i];
    for (int k = 0; k < STEPS; k++) sum += (double)A[row][k] * B[k][column];
    c[i] = (float)sum;
  }
  meet(of_warp[warp], 32);
}
#define MMA(name, STEPS, number) \
  static void name(float& c0, float& c1, float& c2, float& c3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, \
                   unsigned b0, unsigned b1) { \
    float c[4] = {c0, c1, c2, c3}; unsigned a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1}; \
    multiply<STEPS>(c, a, b, [](unsigned x, int e) { return number; }); \
    c0 = c[0]; c1 = c[1]; c2 = c[2]; c3 = c[3]; }
MMA(mma_m16n8k8_tf32, 8, bits(x & ~0x1fffu))
MMA(mma_m16n8k16_f16, 16, of_half(x >> (16 * e) & 0xffff))
MMA(mma_m16n8k16_bf16, 16, of_brain(x >> (16 * e) & 0xffff))
"""

_LAUNCH = r"""
static void (*kernel)();
static void begin() { kernel(); threads[now].done = true; swapcontext(&threads[now].context, &scheduler); }
static void run(int blocks, int count, void (*what)()) {
  kernel = what;
  for (int block = 0; block < blocks; block++) {
    threads = std::vector<Thread>(count); of_block = Meeting(); of_warp = std::vector<Meeting>((count + 31) / 32);
    lanes = std::vector<Fragments>(count);
    blockIdx.x = block;
    for (Thread& t : threads) {
      t.stack.resize(1 << 16); t.done = false;
      getcontext(&t.context); t.context.uc_stack.ss_sp = t.stack.data(); t.context.uc_stack.ss_size = t.stack.size();
      t.context.uc_link = &scheduler; makecontext(&t.context, begin, 0);
    }
    for (int left = count; left;) {
      left = 0;
      for (now = 0; now < count; now++) if (!threads[now].done) {
        threadIdx.x = now; int own = now; swapcontext(&scheduler, &threads[own].context); now = own;
        left += !threads[own].done;
      }
    }
  }
}
"""


def emulated(module: Any, target: Any, arguments: list[Any], folder: Path) -> list[Any]:
    """Run the CUDA code of a scheduled "main" and return all its arguments.

    `folder` is where g++ compiles. Copies that no thread waits for are never made.
    """
    source = source_of(module, target)
    main = module["main"]
    names = [str(p.name) for p in main.params]
    buffers = {name: np.ascontiguousarray(array).copy() for name, array in zip(names, arguments, strict=True)}
    for buffer in main.body.block.alloc_buffers:
        buffers.setdefault(
            str(buffer.name).replace(".", "_"), np.full([int(e) for e in buffer.shape], np.nan, str(buffer.dtype))
        )
    calls, code = "", _on_host(source)
    kernels = re.findall(r'extern "C"\s+void\s+(\w+)\(([^)]*)\) \{', code)
    blocks = _blocks(main)
    assert len(kernels) == len(blocks), (code[-3000:], blocks)
    for (name, parameters), (grid, threads) in zip(kernels, blocks, strict=True):
        pointers = [re.search(r"(\w+)_ptr$", p.strip()) for p in parameters.split(",")]
        pointer_names = [g[1] for g in pointers if g is not None]
        casts = ", ".join(
            f"({p.rsplit(' ', 1)[0].replace('__restrict__', '')})given[{list(buffers).index(n)}]"
            for p, n in zip((p.strip() for p in parameters.split(",")), pointer_names, strict=True)
        )
        calls += f"  run({grid}, {threads}, [] {{ {name}({casts}); }});\n"
    program = (
        f'{code}\n{_LAUNCH}\nstatic void** given;\nextern "C" void start(void** all) {{\n  given = all;\n{calls}}}\n'
    )
    path, library = folder / "kernels.cpp", folder / "kernels.so"
    path.write_text(program)
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-fno-strict-aliasing",
        "-w",
        "-shared",
        "-fPIC",
        "-o",
        str(library),
        str(path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    addresses = (ctypes.c_void_p * len(buffers))(*(array.ctypes.data for array in buffers.values()))
    ctypes.CDLL(str(library)).start(addresses)
    return [buffers[name] for name in names]


def source_of(module: Any, target: Any) -> str:
    """Return the CUDA source of a scheduled module."""
    lowered = lower(module, target)
    with asynchronous_copies(lowered):
        return cuda_source(_tvm.tvm.compile(lowered, target=_tvm.with_host(target)))


def _on_host(source: str) -> str:
    """Translate CUDA source to C++ for the emulator."""
    kernels = source[source.index("#define ushort unsigned short\n#endif") :].partition("#endif")[2]
    kernels = re.sub(r"(ptx_cp_async_legacy\w*?_c[ag]_(\d+)\w*)\(([^)]*)\) \{.*?\n\}", _copy, kernels, flags=re.DOTALL)
    kernels = re.sub(r'asm volatile\("cp\.async\.commit_group;"[^)]*\);', "commit();", kernels)
    kernels = re.sub(r'asm volatile\("cp\.async\.wait_group (\d+);"[^)]*\);', r"wait_for_all_but(\1);", kernels)
    functions = re.sub(
        r'asm\("mma\.sync\.aligned\.(\w+)\.row\.col\.f32\.(\w+)\.[^:]*:(.*?)\);\n',
        _instruction,
        FUNCTIONS,
        flags=re.DOTALL,
    )
    functions = re.sub(r'asm\("cvt\.\w+\.(\w+)\.f32 %0, %1(?:, %2)?;" : "=r"\((\w)\) : (.*?)\);', _rounding, functions)
    code = _MACHINE + functions + kernels
    for word in ("asm", "__cvta"):
        assert word not in code, code[code.index(word) - 200 :][:400]
    return _without_qualifiers(code)


def _without_qualifiers(code: str) -> str:
    head, tail = code[: len(_MACHINE)], code[len(_MACHINE) :]
    tail = re.sub(r"__launch_bounds__\(\d+\) ", "", tail).replace("__global__", "")
    return head + tail.replace("__shared__ alignas(64)", "alignas(64) __shared__")


def _copy(match: re.Match[str]) -> str:
    """Translate an asynchronous copy. If its condition is false, zeros are written immediately."""
    name, size, parameters = match.groups()
    later = f"copy_later((uint8_t*)dst + dst_off * 4, (uint8_t*)src + src_off * 4, {size});"
    if "predicate" in parameters:
        later = f"if (predicate) {later} else memset((uint8_t*)dst + dst_off * 4, 0, {size});"
    return f"{name}({parameters}) {{ {later} }}"


def _instruction(match: re.Match[str]) -> str:
    """Translate a tensor core instruction to a call with its operands in order."""
    shape, kind, operands = match.groups()
    return f"mma_{shape}_{kind}({', '.join(_operands(operands))});\n"


def _operands(text: str) -> list[str]:
    """Split the operands of an asm statement and return what is in their parentheses."""
    operands = []
    for start in re.finditer(r'"\+?[rf]"\(', text):
        depth, at = 1, start.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        operands.append(text[start.end() : at - 1])
    return operands


def _rounding(match: re.Match[str]) -> str:
    kind, result, operands = match.groups()
    return f"{result} = cvt_{kind}({', '.join(_operands(operands))});"


def _blocks(main: Any) -> list[tuple[int, int]]:
    """Return (blocks, threads per block) of each kernel of a function."""
    body = main.body.block.body
    launches = []
    for statement in body.seq if type(body).__name__ == "SeqStmt" else [body]:
        bound: dict[str, int] = {}
        for loop in _tvm.found(statement, _tvm.tirx.For):
            if loop.thread_binding is not None:
                bound[str(loop.thread_binding.thread_tag)] = int(loop.extent)
        launches.append((bound.get("blockIdx.x", 1), bound.get("threadIdx.x", 1)))
    return launches
