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

/* What seg_map_keep says of a record. */
enum {
    SEG_DROP = 0,           /* its key has a later one, or it has none */
    SEG_LATEST = 1,         /* the latest of its key: stays unless it is a tombstone whose time has come */
    SEG_KEEP = 2
};

/* What may become of a batch, whatever its keys say. */
enum {
    SEG_NO_RECORDS = 1,     /* none stays: of an aborted transaction, or a spent marker */
    SEG_ALL_RECORDS = 2,    /* all stay: markers */
    SEG_RETAIN_EMPTY = 4,   /* without records it stays as a header */
    SEG_SPENT_MARKER = 8    /* of a transaction that has no records any more: its delete horizon begins */
};

/* How a batch was put out. */
enum { SEG_COPIED = 0, SEG_EMPTIED = 1, SEG_REWRITTEN = 2 };

typedef struct seg_cleaning {
    int64_t now;            /* ms: tombstones and markers whose delete horizon has come by then go */
    int64_t new_horizon;    /* ms: what a batch gets that has its first tombstone seen */
    int64_t batches;        /* put out */
    int64_t records;        /* in these */
    int64_t changed;        /* batches that are not as they were, or not there */
    int64_t records_before; /* seg_compact_stretch: looked at */
    int64_t keyless;        /* seg_compact_stretch: of these, gone for want of a key */
} seg_cleaning;

/* Some of a .log file, and memory to work in, of which nothing is kept from call to call. */
typedef struct seg_stretch {
    int32_t fd;
    int64_t position;       /* of the first batch that is to be looked at; moves on behind what was done */
    int64_t end;
    int64_t least;          /* no batch begins below this offset; moves on too */
    uint8_t *raw;           /* a window of the file */
    int64_t raw_len;
    seg_batch *batches;     /* and policies, codecs, made: room for max_batches */
    uint8_t *policies, *codecs, *made;
    int64_t max_batches;
    int64_t *rows;          /* 7 columns of max_rows */
    uint8_t *keep;          /* max_rows */
    int64_t max_rows;
} seg_stretch;

/* SipHash-2-4 of 128 bits: two words of seed, two of hash. */
void seg_siphash(const uint8_t *p, int64_t len, const uint64_t *seed, uint64_t *hash);

/* Put the keys of n records into the map, with the largest offset of each; records without a key or
 * below from_offset are passed over. Stops before a key that it may not take any more: the records
 * taken, SEG_E_COLUMN, -EINVAL for a map that can't be. */
int64_t seg_map_put(seg_offset_map *m, const uint8_t *arena, int64_t arena_len, const int64_t *key_at,
                    const int64_t *key_len, const int64_t *offsets, int64_t n, int64_t from_offset);

/* What stays of n records: keep[i] is SEG_DROP, SEG_LATEST or SEG_KEEP (above offset `latest`, up to which
 * the map tells). *keyless grows by those that go for want of a key. Returns how many stay; errors as put. */
int64_t seg_map_keep(const seg_offset_map *m, const uint8_t *arena, int64_t arena_len, const int64_t *key_at,
                     const int64_t *key_len, const int64_t *offsets, int64_t n, int64_t latest,
                     uint8_t *keep, int64_t *keyless);

/* Put n batches out as compaction leaves them. raw holds them as they are in their file, from raw_position
 * on; their rows, in order, are in columns, what stays of them in keep. A batch of which nothing changes
 * is copied; another keeps base and last offset, producer and leader epoch, gets codecs[i] into its
 * attributes, and its records plain, with a CRC only where the codec is none: the caller compresses and
 * seals. out_batches and made have room for n; positions count from out. Returns bytes; SEG_E_ROOM,
 * SEG_E_COLUMN, SEG_E_TOO_LARGE, SEG_E_RECORD, SEG_E_VARINT. */
int64_t seg_compact(const uint8_t *raw, int64_t raw_len, int64_t raw_position, const uint8_t *arena,
                    int64_t arena_len, const seg_batch *batches, const uint8_t *policies,
                    const uint8_t *codecs, int64_t n, const seg_columns *columns, seg_cleaning *how,
                    uint8_t *keep, uint8_t *out, int64_t capacity, seg_batch *out_batches, uint8_t *made);

/* --- stretch.c: the same over a long stretch of a file at a call ----------------------------------- */
/* Both stop at s->end, or before the first batch that is compressed, of a transaction, a marker, damaged,
 * or larger than the window: s->position tells. */

/* Put the keys of plain batches into the map, unless it becomes full within a window: that one is left.
 * Bytes of the file that were passed; -errno of reading, errors of seg_map_put. */
int64_t seg_map_stretch(seg_offset_map *m, seg_stretch *s, int64_t from_offset);

/* seg_map_keep and seg_compact of plain batches, until out (of 2 windows at least) has no room for one more
 * window. Batches whose last offset is among `retained`, which rise, stay without records. Bytes in out,
 * whose batches are out_batches (room for max_out); how has the sums. -errno, errors of seg_compact. */
int64_t seg_compact_stretch(const seg_offset_map *m, int64_t latest, seg_stretch *s, const int64_t *retained,
                            int64_t n_retained, seg_cleaning *how, uint8_t *out, int64_t capacity,
                            seg_batch *out_batches, int64_t max_out);

#endif
