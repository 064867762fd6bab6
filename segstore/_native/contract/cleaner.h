/* The log cleaner: the map of keys, and batches without superseded records (compact.c, stretch.c). */
#ifndef SEG_CONTRACT_CLEANER_H
#define SEG_CONTRACT_CLEANER_H

#include <stdint.h>

#include "batch.h"

/* --- compact.c: the log cleaner's map of keys, and batches without superseded records ------------- */
typedef struct seg_offset_map {
    uint8_t *slots;         /* n slots of 24 bytes, aligned to 8: 128 bits of hash, offset; zeros: free */
    int64_t n;
    int64_t limit;          /* keys that it may hold: below n */
    int64_t used;           /* keys that it holds */
    uint64_t seed[2];
} seg_offset_map;

/* Rows of decoded batches, as seg_decode gives them. */
typedef struct seg_columns {
    const int64_t *offsets, *timestamps, *key_at, *key_len, *value_at, *value_len, *headers_at;
    int64_t n;
} seg_columns;

/* The verdicts of seg_map_keep for a record. */
enum {
    SEG_DROP = 0,           /* its key has a later record, or it has no key */
    SEG_LATEST = 1,         /* the latest of its key: stays unless it is a tombstone past its delete horizon */
    SEG_KEEP = 2
};

/* The policy for a batch, before its keys are looked up. */
enum {
    SEG_NO_RECORDS = 1,     /* no record stays: it is of an aborted transaction, or a spent marker */
    SEG_ALL_RECORDS = 2,    /* all records stay: it is a marker */
    SEG_RETAIN_EMPTY = 4,   /* without records it stays as a header */
    SEG_SPENT_MARKER = 8    /* a marker whose transaction has no records any more: its delete horizon begins */
};

/* The form in which a batch was written. */
enum { SEG_COPIED = 0, SEG_EMPTIED = 1, SEG_REWRITTEN = 2 };

typedef struct seg_cleaning {
    int64_t now;            /* ms: tombstones and markers with an earlier delete horizon go */
    int64_t new_horizon;    /* ms: the delete horizon of a batch whose tombstone is seen for the first time */
    int64_t batches;        /* batches written */
    int64_t records;        /* records in them */
    int64_t changed;        /* batches that were changed or removed */
    int64_t records_before; /* seg_compact_stretch: records read */
    int64_t keyless;        /* seg_compact_stretch: records removed because they have no key */
} seg_cleaning;

/* A part of a .log file, and working memory, whose content does not outlive a call. */
typedef struct seg_stretch {
    int32_t fd;
    int64_t position;       /* of the next batch; a call moves it after the batches it has done */
    int64_t end;
    int64_t least;          /* no batch begins below this offset; a call moves it, too */
    uint8_t *raw;           /* a window of the file */
    int64_t raw_len;
    seg_batch *batches;     /* and for policies, codecs, made: room */
    uint8_t *policies, *codecs, *made;
    int64_t max_batches;
    int64_t *rows;          /* 7 columns of max_rows */
    uint8_t *keep;          /* max_rows */
    int64_t max_rows;
} seg_stretch;

/* SipHash-2-4 of 128 bits: two words of seed, two of hash. */
void seg_siphash(const uint8_t *p, int64_t len, const uint64_t *seed, uint64_t *hash);

/* Put the keys of n records into the map, with the largest offset of each; records without a key or below from_offset
 * are skipped. Stops before a key for which the map has no room. Returns the number of records taken; SEG_E_COLUMN;
 * -EINVAL for an impossible map. */
int64_t seg_map_put(seg_offset_map *m, const uint8_t *arena, int64_t arena_len, const int64_t *key_at,
                    const int64_t *key_len, const int64_t *offsets, int64_t n, int64_t from_offset);

/* Set keep[i] of each of n records to SEG_DROP, SEG_LATEST or SEG_KEEP (above offset `latest`, the end of the map).
 * *keyless grows by the dropped records without a key. Returns the number of records that stay; errors as
 * seg_map_put. */
int64_t seg_map_keep(const seg_offset_map *m, const uint8_t *arena, int64_t arena_len, const int64_t *key_at,
                     const int64_t *key_len, const int64_t *offsets, int64_t n, int64_t latest,
                     uint8_t *keep, int64_t *keyless);

/* Write n batches as compaction leaves them. raw holds them as they are in their file, from raw_position on; columns
 * has their rows, in order, and keep the verdict for each row. A batch without a change is copied. A changed batch
 * keeps base and last offset, producer and leader epoch, gets codecs[i] into its attributes, and its records plain,
 * with a CRC only if the codec is none: the caller compresses and seals. out_batches and made have room for n;
 * positions count from out. Returns bytes; SEG_E_ROOM, SEG_E_COLUMN, SEG_E_TOO_LARGE, SEG_E_RECORD, SEG_E_VARINT. */
int64_t seg_compact(const uint8_t *raw, int64_t raw_len, int64_t raw_position, const uint8_t *arena,
                    int64_t arena_len, const seg_batch *batches, const uint8_t *policies,
                    const uint8_t *codecs, int64_t n, const seg_columns *columns, seg_cleaning *how,
                    uint8_t *keep, uint8_t *out, int64_t capacity, seg_batch *out_batches, uint8_t *made);

/* --- stretch.c: the same over a long stretch of a file at a call ----------------------------------- */
/* Both stop at s->end, or before the first batch that is compressed, of a transaction, a marker, damaged, or larger
 * than the window, and leave s->position there. */

/* Put the keys of plain batches into the map. A window whose keys don't fit into the map is not done. Returns the bytes
 * of the file that were done; -errno of reading; errors of seg_map_put. */
int64_t seg_map_stretch(seg_offset_map *m, seg_stretch *s, int64_t from_offset);

/* Do seg_map_keep and seg_compact for plain batches, until out (of 2 windows at least) has no room for one more window.
 * Batches whose last offset is among `retained`, which rise, stay without records. Returns the bytes in out, with
 * batches in out_batches (room for max_out) and sums in `how`; -errno; errors of seg_compact. */
int64_t seg_compact_stretch(const seg_offset_map *m, int64_t latest, seg_stretch *s, const int64_t *retained,
                            int64_t n_retained, seg_cleaning *how, uint8_t *out, int64_t capacity,
                            seg_batch *out_batches, int64_t max_out);

#endif
