#!/usr/bin/env bash
# Run the tests that reach the C code on a build with AddressSanitizer and UndefinedBehaviorSanitizer.
# usage: tools/sanitize.sh PYTHON BUILD_DIR [PYTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 build=$2
shift 2

tests=(
    tests/unit/{native,records,index}/test_*.py
    tests/unit/files/test_{calls,sendfile}.py tests/unit/transfer/test_{one_call,sinks,short_way,stretch}.py tests/bench/test_zero_copy_contenders.py
    tests/unit/storage/test_{sealed_files,segment}.py tests/unit/log/test_{old_bytes,reader_indexes,point_reads,native_tail,combining,tail,log_end,interpreter_lock,append_pieces,append_list,append_time,group_commit,append_as_leader}.py tests/unit/consumer/test_records.py
    tests/unit/producers/test_producer_table.py tests/models/log_oracle tests/unit/producer/test_short_way.py
    tests/hostile/test_{damaged_indexes,ends_damaged,epoch_files,fuzz,small_files}.py
    tests/crash/test_faulty_files.py tests/processes/test_reader_ends.py tests/spark/test_source_columns.py
    tests/server/test_exchange.py
)
echo "sanitize: ${tests[*]}"
# Not `python -m pytest`: that would put the tree, and its plain build, first on the path.
./tools/sanitized.sh "$python" "$build" "$(dirname "$python")/pytest" -p no:cacheprovider -m "not judge" "$@" "${tests[@]}"
