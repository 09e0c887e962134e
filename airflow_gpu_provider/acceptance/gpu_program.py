"""What the pod of a night runs: nvidia-smi, and a vector addition on the GPU by what its image has.

The first of these that there is: `vectorAdd`, the sample of NVIDIA's cuda-sample images; Python, which needs nothing
but the driver's own library, for that compiles the kernel; nvcc.
"""

from __future__ import annotations

import base64

HOLD = "ACCEPT_HOLD_SECONDS"
"""The environment variable with how long the program runs on after the addition, in whole seconds."""

# Driver API: "CUDA Driver API", NVIDIA; the kernel in PTX, which every driver compiles for its own GPU.
_PYTHON = """
import ctypes, struct
cu = ctypes.CDLL("libcuda.so.1")
def ok(code, what):
    if code: raise SystemExit("%s: CUDA error %d" % (what, code))
PTX = b'''.version 6.0
.target sm_50
.address_size 64
.visible .entry vector_add(.param .u64 va, .param .u64 vb, .param .u64 vc, .param .u32 vn)
{
 .reg .pred %p; .reg .f32 %f<4>; .reg .b32 %r<6>; .reg .b64 %d<8>;
 ld.param.u64 %d1, [va]; ld.param.u64 %d2, [vb]; ld.param.u64 %d3, [vc]; ld.param.u32 %r1, [vn];
 mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
 mad.lo.s32 %r5, %r2, %r3, %r4;
 setp.ge.u32 %p, %r5, %r1;
 @%p bra DONE;
 cvta.to.global.u64 %d1, %d1; cvta.to.global.u64 %d2, %d2; cvta.to.global.u64 %d3, %d3;
 mul.wide.u32 %d4, %r5, 4;
 add.s64 %d5, %d1, %d4; add.s64 %d6, %d2, %d4; add.s64 %d7, %d3, %d4;
 ld.global.f32 %f1, [%d5]; ld.global.f32 %f2, [%d6]; add.f32 %f3, %f1, %f2; st.global.f32 [%d7], %f3;
DONE:
 ret;
}
\\0'''
N = 50000
device, context, module, kernel = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
ok(cu.cuInit(0), "cuInit")
ok(cu.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
ok(cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
ok(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent")
ok(cu.cuModuleLoadData(ctypes.byref(module), PTX), "cuModuleLoadData")
ok(cu.cuModuleGetFunction(ctypes.byref(kernel), module, b"vector_add"), "cuModuleGetFunction")
Floats = ctypes.c_float * N
host = [Floats(*range(N)), Floats(*range(N, 0, -1)), Floats()]
there = [ctypes.c_uint64() for _ in host]
for at, data in zip(there, host):
    ok(cu.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(4 * N)), "cuMemAlloc")
    ok(cu.cuMemcpyHtoD_v2(at, data, ctypes.c_size_t(4 * N)), "cuMemcpyHtoD")
values = [*there, ctypes.c_uint32(N)]
arguments = (ctypes.c_void_p * 4)(*[ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values])
ok(cu.cuLaunchKernel(kernel, (N + 255) // 256, 1, 1, 256, 1, 1, 0, None, arguments, None), "cuLaunchKernel")
ok(cu.cuCtxSynchronize(), "cuCtxSynchronize")
ok(cu.cuMemcpyDtoH_v2(host[2], there[2], ctypes.c_size_t(4 * N)), "cuMemcpyDtoH")
if any(x != N for x in host[2]): raise SystemExit("the GPU added wrongly")
print("Test PASSED")
"""

_CUDA = """
#include <cstdio>
__global__ void add(const float *a, const float *b, float *c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) c[i] = a[i] + b[i]; }
int main() {
  const int n = 50000; float *a, *b, *c;
  if (cudaMallocManaged(&a, 4*n) || cudaMallocManaged(&b, 4*n) || cudaMallocManaged(&c, 4*n)) return 1;
  for (int i = 0; i < n; i++) { a[i] = i; b[i] = n - i; }
  add<<<(n + 255) / 256, 256>>>(a, b, c, n);
  if (cudaDeviceSynchronize()) return 2;
  for (int i = 0; i < n; i++) if (c[i] != n) return 3;
  puts("Test PASSED"); return 0; }
"""


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


_SHELL = f"""
# GKE mounts the driver's programs and libraries there.
export PATH="$PATH:/usr/local/nvidia/bin:/usr/local/cuda/bin"
export LD_LIBRARY_PATH="${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}/usr/local/nvidia/lib64"
nvidia-smi || {{ echo "nvidia-smi failed"; exit 10; }}
by="" folder="${{TMPDIR:-/tmp}}"
for sample in vectorAdd /cuda-samples/vectorAdd ./vectorAdd /tmp/vectorAdd; do
  path=$(command -v "$sample" 2>/dev/null) && "$path" | tee "$folder/added" && grep -q "Test PASSED" "$folder/added" &&
    by="the image's vectorAdd sample" && break
done
if [ -z "$by" ] && command -v python3 >/dev/null; then
  echo {_encoded(_PYTHON)} | base64 -d > "$folder/add.py" && python3 "$folder/add.py" &&
    by="Python and the driver's library"
fi
if [ -z "$by" ] && command -v nvcc >/dev/null; then
  echo {_encoded(_CUDA)} | base64 -d > "$folder/add.cu" && nvcc -o "$folder/add" "$folder/add.cu" && "$folder/add" &&
    by="nvcc"
fi
[ -n "$by" ] || {{ echo "The image has nothing that adds on a GPU: vectorAdd, python3 or nvcc."; exit 11; }}
query() {{ nvidia-smi --query-gpu="$1" --format=csv,noheader | head -n 1; }}
printf '{{"gpu": "%s", "driver": "%s", "added_by": "%s"}}' "$(query name)" "$(query driver_version)" "$by" \\
  > /airflow/xcom/return.json
sleep "${{{HOLD}:-0}}"
"""

COMMAND = ("sh", "-c", _SHELL)
"""The pod's command."""

RESULT = {"gpu": "GPU", "driver": "NVIDIA driver", "added_by": "Vectors were added by"}
"""What its result has, in words for people."""
