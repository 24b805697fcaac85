#!/usr/bin/env bash
# Makes .gpu/ in the repository's root (ignored by git): all that a GPU machine without a network lacks for the build and the GPU tests.
#   tests/gpu/prepare.sh        # on Debian with the packages of script/setup, and a Python 3.12
# About 11 MiB: wheels, GoogleTest, Python 3.12 headers.
# Then, on the GPU machine, with .gpu/ carried along: tests/gpu/machine.sh [build|tests]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd); kit=$root/.gpu
rm -rf "$kit"; mkdir -p "$kit/whl" "$kit/dev"
python=${PYTHON312:-$(command -v python3.12 || ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python | head -1)}
platforms=(); for p in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux1; do platforms+=(--platform ${p}_x86_64); done
# What a machine with torch, numpy, pytest, rich, psutil, msgpack, tqdm, einops, py-cpuinfo, cmake, ninja and scikit-build-core still lacks. pydantic and pydantic-core must fit each other: pip resolves them.
"$python" -m pip download -q --only-binary=:all: --python-version 3.12 --implementation cp "${platforms[@]}" --no-deps -d "$kit/whl" \
  pydantic==2.14.3 pydantic-core==2.50.4 annotated-types typing-inspection typing-extensions==4.16.0 hjson
# DeepSpeed is on PyPI as source only: a wheel without compiled operators, made where torch is (its setup.py imports it).
if [ -n "${DEEPSPEED_WHEEL:-}" ]; then cp "$DEEPSPEED_WHEEL" "$kit/whl/"; else
  DS_BUILD_OPS=0 ${TORCH_PYTHON:-python3} -m pip wheel -q --no-deps --no-build-isolation -w "$kit/whl" deepspeed==0.19.8; fi
# GoogleTest, in the folders that its CMake files expect.
for package in libgtest-dev libgmock-dev; do
  dpkg -L "$package" | grep -E '^/usr/(include/|lib/x86_64-linux-gnu/(cmake/GTest/|libgtest|libgmock)|src/)' | while read -r f; do
    [ -d "$f" ] || install -D "$f" "$kit/dev$f"; done
done
rm -rf "$kit/dev/usr/src"
# Used only where the machine's Python has no headers (same minor version).
cp -r "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')" "$kit/dev/python3.12"
git -C "$root" describe --always --dirty > "$kit/commit"
du -sh "$kit" "$kit"/*
