/* The active segment of a log: batches are written to it and indexed in one place (active.c). */
#ifndef SEG_CONTRACT_ACTIVE_H
#define SEG_CONTRACT_ACTIVE_H

#include <stdint.h>

#include "batch.h"
#include "index.h"

/* Where a log ends, in bytes and in offsets, and how far its indexes have come: one record for each active segment, as
 * long as that is open for appending (storage/segment/active.py). The holder of the append token moves it; while a tail
 * is lent, C does, under the tail's lock. What was written but is not to be seen lies below it: readers look at what a
 * tail has shown, and never here. Fixed widths, and no pointers: several processes may map it. */
typedef struct seg_end {
    int64_t position;        /* bytes of the active segment that are the log's */
    int64_t next_offset;
    int64_t base_offset;     /* of the active segment */
    int64_t rolled_ms;       /* timestamp of the segment's first batch; -1: none */
    seg_index_state state;
    int64_t offset_entries;  /* entries of an index, and how many may be there before another look */
    int64_t offset_room;
    int64_t time_entries;
    int64_t time_room;
} seg_end;

/* An active segment in this process: its end, the memory of its indexes, and the settings that its batches keep. It
 * lives as long as its end, and who changes a setting, or maps an index anew, changes it here. */
typedef struct seg_active {
    seg_end *end;
    uint8_t *offset_index;   /* entries: `end` says how many */
    uint8_t *time_index;
    int64_t interval;        /* index.interval.bytes */
    int64_t most_position;   /* segment.bytes */
    int64_t young_ms;        /* a batch that is later than end->rolled_ms by more needs another look */
} seg_active;

/* Writes n buffers, one behind the other, from a position of a file on: their bytes, or -errno; -EINTR stands for an
 * error that a signal's handler has raised in this thread. */
typedef int64_t (*seg_writer)(int32_t fd, const uint8_t *const *bufs, const int64_t *lens, int64_t n,
                             int64_t position);

/* Whole batches to write, and their headers; LogAppendTime in ms, or -1. */
typedef struct seg_part {
    uint8_t *data;
    int64_t len;
    seg_batch *batches;
    int64_t n;
    int64_t append_time;
} seg_part;

/* Write parts, one behind the other, behind the end: by one call of `write`, NULL: seg_pwritev. Then index them, and
 * move the end. Each batch gets the next offsets, the leader epoch and its stamp; with `as_is` they stay as a leader
 * wrote them. The first `judged` parts are known to fit; the others are looked at, and from the first one on that may
 * not fit, nothing is done. Returns how many parts are written; SEG_E_COLUMN where headers and bytes disagree, or too
 * few offsets are left: nothing is done; or -errno: bytes may lie behind the end, which stays. */
int64_t seg_active_append(seg_active *a, int32_t fd, seg_writer write, const seg_part *parts, int64_t n, int64_t judged,
                          int32_t leader_epoch, int32_t as_is);
/* Index batches that lie in the segment, and move the end behind them: 0; SEG_E_ROOM, and nothing is changed: so many
 * entries of the offset index and of the time index are to come, as `needed` says. */
int64_t seg_active_index(seg_active *a, const seg_batch *batches, int64_t n, int64_t *needed);

#endif
