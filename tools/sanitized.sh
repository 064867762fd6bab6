#!/usr/bin/env bash
# Build segstore with AddressSanitizer and UndefinedBehaviorSanitizer into a place of its own, and run a command
# on that build.   usage: tools/sanitized.sh PYTHON BUILD_DIR COMMAND...
set -euo pipefail
here=$PWD python=$(realpath -s "$1") build=$2
shift 2
cd "$(dirname "$0")/.."

# A compiler may name a library that it does not have: then it prints the bare name.
for name in libasan.so libubsan.so; do
    path=$(${CC:-cc} -print-file-name="$name")
    [ "$path" != "$name" ] || { echo "The compiler has no $name (Debian, Ubuntu: apt-get install gcc)" >&2; exit 1; }
    preload=${preload:+$preload:}$(readlink -f "$path")
done

rm -rf "$build"
SEGSTORE_SANITIZE=address,undefined "$python" setup.py -q build \
    --build-base "$build/base" --build-lib "$build/lib" --build-temp "$build/temp" --force

lib=$(realpath "$build/lib")
export PYTHONPATH=$lib${PYTHONPATH:+:$PYTHONPATH} PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1 SEGSTORE_EXPECT_BUILD=$lib
# What a length in a file claims must be looked at before it is allocated: 1.5 GB at once are too much.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:max_allocation_size_mb=1500
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
cd "$here"
LD_PRELOAD=$preload exec "$@"
