#!/usr/bin/env bash
# Build segstore with AddressSanitizer and UndefinedBehaviorSanitizer into a place of its own and run the tests
# that reach the C code on that build.   usage: tools/sanitize.sh PYTHON BUILD_DIR [PYTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 build=$2
shift 2

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
export PYTHONPATH=$lib PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
tests=()
for pattern in native batch crc32c column codec encode decode scan records index sparse ends files; do
    for file in tests/test_*"$pattern"*.py; do
        [ -e "$file" ] && [[ " ${tests[*]-} " != *" $file "* ]] && tests+=("$file")
    done
done
echo "sanitize: ${tests[*]}"
# Not `python -m pytest`: that would put the tree, and its plain build, first on the path.
SEGSTORE_EXPECT_BUILD=$lib LD_PRELOAD=$preload "$(dirname "$python")/pytest" -p no:cacheprovider -m "not judge" "$@" "${tests[@]}"
