/* Columns of byte strings: their form, gathering and hashing (gather.c, murmur2.c). */
#ifndef SEG_CONTRACT_COLUMN_H
#define SEG_CONTRACT_COLUMN_H

#include <stdint.h>

/* The bytes of n byte strings of these lengths; *nulls gets the number of nulls (-1). */
int64_t seg_extent(const int64_t *lens, int64_t n, int64_t *nulls);

/* Copy n slices of the arena into out, one after another, and write n + 1 Arrow offsets (int32 if wide is 0, else
 * int64). Nulls (-1) are empty. Returns bytes, or SEG_E_ROOM, SEG_E_COLUMN. */
int64_t seg_gather(const uint8_t *arena, int64_t arena_len, const int64_t *at, const int64_t *lens,
                   int64_t n, int32_t wide, uint8_t *out, int64_t capacity, void *offsets);

/* One byte string; a length of -1: null. */
typedef struct seg_span {
    const uint8_t *data;
    int64_t len;
} seg_span;

/* A column of byte strings. */
typedef struct seg_column {
    const uint8_t *data;     /* kind 4: none */
    int64_t data_len;        /* bytes of all elements, at least */
    const void *offsets;     /* kind 1: int32[n + 1]; kind 2: int64[n + 1]; absolute in data; kind 4: seg_span[n] */
    const uint8_t *validity; /* Arrow bitmap, least bit first, 0 = null; NULL: none is null */
    int64_t validity_bit;    /* the bit of the first element */
    int64_t n;
    int64_t width;           /* kind 3: bytes of each element; kind 4: of the longest one */
    int32_t kind;            /* 0: every element is null; 1, 2: offsets; 3: fixed width; 4: spans */
    int32_t nulls;           /* kind 4: 1 if an element is null */
} seg_column;

typedef struct seg_header_columns {
    const int64_t *offsets;  /* int64[n + 1]: headers of record i are offsets[i] .. offsets[i + 1] */
    const int64_t *ends;     /* int64[n]: the headers are offsets[i] .. ends[i], and `offsets` has n numbers; NULL:
                                as above */
    int64_t n;
    seg_column names;
    seg_column values;
} seg_header_columns;

/* --- arrow.c --------------------------------------------------------- */
typedef struct seg_measures {
    int64_t size;            /* bytes of all elements, or items of all lists, added to the old value */
    int64_t nulls;           /* added to the old value */
    int64_t least;           /* the first item of a list */
    int64_t most;            /* at least the old value: bytes of the longest element; or the end of a list's items */
    int64_t row;             /* the element that was read last: after an error, the wrong one */
} seg_measures;

/* Fill `out` with the spans of all elements of a column, which point into its memory. Returns n, or SEG_E_COLUMN. */
int64_t seg_column_spans(const seg_column *c, seg_span *out, seg_measures *m);

/* Fill `out` with the spans of n views (Arrow: BinaryView), which point into the views and into their buffers. Returns
 * n, or SEG_E_COLUMN. */
int64_t seg_view_spans(const uint8_t *views, int64_t n, const uint8_t *validity, int64_t validity_bit,
                       const seg_span *buffers, int64_t n_buffers, seg_span *out, seg_measures *m);

/* Fill `views` with the views (Arrow: BinaryView) of all elements of a column with int32 offsets. They point into its
 * data as their only buffer; the views of null elements are zeros. Returns n, or SEG_E_COLUMN. */
int64_t seg_column_views(const seg_column *c, uint8_t *views);

/* Find the items begins[i] .. ends[i] of n lists with n_items in all; a null list has none. offsets: int64 if wide
 * is set, else int32, [n + 1]; [n] with sizes, of the same type (Arrow: ListView), else NULL. Returns n, or
 * SEG_E_COLUMN. */
int64_t seg_list_ranges(const void *offsets, const void *sizes, int32_t wide, int64_t n, const uint8_t *validity,
                        int64_t validity_bit, int64_t n_items, int64_t *begins, int64_t *ends, seg_measures *m);

/* --- murmur2.c ------------------------------------------------------- */
/* Kafka's hash of n keys, without its sign bit; -1 for a null key. Returns n, or SEG_E_COLUMN. */
int64_t seg_murmur2(const seg_column *keys, int64_t n, int32_t *out);

#endif
