/* The active segment of a log: batches are written to it and indexed in one place (active.c). */
#ifndef SEG_CONTRACT_ACTIVE_H
#define SEG_CONTRACT_ACTIVE_H

#include <stdint.h>

#include "batch.h"
#include "index.h"

/* The end of a log in bytes and in offsets, and the state of its indexes: one record for each active segment while it
 * is open for appending (storage/segment/active.py). The holder of the append token moves it; while a tail is open, C
 * moves it under the tail's lock. It may lie above the records that are shown: readers use the tail's shown offset, and
 * never this record. Fixed widths, and no pointers: several processes may map it. */
typedef struct seg_end {
    int64_t position;        /* bytes of the active segment that belong to the log */
    int64_t next_offset;
    int64_t base_offset;     /* of the active segment */
    int64_t rolled_ms;       /* timestamp of the segment's first batch; -1: none */
    seg_index_state state;
    int64_t offset_entries;  /* entries of an index, and the room for them */
    int64_t offset_room;
    int64_t time_entries;
    int64_t time_room;
} seg_end;

/* An active segment in this process: its end, the memory of its indexes, and the settings for its batches. It lives as
 * long as its end. A change of a setting, or a new mapping of an index, is made here, too. */
typedef struct seg_active {
    seg_end *end;
    uint8_t *offset_index;   /* entries: `end` says how many */
    uint8_t *time_index;
    int64_t interval;        /* index.interval.bytes */
    int64_t most_position;   /* segment.bytes */
    int64_t young_ms;        /* a batch more than this later than end->rolled_ms may need a roll */
} seg_active;

/* Writes n buffers in order from a position of a file on. Returns their bytes, or -errno; -EINTR stands for an error
 * that a signal's handler has raised in this thread. */
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

/* Write parts in order after the end, by one call of `write` (NULL: seg_pwritev). Then index them, and move the end.
 * Each batch gets the next offsets, the leader epoch and its stamp; with `as_is` it stays as a leader wrote it. The
 * caller knows that the first `judged` parts fit. The others are checked, and parts from the first one that may not fit
 * are not written. Returns the number of written parts; SEG_E_COLUMN, and writes nothing, if headers and bytes
 * disagree, or too few offsets are left; or -errno: bytes may lie beyond the end, which stays. */
int64_t seg_active_append(seg_active *a, int32_t fd, seg_writer write, const seg_part *parts, int64_t n, int64_t judged,
                          int32_t leader_epoch, int32_t as_is);
/* Index batches that lie in the segment, and move the end after them. Returns 0; or SEG_E_ROOM, and changes nothing, if
 * there is no room for the entries: `needed` gets their numbers in the offset index and the time index. */
int64_t seg_active_index(seg_active *a, const seg_batch *batches, int64_t n, int64_t *needed);

#endif
