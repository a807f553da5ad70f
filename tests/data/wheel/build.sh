#!/bin/sh
# Makes the fat binaries in this folder. Needs nvcc 13.0.88 and an x86-64 g++ on PATH; they were made with g++ 12.2.
set -eu
cd "$(dirname "$0")"
out=$(mktemp -d)
trap 'rm -r "$out"' EXIT

compile() { # SOURCE OBJECT OPTION...
  source=$1 object=$2
  shift 2
  nvcc -Xcompiler -fPIC,-Os -frandom-seed=fixture -c "$source" -o "$out/$object" "$@"
}
link() { # LIBRARY OBJECT...
  library=$1
  shift
  (cd "$out" && g++ -shared -nostdlib -s -Wl,-z,noseparate-code,--build-id=none "$@" -o library.so)
  mv "$out/library.so" "$library"
}

# zstd throughout; two containers
compile kernels.cu kernels.o --compress-mode=size -gencode arch=compute_80,code=sm_80 \
  -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_100f,code=sm_100f \
  -gencode arch=compute_120,code=sm_120 -gencode arch=compute_80,code=compute_80
compile hopper.cu hopper.o --compress-mode=size -gencode arch=compute_90a,code=sm_90a
link many.so kernels.o hopper.o

# every suffix, cubin and PTX
compile kernels.cu suffixes.o --compress-mode=size -gencode arch=compute_120f,code=sm_120f \
  -gencode arch=compute_121a,code=sm_121a -gencode arch=compute_120a,code=sm_120a \
  -gencode arch=compute_121,code=sm_121 -gencode arch=compute_120f,code=compute_120f \
  -gencode arch=compute_121a,code=compute_121a -gencode arch=compute_90,code=compute_90
link suffixes.so suffixes.o

# LZ4 for PTX, plain cubin
compile hopper.cu speed.o --compress-mode=speed -gencode arch=compute_80,code=[sm_80,compute_80]
link speed.so speed.o

# no device code; made with the C library of Debian 12
gcc -shared -fPIC -Os -nostartfiles -s -Wl,-z,noseparate-code,--build-id=none unstable.c -o unstable.so

# for two other devices than an H100
compile hopper.cu elsewhere.o --compress-mode=size -gencode arch=compute_100f,code=sm_100f \
  -gencode arch=compute_120a,code=sm_120a
link elsewhere.so elsewhere.o
