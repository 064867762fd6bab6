/* Indexes of a segment: entries are made, found and validated (index.c). */
#ifndef SEG_CONTRACT_INDEX_H
#define SEG_CONTRACT_INDEX_H

#include <stdint.h>

#include "batch.h"

typedef struct seg_index_state {
    int64_t bytes_since;      /* bytes since the last indexed batch began */
    int64_t max_timestamp;    /* largest so far, -1 for none */
    int64_t max_timestamp_offset; /* last offset of the batch that has it */
    int64_t last_time_entry;  /* timestamp of the newest time index entry, -1 for none */
} seg_index_state;

/* Make the index entries for n appended batches of a segment (Kafka: LogSegment.append). Big-endian entries go to
 * offset_out (8 bytes each, room for n) and time_out (12 bytes each, room for n); *n_time is the number of the latter.
 * Returns the number of offset entries. With a NULL offset_out the entries are only counted. */
int64_t seg_index_entries(const seg_batch *batches, int64_t n, int64_t base_offset, int64_t interval,
                          seg_index_state *state, uint8_t *offset_out, uint8_t *time_out,
                          int64_t *n_time);
/* The number of leading batches with all offsets from `least` to `most`: a base offset lies outside the CRC, and may
 * have any value. */
int64_t seg_index_fitting(const seg_batch *batches, int64_t n, int64_t least, int64_t most);
/* The slot of the last of n entries with at most this relative offset (timestamp), or -1. */
int64_t seg_offset_slot(const uint8_t *index, int64_t n, int64_t relative_offset);
int64_t seg_time_slot(const uint8_t *index, int64_t n, int64_t timestamp);
/* The number of leading entries that are in order and inside the segment: offsets rise, are in [0, end_relative),
 * positions rise and lie in (0, log_size); for the time index timestamps rise, offsets do not fall. */
int64_t seg_offset_valid(const uint8_t *index, int64_t n, int64_t end_relative, int64_t log_size);
int64_t seg_time_valid(const uint8_t *index, int64_t n, int64_t end_relative);

#endif
