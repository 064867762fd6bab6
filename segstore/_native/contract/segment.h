/* Segments as their readers see them: stretches of batches, single records, ranges of records (io.c, point.c, range.c). */
#ifndef SEG_CONTRACT_SEGMENT_H
#define SEG_CONTRACT_SEGMENT_H

#include <stdint.h>

#include "batch.h"

/* A segment as a reader may see it: whole batches below byte `end` and offset `end_offset`. Segment.fields and
 * Segment.fill fill this struct under the interpreter's lock, in memory that no other call reads: a new struct, or the
 * struct of one reader. It does not change before the call ends, so C reads it without that lock. The caller keeps the
 * memory of the index, and the log open, until then. */
typedef struct seg_segment {
    int64_t number;         /* not 0, and no other segment has it */
    int64_t entries, base_offset, end, end_offset;
    const uint8_t *index;   /* the `entries` of its offset index: hints, to be checked against the batches */
} seg_segment;

typedef struct seg_found {
    int64_t position;       /* of the first batch */
    int64_t stop;           /* the position after the last one */
    int64_t next_offset;    /* the offset after the last one */
    int64_t reads;          /* calls of pread */
    int64_t first;          /* bytes of the first batch; 0: next_offset needs the header after the last one */
    int64_t final;          /* 1: a later search for as many bytes finds the same; 0: not known */
} seg_found;

/* Find whole batches of a segment: from the one that holds `offset` on, of max_bytes in all, but at least that one.
 * `from`: the position of a batch that is not after the first one; -1: by the index. Returns 1; 0 if there is no such
 * batch, or the index or a header is wrong. */
int64_t seg_find_stretch(int fd, const seg_segment *s, int64_t from, int64_t offset, int64_t max_bytes,
                         seg_found *out);

/* --- point.c: single records by offset --------------------------------- */
/* The working memory of a reader of single records, for one call at a time. It remembers one batch of an earlier
 * read. */
typedef struct seg_point {
    uint8_t *buffer;        /* batches are read into these `room` bytes */
    int64_t room;
    int64_t of_batch;       /* the number of the segment of `batch` */
    int64_t reads;          /* calls of pread, never reset */
    seg_batch batch;        /* read last; size 0: none yet */
    int64_t batch_at;       /* its position in the buffer */
    /* The record that was found. Positions in the buffer; the end of a null is -1. */
    int64_t offset, timestamp, key_at, key_end, value_at, value_end;
    int64_t headers_at, headers_end; /* from the count of headers on; the end is -1 without headers */
} seg_point;

/* Found records, one after another. */
typedef struct seg_points {
    uint8_t *arena;         /* `room` bytes for keys, values and headers, of which `used` are used */
    int64_t room, used;
    int64_t *rows;          /* a matrix of seg_decode's columns, `stride` numbers each */
    int64_t stride;
    int64_t records;        /* columns used */
    seg_batch *batches;     /* their batches, with room for one per offset */
    int64_t n_batches;
    int64_t with_headers;
} seg_points;

/* Read the record at `offset` of a segment, or the next one in its batch: 1. Returns 0, and finds nothing, if the batch
 * is compressed, damaged, a control batch or larger than the buffer, if it has no such record, if the index is wrong,
 * or if the disk refuses to read. Later records of the batch are not checked. */
int64_t seg_read_one(int fd, const seg_segment *s, int64_t offset, seg_point *p);
/* Read as seg_read_one for rising offsets. Returns the number of leading offsets whose records were found, and had
 * room. */
int64_t seg_read_many(int fd, const seg_segment *s, const int64_t *offsets, int64_t n, seg_point *p,
                      seg_points *out);

/* --- range.c: many records from an offset on ----------------------------- */
/* The working memory of a reader of ranges, for one call at a time. It remembers the end of an earlier read. */
typedef struct seg_range {
    seg_batch *batches;     /* the headers of the batches read, with room for `room` */
    int64_t room;
    int64_t of_segment, next_offset, next_position; /* the next batch's place; of_segment 0: not known */
    int64_t left;           /* a segment for the slow path: it has compressed batches, or too many */
    int64_t reads;          /* calls of pread for batches, never reset */
    int64_t position;       /* of the first batch */
    int64_t n_batches, records;
    int64_t with_headers;   /* records that have at least one header */
    int64_t attributes;     /* of all batches, or-ed */
} seg_range;

/* Read `size` bytes of a segment, from the batch that holds `offset` on, and the columns of the records of all whole
 * batches in them that begin below offset `limit`: 1. `rows` is a matrix of seg_decode's columns, `stride` numbers
 * each; if r->records is above `stride`, they are not all set. Returns 0, and finds nothing, if there are fewer bytes,
 * if the first batch is larger, if a batch is compressed, damaged or of an older magic, if the offset lies in a gap, if
 * the index is wrong, or if the disk refuses to read. */
int64_t seg_read_range(int fd, const seg_segment *s, int64_t offset, int64_t limit, int32_t check_crcs,
                       uint8_t *bytes, int64_t size, int64_t *rows, int64_t stride, seg_range *r);

#endif
