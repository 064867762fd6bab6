/* Segments as their readers see them: stretches of batches, single records, ranges of records (io.c, point.c, range.c). */
#ifndef SEG_CONTRACT_SEGMENT_H
#define SEG_CONTRACT_SEGMENT_H

#include <stdint.h>

#include "batch.h"

/* A segment as a reader may see it: whole batches below byte `end` and offset `end_offset`. Segment.fields and
 * Segment.fill make one from what holds at that moment, under the interpreter's lock, in memory that no call under way
 * reads: a new struct, or that of one reader at a time. Nobody changes it before the call ends, so C reads it without
 * that lock. Whoever calls keeps the memory of the index, and the log open, until then. */
typedef struct seg_segment {
    int64_t number;         /* no other segment has it, and not 0 */
    int64_t entries, base_offset, end, end_offset;
    const uint8_t *index;   /* the `entries` of its offset index: hints, which batches must confirm */
} seg_segment;

typedef struct seg_found {
    int64_t position;       /* of the first batch */
    int64_t stop;           /* behind the last one */
    int64_t next_offset;    /* behind the last one */
    int64_t reads;          /* calls of pread */
    int64_t first;          /* bytes of the first batch; 0: next_offset is told by the batch behind the last one */
    int64_t final;          /* 1: for as many bytes it is the same, whatever is appended; 0: not known */
} seg_found;

/* Whole batches of a segment one after the other: from the one that holds `offset` on, of max_bytes in all, at least
 * that one. `from`: where a batch begins that is not behind the first one; -1: the index tells. 1; 0 where there is no
 * such batch, or the index or a header is not what it must be. */
int64_t seg_find_stretch(int fd, const seg_segment *s, int64_t from, int64_t offset, int64_t max_bytes,
                         seg_found *out);

/* --- point.c: single records by offset --------------------------------- */
/* What a reader of single records works with: one call at a time. Of an earlier read it remembers one batch. */
typedef struct seg_point {
    uint8_t *buffer;        /* batches are read into these `room` bytes */
    int64_t room;
    int64_t of_batch;       /* the number of the segment of `batch` */
    int64_t reads;          /* calls of pread, counted on and on */
    seg_batch batch;        /* read last; size 0: none yet */
    int64_t batch_at;       /* where it begins in the buffer */
    /* The record that was found. Positions in the buffer; the end of what is null is -1. */
    int64_t offset, timestamp, key_at, key_end, value_at, value_end;
    int64_t headers_at, headers_end; /* from the count of headers on; the end is -1 where there are none */
} seg_point;

/* Records that were found, one after the other. */
typedef struct seg_points {
    uint8_t *arena;         /* `room` bytes for keys, values and headers, of which `used` are used */
    int64_t room, used;
    int64_t *rows;          /* a matrix as seg_decode's columns, each `stride` numbers behind the one before */
    int64_t stride;
    int64_t records;        /* columns used */
    seg_batch *batches;     /* their batches: room for as many as there are offsets */
    int64_t n_batches;
    int64_t with_headers;
} seg_points;

/* Read the record at `offset` of a segment, or the first one behind it in its batch: 1. 0, and nothing was found, where
 * anything is not as it is nearly always: the batch may be compressed or damaged, larger than the buffer or a control
 * batch; it may have no such record; the index may be wrong, or the disk refuse to read. Records behind the one that is
 * found are not looked at. */
int64_t seg_read_one(int fd, const seg_segment *s, int64_t offset, seg_point *p);
/* The same for rising offsets: as many of the first of these as were found, and had room. */
int64_t seg_read_many(int fd, const seg_segment *s, const int64_t *offsets, int64_t n, seg_point *p,
                      seg_points *out);

/* --- range.c: many records from an offset on ----------------------------- */
/* What a reader of ranges works with: one call at a time. Of an earlier read it remembers where that ended. */
typedef struct seg_range {
    seg_batch *batches;     /* the headers of what was read: there is room for `room` */
    int64_t room;
    int64_t of_segment, next_offset, next_position; /* where the next batch begins; of_segment 0: not known */
    int64_t left;           /* a segment that is left to the long way: it has compressed batches, or too many */
    int64_t reads;          /* calls of pread for batches, counted on and on */
    int64_t position;       /* of the first batch */
    int64_t n_batches, records;
    int64_t with_headers;   /* records that have at least one header */
    int64_t attributes;     /* of all batches, or-ed */
} seg_range;

/* Read `size` bytes of a segment, from the batch on that holds `offset`, and the columns of the records of all whole
 * batches in them that begin below offset `limit`: 1. `rows` is a matrix of columns as seg_decode has them, each
 * `stride` numbers behind the one before; where r->records is above `stride`, they are not all set. 0, and nothing was
 * found, where anything is not as it is nearly always: fewer bytes may be there, the first batch be larger, a batch be
 * compressed, damaged or of an older magic, the offset lie in a gap, the index be wrong, or the disk refuse to
 * read. */
int64_t seg_read_range(int fd, const seg_segment *s, int64_t offset, int64_t limit, int32_t check_crcs,
                       uint8_t *bytes, int64_t size, int64_t *rows, int64_t stride, seg_range *r);

#endif
