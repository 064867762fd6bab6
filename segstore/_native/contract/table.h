/* A table of records: some of their columns, as Arrow buffers (table.c, table_read.c). */
#ifndef SEG_CONTRACT_TABLE_H
#define SEG_CONTRACT_TABLE_H

#include <stdint.h>

#include "batch.h"

/* A column of byte strings: Arrow's binary type. */
typedef struct seg_strings {
    int32_t *offsets;       /* NULL: the column is not wanted; else room for one number more than rows */
    uint8_t *data;
    uint8_t *validity;      /* a bitmap; all of its bits are set before the first row */
    int64_t room;           /* bytes of data */
    int64_t used;
    int64_t nulls;
} seg_strings;

/* Rows are added after the existing ones; the caller makes room, and may move the columns between two calls. */
typedef struct seg_table {
    int64_t *offsets;       /* NULL for each column that is not wanted */
    int64_t *timestamps;
    int64_t *headers_at;    /* the position of the header count in the arena */
    int8_t *timestamp_types;
    seg_strings keys, values;
    int64_t room;           /* rows */
    int64_t rows;
    int64_t with_headers;   /* records read with a header */
    int64_t fault_batch;    /* the place of an error: batch, and record within it */
    int64_t fault_record;
} seg_table;

/* Add the records of n batches of magic 2 with offsets from from_offset up to end_offset; the uncompressed records of
 * batch i lie at arena[at[i] : at[i] + lens[i]]. If neither keys, values nor headers are wanted, a record is skipped by
 * its length once its offset is known, and its later bytes are not checked. Returns the number of added rows, or
 * SEG_E_*: the rows of the batches before fault_batch were added then. */
int64_t seg_fill_table(const uint8_t *arena, int64_t arena_len, const seg_batch *batches, const int64_t *at,
                       const int64_t *lens, int64_t n, int64_t from_offset, int64_t end_offset, seg_table *table);

/* A read of many batches that lie side by side: of magic 2, uncompressed, with offsets below `below`. */
typedef struct seg_table_read {
    int64_t from_offset, end_offset; /* the range of wanted records */
    int64_t below;
    int64_t position;       /* the position of the next batch */
    int64_t next_offset;    /* no batch there has a lower offset */
    int64_t plain;          /* grows by the bytes of added records */
    int64_t need_rows;      /* rows, and their bytes, for which the table has no room; else 0 */
    int64_t need_bytes;
    int32_t check_crcs;
    int32_t refused;        /* attributes of batches that are skipped */
} seg_table_read;

/* Add the records of batches up to byte `end` of a file, through a window of `room` bytes. Control batches are skipped.
 * Stops, with position and next_offset moved, before end_offset, before a batch for which there is no room, and before
 * a batch that is refused, damaged, not whole or larger than the window. 0, -errno. */
int64_t seg_read_table(int fd, int64_t end, uint8_t *window, int64_t room, seg_table *table, seg_table_read *r);

#endif
