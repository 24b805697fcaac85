#!/usr/bin/env bash
# On the machine with the GPU:   tests/gpu/machine.sh [build|tests]...   (both without arguments)
# Builds what the GPU tests need and runs them, without a network where prepare.sh has made .gpu/, meant for under 10 minutes on 16 cores. What is
# kept goes to $OUT (out/gpu): env.txt build.txt gpu.md tests.txt doctor.txt profile.json cmake.txt. A second run compiles what changed.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd); kit=$root/.gpu; cd "$root"
export OUT=${OUT:-$root/out/gpu}; mkdir -p "$OUT"
build=${BUILD:-$root/build/gpu}; jobs=${JOBS:-$(nproc)}; site=${SITE:-${TMPDIR:-/tmp}/site}
PYTHON=${PYTHON:-$(command -v python3)}
export PYTHONUNBUFFERED=1
steps=("$@"); ((${#steps[@]})) || steps=(build tests)
begin=$SECONDS
left() { echo $((${LIMIT:-585} - (SECONDS - begin))); }          # seconds left of LIMIT
log() { printf '== %4ds %s\n' $((SECONDS - begin)) "$*"; }
has() { printf '%s\n' "${steps[@]}" | grep -qx "$1"; }

# ---- what this machine is (first, so that it is kept whatever fails later)
{
  date -u; uname -a; nproc; free -g | sed -n 2p; df -h /tmp | tail -1
  nvidia-smi 2>&1 | head -20; nvidia-smi topo -m 2>&1 | head -12; ls -l /usr/local/nvidia 2>/dev/null
  for tool in g++ c++ clang++ cmake ninja ccache nvcc git; do printf '%-8s %s\n' "$tool" "$(command -v $tool || echo none) $($tool --version 2>/dev/null | head -1)"; done
  "$PYTHON" - <<'P'
import importlib.metadata as m, os, sys, sysconfig
print(sys.version, sys.executable, "headers", os.path.exists(sysconfig.get_path("include") + "/Python.h"))
for n in "torch triton nvidia-cuda-cupti nvidia-nccl-cu13 numpy pytest hypothesis pydantic deepspeed rich cmake ninja scikit-build-core".split():
    try: print(f"{n} {m.version(n)}", end="  ")
    except m.PackageNotFoundError: print(f"{n} -", end="  ")
print()
import torch
print(torch.__version__, torch.__file__, "cuda", torch.version.cuda, "gpus", torch.cuda.device_count(), "nccl", torch.distributed.is_nccl_available())
loaded = sorted({l.split()[-1] for l in open("/proc/self/maps") if "libcupti" in l or "libcuda.so" in l})
print("loaded:", *loaded)
P
} > "$OUT/env.txt" 2>&1
log "machine"; tail -4 "$OUT/env.txt"

# ---- packages that the image lacks
if [ -d "$kit/whl" ] && [ ! -e "$site/.done" ]; then
  "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$kit"/whl/*.whl && touch "$site/.done" \
    || { log "pip failed"; exit 3; }
fi
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
export DS_SKIP_CUDA_CHECK=1 TORCH_DEVICE_BACKEND_AUTOLOAD=0 TORCH_EXTENSIONS_DIR=${TMPDIR:-/tmp}/torch_extensions
log "packages in $site"

# ---- build: only what `ninja gpu` needs
if has build; then
  command -v g++ >/dev/null || { log "no g++ on this machine"; exit 4; }
  dev=$kit/dev/usr; options=()
  [ -d "$dev" ] && options+=(-DCMAKE_PREFIX_PATH="$dev" -DGTest_DIR="$dev/lib/x86_64-linux-gnu/cmake/GTest")
  "$PYTHON" -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' \
    || options+=(-DPython_INCLUDE_DIR="$kit/dev/python3.12")
  command -v ninja >/dev/null || export PATH="$("$PYTHON" -c 'import ninja; print(ninja.BIN_DIR)'):$PATH"
  if ! cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$PYTHON" ${FLAGS:+-DCMAKE_CXX_FLAGS_RELEASE="$FLAGS"} "${options[@]}" > "$OUT/cmake.txt" 2>&1; then
    log "cmake failed"; tail -30 "$OUT/cmake.txt"; exit 5
  fi
  log "configured"
  # the modules first: tests in Python run even where a C++ test does not compile here
  for targets in "_profiler _plugin _search" "cupti_tests" "plugin_tests"; do
    timeout "$(left)" ninja -C "$build" -k 0 -j "$jobs" $targets >> "$OUT/build.txt" 2>&1 || { log "build of $targets failed"; grep -nE 'error|FAILED' "$OUT/build.txt" | head -20; failed=1; }
    log "built $targets"
  done
fi
export PYTHONPATH=$build/python:$PYTHONPATH
# cupti_tests has no torch in its process, so it would look for libcupti on the loader's path alone: name torch's.
cupti=$(sed -n 's/^loaded:.* \(\S*libcupti\S*\).*/\1/p' "$OUT/env.txt" | head -1); [ -n "$cupti" ] && export OSTINATO_CUPTI=$cupti
timeout 100 "$PYTHON" -m ostinato doctor > "$OUT/doctor.txt" 2>&1; log "doctor: status $?"; cat "$OUT/doctor.txt"

# ---- the tests, as `ninja gpu` runs them
if has tests; then
  timeout "$(left)" "$PYTHON" tests/gpu/run.py "$build" "$PYTHON" > "$OUT/tests.txt" 2>&1; log "gpu tests: status $?"
  sed -n '/--- for docs/,$p' "$OUT/tests.txt" > "$OUT/gpu.md"; sed -i "s/, unknown |/, $(cat "$kit/commit" 2>/dev/null || echo unknown) |/" "$OUT/gpu.md"; cat "$OUT/gpu.md"
  grep -nE '^FAILED|\[  FAILED|Error|assert' "$OUT/tests.txt" | head -30
fi

log "end"; exit "${failed:-0}"
