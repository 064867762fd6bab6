/* The rules of a topic, and the check of a producer's batch by them (validate.c). */
#ifndef SEG_CONTRACT_RULES_H
#define SEG_CONTRACT_RULES_H

#include <stdint.h>

#include "batch.h"

/* The limits of a topic's settings. */
typedef struct seg_rules {
    int64_t largest_batch;   /* bytes */
    int64_t before_ms;       /* the most ms of a timestamp before and after the clock */
    int64_t after_ms;
    int32_t create_time;     /* 1: timestamps are judged; 0: the log gives its own */
    int32_t needs_key;
} seg_rules;

/* The results of a check. PACKED: the batch is valid, but its records are compressed, and were not checked. */
enum {
    SEG_CHECKED = 0, SEG_CHECK_PACKED, SEG_CHECK_SHORT, SEG_CHECK_MAGIC, SEG_CHECK_MORE, SEG_CHECK_BASE,
    SEG_CHECK_LARGE, SEG_CHECK_CRC, SEG_CHECK_COUNT, SEG_CHECK_CONTROL, SEG_CHECK_HORIZON, SEG_CHECK_CODEC,
    SEG_CHECK_PRODUCER, SEG_CHECK_RECORD, SEG_CHECK_OFFSETS, SEG_CHECK_APPEND_TIME, SEG_CHECK_KEY, SEG_CHECK_TIME
};

typedef struct seg_checked {
    int64_t max_timestamp;   /* ms, of the records; -1: none has one */
    int64_t record;          /* RECORD, OFFSETS: the number of the wrong record */
} seg_checked;

/* Check the `len` bytes of one batch with base offset 0; *h gets its header. `now` is the clock (ms). */
int64_t seg_check_batch(const uint8_t *batch, int64_t len, const seg_rules *rules, int64_t now, seg_batch *h,
                        seg_checked *out);
/* Check the records of a batch with header *b, which lie in `len` plain bytes. */
int64_t seg_check_records(const uint8_t *plain, int64_t len, const seg_rules *rules, int64_t now, const seg_batch *b,
                          seg_checked *out);

#endif
