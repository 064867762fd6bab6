#!/usr/bin/env bash
# Run the tests that reach the C code on a build with AddressSanitizer and UndefinedBehaviorSanitizer.
# usage: tools/sanitize.sh PYTHON BUILD_DIR [PYTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 build=$2
shift 2

tests=()
for pattern in native batch crc32c column codec encode decode scan records index sparse ends files fuzz \
               transfers transfer_sinks transfer_zero; do
    for file in tests/test_*"$pattern"*.py; do
        [ -e "$file" ] && [[ " ${tests[*]-} " != *" $file "* ]] && tests+=("$file")
    done
done
echo "sanitize: ${tests[*]}"
# Not `python -m pytest`: that would put the tree, and its plain build, first on the path.
./tools/sanitized.sh "$python" "$build" "$(dirname "$python")/pytest" -p no:cacheprovider -m "not judge" "$@" "${tests[@]}"
