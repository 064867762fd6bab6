#!/usr/bin/env bash
# Run the tests on a build whose C counts lines and branches, measure segstore/'s Python beside it, and report both
# in BUILD_DIR: python.txt, python/index.html, native.txt, native/index.html.   usage: tools/coverage.sh PYTHON BUILD_DIR [PYTEST ARGUMENTS]
# SEGSTORE_COVERAGE_ADD=1 adds to what an earlier run has measured on the same sources.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "$1") build=$(realpath -m "$2") bin=$(dirname "$(realpath -s "$1")")
shift 2

if [ -z "${SEGSTORE_COVERAGE_ADD-}" ]; then
    rm -rf "$build"
    SEGSTORE_COVERAGE=1 "$python" setup.py -q build \
        --build-base "$build/base" --build-lib "$build/lib" --build-temp "$build/temp" --force
fi

# Processes that the tests start count too; what is forked and ends by os._exit, or is killed, does not.
cat >"$build/coveragerc" <<END
[run]
branch = true
data_file = $build/data
parallel = true
source_pkgs = segstore
omit = */segstore/_native/build.py
concurrency = thread, multiprocessing
patch = subprocess
[paths]
source =
    $build/lib/segstore
    segstore
[report]
exclude_also =
    if TYPE_CHECKING:
    raise NotImplementedError
    @overload
    \.\.\.$
precision = 1
show_missing = true
skip_covered = true
[html]
directory = $build/python
END
export COVERAGE_RCFILE=$build/coveragerc
# Not `python -m pytest`: that would put the tree, and its plain build, first on the path.
PYTHONPATH=$build/lib PYTHONDONTWRITEBYTECODE=1 SEGSTORE_EXPECT_BUILD=$build/lib \
    "$bin/coverage" run "$bin/pytest" -p no:cacheprovider "$@" || status=$?

"$bin/coverage" combine -q --append
"$bin/coverage" report >"$build/python.txt"
"$bin/coverage" html -q
"$bin/coverage" json -q -o "$build/python.json"
mkdir -p "$build/native"
(cd "$build" && "$bin/gcovr" --root ../.. --filter "\.\./\.\./segstore/(_native|bench/zero_copy)/[a-z0-9]*\.[ch]$" --gcov-ignore-parse-errors=negative_hits.warn \
    --txt native.txt --html-nested native/index.html --json-summary native.json temp)
"$python" tools/coverage_table.py "$build"
exit "${status:-0}"
